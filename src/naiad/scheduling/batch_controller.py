"""Chooses how large batches may be, and how long one waits for company, to keep a latency.

What a cap on the size is good for: nobody should wait for an execution, or be in one, that takes
longer than the target allows. What a delay is good for: while instances are busy all the time, an
execution that is spared makes room for others. So it is worth as much as an execution costs before
its first row, and without such a load it is worth nothing, since requests would only wait.
"""

from dataclasses import dataclass
from typing import Final

from naiad.inference.statistics import BatchTuning
from naiad.scheduling.execution_times import ExecutionTimes

# Of the target, what queue and execution may take; the rest is for the way in and out.
_OWN_SHARE: Final = 0.85
# Larger sizes are tried once a quarter of them has been measured.
_GROWTH: Final = 4
# Of the best capacity, what a larger batch may cost.
_GOOD_CAPACITY: Final = 0.97
# Of what arrives, what should be done at least, since arrivals come in bursts.
_HEADROOM: Final = 1.25
# Shares of the time that the instances are busy; between the two, what was decided holds.
_BUSY_SHARE: Final = 0.85
_IDLE_SHARE: Final = 0.5
_MISS_SHARE: Final = 0.01
# Clients that ask again once they are answered are all there all the time. What comes at random
# waves more, and keeps instances busy at half the load that they could do, too.
_STEADY_SHARE: Final = 0.8
_CAUTION_UP: Final = 1.1
_CAUTION_DOWN: Final = 0.98
_MAX_CAUTION: Final = 3.0
# Waits in vain, each of a whole delay, after which waiting is left alone; and for how many windows.
_MAX_LOSSES: Final = 2
_FIRST_PAUSE: Final = 8
_MAX_PAUSE: Final = 128


@dataclass(slots=True)
class LoadWindow:
    """What happened between two choices.

    Attributes:
        arrived_rows: offered.
        busy_ns: in executions, of all instances together.
        request_count: requests that ran.
        late_count: those of them that took longer than the target.
        most_rows: that waited or ran at once.
        execution_count: executions that ended.
        present_rows: that waited or ran when an execution ended, its own among them, added up.
    """

    arrived_rows: int = 0
    busy_ns: int = 0
    request_count: int = 0
    late_count: int = 0
    most_rows: int = 0
    execution_count: int = 0
    present_rows: int = 0


class BatchController:
    """Holds the choice in force and revises it; makes no decision about a single request.

    Args:
        target_ns: what all but one of a hundred requests should not exceed.
        max_rows: of an execution, by the model's config.
        instance_count: of the model.

    Attributes:
        tuning: the choice, for all to see.
        times: of executions, as far as they are known.
        is_exploring: the sizes that the model allows have not all been tried.
    """

    def __init__(self, target_ns: int, max_rows: int, instance_count: int) -> None:
        self.times = ExecutionTimes()
        self.is_exploring = max_rows > _GROWTH
        self.tuning = BatchTuning(target_ns, min(max_rows, _GROWTH), 0)
        self._allowed_ns = target_ns * _OWN_SHARE
        self._max_rows = max_rows
        self._instance_count = instance_count
        self._sizes = _candidates(max_rows)
        self._rows_per_ns = 0.0
        # By how much more than expected executions are taken to last.
        self._caution = 1.0
        self._is_busy = False
        # More comes than can be done in time: whatever does most keeps the queue shortest.
        self._is_short = False
        # What waits for company have brought, less what they cost.
        self._gain_ns = 0.0
        self._next_pause = _FIRST_PAUSE
        self._paused_windows = 0

    def set_instance_count(self, count: int) -> None:
        """Reckon with so many instances from now on."""
        self._instance_count = count

    def revise(self, window: LoadWindow, elapsed_ns: int) -> None:
        """Choose anew by what happened in a window of ``elapsed_ns``, at least 1."""
        self.times.settle()
        self._rows_per_ns = (self._rows_per_ns + window.arrived_rows / elapsed_ns) / 2
        known_rows = max(self.times.largest_rows, 1) * _GROWTH
        self.is_exploring = known_rows < self._max_rows
        sizes = [size for size in self._sizes if size <= known_rows]
        self._judge_load(window, elapsed_ns)
        allowed_ns = self._allowed_ns / self._caution
        self.tuning.max_rows = self._choose_rows(sizes, allowed_ns)
        if self._paused_windows:
            self._paused_windows -= 1
        steady_rows = _STEADY_SHARE * window.most_rows * window.execution_count
        is_steady = window.present_rows >= steady_rows
        self.tuning.delay_ns = self._choose_delay(allowed_ns) if is_steady else 0

    def count_wait(self, waited_ns: int, joined_share: float) -> None:
        """Weigh a wait for company, and leave waiting alone for a while if it does not pay.

        Args:
            waited_ns: how long an instance idled.
            joined_share: of the rows that it then got, those that came meanwhile. They would have
                needed that much of another execution.
        """
        fixed_ns = self.times.fixed_ns
        self._gain_ns = min(self._gain_ns + fixed_ns * joined_share - waited_ns, fixed_ns)
        if self._gain_ns > 0:
            self._next_pause = _FIRST_PAUSE
        elif self._gain_ns < -_MAX_LOSSES * fixed_ns:
            self._gain_ns = 0.0
            self.tuning.delay_ns = 0
            self._paused_windows = self._next_pause
            self._next_pause = min(2 * self._next_pause, _MAX_PAUSE)

    def _judge_load(self, window: LoadWindow, elapsed_ns: int) -> None:
        busy_share = window.busy_ns / (elapsed_ns * self._instance_count)
        self._is_busy = busy_share >= (_IDLE_SHARE if self._is_busy else _BUSY_SHARE)
        is_late = window.late_count > _MISS_SHARE * window.request_count
        self._is_short = self._is_busy and (self._is_short or is_late)
        if not is_late:
            self._caution = max(self._caution * _CAUTION_DOWN, 1.0)
        elif not self._is_busy:
            self._caution = min(self._caution * _CAUTION_UP, _MAX_CAUTION)

    def _choose_rows(self, sizes: list[int], allowed_ns: float) -> int:
        # A request waits until an instance is free, and then for its own execution.
        turns = 1 + 1 / self._instance_count
        in_time = [s for s in sizes if self.times.expected_ns(s) * turns <= allowed_ns] or [1]
        capacity = max(map(self._capacity, in_time))
        wanted = _HEADROOM * self._rows_per_ns
        if not self._is_short and capacity >= wanted:
            return max(s for s in in_time if self._capacity(s) >= _GOOD_CAPACITY * capacity)
        # In a queue that grows nobody is in time, however short the executions are.
        enough = _GOOD_CAPACITY * max(map(self._capacity, sizes))
        if not self._is_short:
            enough = min(enough, wanted)
        return min(s for s in sizes if self._capacity(s) >= enough)

    def _capacity(self, rows: int) -> float:
        """Rows per nanosecond in executions of this size."""
        return self._instance_count * rows / max(self.times.expected_ns(rows), 1.0)

    def _choose_delay(self, allowed_ns: float) -> int:
        left_ns = allowed_ns - self.times.expected_ns(self.tuning.max_rows)
        delay_ns = int(min(self.times.fixed_ns, left_ns))
        is_company_near = self._rows_per_ns * delay_ns >= 1
        if self._paused_windows or not self._is_busy or not is_company_near:
            return 0
        return delay_ns


def _candidates(max_rows: int) -> tuple[int, ...]:
    """Sizes to choose from: powers of two, what is halfway between them, and the largest."""
    sizes = {max_rows}
    power = 1
    while power < max_rows:
        sizes.update((power, min(power + power // 2, max_rows)))
        power *= 2
    return tuple(sorted(sizes))
