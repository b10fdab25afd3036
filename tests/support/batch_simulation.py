"""A scheduler under load, in simulated time: instances, arrivals, and what came of them."""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from random import Random

from tests.support.requests import rows_request

from naiad.inference.request import InferRequest
from naiad.scheduling.scheduler import Batch, Scheduler

# From an answer to the next request of the same client.
RETURN_NS = 300_000


class BatchSimulation:
    """Drives a scheduler as the executor does.

    Attributes:
        latencies_ns: of the requests that were answered since `forget`.
        sizes: rows of the batches that ran.
        idle_wait_ns: the longest that a request waited although an instance was free.
        answered: requests, by how often they were.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        took_ns: Callable[[int], float],
        *,
        instance_count: int = 1,
        seed: int = 1,
    ) -> None:
        self.now_ns = 1_000_000_000
        self.latencies_ns: list[int] = []
        self.sizes: list[int] = []
        self.answered: dict[InferRequest, int] = {}
        self.idle_wait_ns = 0
        self.random = Random(seed)
        self.took_ns = took_ns
        self._scheduler = scheduler
        self._free = instance_count
        self._free_ns = self.now_ns
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._event_count = 0

    def forget(self) -> None:
        self.latencies_ns.clear()
        self.sizes.clear()
        self.idle_wait_ns = 0

    def open_loop(self, per_s: float, seconds: float) -> None:
        """Let requests of one row arrive at random, whatever is answered."""
        for due_ns in self._arrivals(per_s, seconds):
            self._at(due_ns, lambda: self._offer(on_answer=None))
        self._run_until(self.now_ns + int(seconds * 1e9))

    def closed_loop(self, clients: int, seconds: float) -> None:
        """Let clients ask again after each answer."""
        end_ns = self.now_ns + int(seconds * 1e9)

        def ask() -> None:
            if self.now_ns < end_ns:
                self._offer(on_answer=again)

        def again() -> None:
            self._at(self.now_ns + int(RETURN_NS * self.random.uniform(0.5, 1.5)), ask)

        for _ in range(clients):
            again()
        self._run_until(end_ns)

    def drain(self) -> None:
        self._run_until(1 << 62)

    def _arrivals(self, per_s: float, seconds: float) -> Iterator[int]:
        now_s = self.random.expovariate(per_s)
        while now_s < seconds:
            yield self.now_ns + int(now_s * 1e9)
            now_s += self.random.expovariate(per_s)

    def _offer(self, on_answer: Callable[[], None] | None) -> None:
        request = rows_request(1)
        if on_answer is not None:
            request.on_response = lambda _response: on_answer()
        self._scheduler.offer(request, self.now_ns)
        self._tick()

    def _tick(self) -> None:
        while self._free:
            batch = self._scheduler.take(self.now_ns)
            if batch is None:
                wake_ns = self._scheduler.wake_ns()
                if wake_ns is not None:
                    self._at(max(wake_ns, self.now_ns), self._tick)
                return
            self._start(batch)

    def _start(self, batch: Batch) -> None:
        self._free -= 1
        rows = sum(request.batch_size for request in batch.requests)
        self.sizes.append(rows)
        oldest_ns = min(request.queued_ns for request in batch.requests)
        self.idle_wait_ns = max(self.idle_wait_ns, self.now_ns - max(oldest_ns, self._free_ns))
        self._at(self.now_ns + int(self.took_ns(rows)), lambda: self._finish(batch))

    def _finish(self, batch: Batch) -> None:
        self._free += 1
        self._free_ns = self.now_ns
        self._scheduler.finish(batch, self.now_ns)
        self._tick()
        for request in batch.requests:
            self.answered[request] = self.answered.get(request, 0) + 1
            self.latencies_ns.append(self.now_ns - request.queued_ns)
            request.on_response(None)  # type: ignore[arg-type]

    def _at(self, due_ns: int, then: Callable[[], None]) -> None:
        self._event_count += 1
        heappush(self._events, (due_ns, self._event_count, then))

    def _run_until(self, end_ns: int) -> None:
        while self._events and self._events[0][0] <= end_ns:
            self.now_ns, _, then = heappop(self._events)
            then()

    def p99_ns(self) -> int:
        return sorted(self.latencies_ns)[len(self.latencies_ns) * 99 // 100]
