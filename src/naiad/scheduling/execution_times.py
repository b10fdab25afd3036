"""How long a model's executions take by their number of rows, learned while it serves."""

from typing import Final

# Sizes that differ by less than an eighth share a measurement.
_SIZE_BITS: Final = 4
_FORGETTING: Final = 0.9
# What a size is remembered by however long ago it ran last.
_MIN_WEIGHT: Final = 1.0
# Executions after which one that takes many times as long is taken for a hiccup of the machine.
_SETTLED_COUNT: Final = 8
_MAX_OUTLIER: Final = 4.0
# How many executions of a size are worth as much as what the other sizes say about it.
_TRUST_COUNT: Final = 3.0
# Of one size alone nobody can tell what is paid per execution and what per row.
_UNKNOWN_FIXED_SHARE: Final = 0.5


class _Size:
    """Executions of about one size; older ones count less."""

    __slots__ = ("count", "ns", "rows")

    def __init__(self) -> None:
        self.count = self.rows = self.ns = 0.0


class ExecutionTimes:
    """A line through what was measured, corrected by what is known of each size.

    Attributes:
        fixed_ns: what an execution costs however few its rows are.
        row_ns: what each row adds.
        largest_rows: that ever ran; 0 before the first.
    """

    def __init__(self) -> None:
        self.fixed_ns = self.row_ns = 0.0
        self.largest_rows = 0
        self._sizes: dict[int, _Size] = {}

    def add(self, rows: int, ns: int) -> None:
        """Take note of one execution of ``rows`` rows, at least 1; `settle` draws conclusions."""
        shift = max(rows.bit_length() - _SIZE_BITS, 0)
        key = rows >> shift << shift
        size = self._sizes.get(key)
        if size is None:
            size = self._sizes[key] = _Size()
            self.largest_rows = max(self.largest_rows, rows)
        took_ns = float(ns)
        if size.count >= _SETTLED_COUNT:
            took_ns = min(took_ns, _MAX_OUTLIER * size.ns / size.count)
        size.count += 1
        size.rows += rows
        size.ns += took_ns

    def settle(self) -> None:
        """Fit the line to what was added, and let it count less from now on."""
        weight = sum(size.count for size in self._sizes.values())
        if not weight:
            return
        mean_rows = sum(size.rows for size in self._sizes.values()) / weight
        mean_ns = sum(size.ns for size in self._sizes.values()) / weight
        spread = slope = 0.0
        for size in self._sizes.values():
            distance = size.rows / size.count - mean_rows
            spread += size.count * distance * distance
            slope += distance * (size.ns - size.count * mean_ns)
        if len(self._sizes) > 1 and spread:
            # A row that makes an execution shorter, or an execution that is free, is noise.
            self.row_ns = min(max(slope / spread, 0.0), mean_ns / mean_rows)
        else:
            self.row_ns = (1 - _UNKNOWN_FIXED_SHARE) * mean_ns / mean_rows
        self.fixed_ns = mean_ns - self.row_ns * mean_rows
        for size in self._sizes.values():
            factor = max(_FORGETTING, min(_MIN_WEIGHT / size.count, 1.0))
            size.count *= factor
            size.rows *= factor
            size.ns *= factor

    def expected_ns(self, rows: int) -> float:
        """How long ``rows`` rows should take; 0 before the first `settle`."""
        line_ns = self.fixed_ns + self.row_ns * rows
        shift = max(rows.bit_length() - _SIZE_BITS, 0)
        size = self._sizes.get(rows >> shift << shift)
        if size is None:
            return line_ns
        own_ns = size.ns / size.count + self.row_ns * (rows - size.rows / size.count)
        trust = size.count / (size.count + _TRUST_COUNT)
        return trust * own_ns + (1 - trust) * line_ns
