"""The classification extension: an output as its top classes, in words.

Source: Triton's extension_classification.md and classification.cc.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from naiad.errors import InvalidArgumentError
from naiad.inference.datatypes import BF16, BYTES, Datatype
from naiad.inference.tensor import Tensor
from naiad.protocol.binary_data import arrange_elements

_MAX_ELEMENTS: Final = 1_000_000  # Triton's
# Where to sort them all takes longer than to look for the top ones first.
_MANY_VALUES: Final = 2048
_SORTABLE_KINDS: Final = "iuf"


def classify(tensor: Tensor, count: int, labels: Sequence[str], *, has_batch_axis: bool) -> Tensor:
    """The ``count`` highest values of each row as BYTES ``value:index[:label]``.

    Args:
        tensor: all axes but the batch axis are taken together.
        count: at least 1; more than there are values gives all.
        labels: by index; an index without a label, or with an empty one, is written bare.
        has_batch_axis: axis 0 counts rows.

    Returns:
        Shape ``(rows, n)``, or ``(n,)`` without a batch axis. Equal values keep their order.

    Raises:
        InvalidArgumentError: BOOL, BYTES or a half-precision type, no values, or too many.
    """
    datatype = tensor.datatype
    if not _is_sortable(datatype):
        raise InvalidArgumentError(
            f"class result not available for output due to unsupported type '{datatype.name}'"
        )
    if tensor.data.size > _MAX_ELEMENTS:
        raise InvalidArgumentError(
            f"classification output tensor too large: '{tensor.name}' has {tensor.data.size} "
            f"elements, the limit is {_MAX_ELEMENTS}"
        )
    if tensor.data.size == 0:
        raise InvalidArgumentError(
            f"class result not available for output '{tensor.name}', which has no elements"
        )
    rows = tensor.data.reshape(tensor.shape[0] if has_batch_axis else 1, -1)
    count = min(count, rows.shape[1])
    elements = [text for row in rows for text in _top(row, count, labels)]
    shape = (rows.shape[0], count) if has_batch_axis else (count,)
    return Tensor(tensor.name, BYTES, shape, arrange_elements(elements, shape))


def _is_sortable(datatype: Datatype) -> bool:
    return (
        datatype.dtype.kind in _SORTABLE_KINDS and datatype is not BF16 and datatype.name != "FP16"
    )


def _top(row: npt.NDArray[Any], count: int, labels: Sequence[str]) -> list[bytes]:
    # Python's sort, not numpy's: it is stable in descending order too, and leaves a NaN in its
    # place among values that it compares with, as Triton does.
    places = _candidates(row, count).tolist()
    values = (
        row.tolist()
        if len(places) == len(row)
        else dict(zip(places, row[places].tolist(), strict=True))
    )
    best = sorted(places, key=values.__getitem__, reverse=True)[:count]
    is_float = row.dtype.kind == "f"
    return [_describe(values[index], index, labels, is_float=is_float) for index in best]


def _candidates(row: npt.NDArray[Any], count: int) -> npt.NDArray[np.intp]:
    """The places, in order, among which the top ones are: of many values only as many as asked."""
    if row.size < _MANY_VALUES or count > row.size // 4:
        return np.arange(row.size)
    last = np.partition(row, row.size - count)[row.size - count]
    above = np.flatnonzero(row > last)
    equal = np.flatnonzero(row == last)[: count - above.size]
    places = np.concatenate((above, equal))
    if places.size < count or (row.dtype.kind == "f" and np.isnan(row).any()):
        return np.arange(row.size)
    return np.sort(places)


def _describe(value: float, index: int, labels: Sequence[str], *, is_float: bool) -> bytes:
    text = f"{value:f}:{index}" if is_float else f"{value}:{index}"
    label = labels[index] if index < len(labels) else ""
    return (f"{text}:{label}" if label else text).encode()
