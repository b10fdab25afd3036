"""Joining the rows of requests into one batch, and cutting the outputs apart again."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from naiad.errors import InternalError


def join_rows(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Stack the rows of several requests' inputs along the batch axis.

    Args:
        arrays: at least one, each of shape ``(rows, ...)`` with the same trailing dims.

    Returns:
        The array itself when it is alone, so that a single request is never copied; otherwise a
        new array of shape ``(sum of rows, ...)`` in the order given.
    """
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays)


def split_rows(output: npt.NDArray[Any], rows: Sequence[int]) -> list[npt.NDArray[Any]]:
    """Cut a batched output into one piece per request, without copying.

    Args:
        output: shape ``(sum(rows), ...)``; axis 0 follows the order the requests were joined in.
        rows: batch size of each request in that order, each at least 1.

    Returns:
        Views of ``output``; piece ``i`` has shape ``(rows[i], ...)``.

    Raises:
        InternalError: the model returned another number of rows than it was given, so no
            request of the batch can be answered.
    """
    total = sum(rows)
    if output.ndim == 0 or output.shape[0] != total:
        raise InternalError(
            f"the model was given a batch of {total} rows and returned an output of shape "
            f"{list(output.shape)}; an output of a model with max_batch_size > 0 must keep the "
            f"batch as its first dim. Set max_batch_size to 0, or export the model so that every "
            f"output follows the batch"
        )
    pieces = []
    start = 0
    for count in rows:
        end = start + count
        pieces.append(output[start:end])
        start = end
    return pieces


def join_flat(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """String the elements of several requests' inputs together.

    Args:
        arrays: at least one, of any shapes.

    Returns:
        A vector of all elements in the order given; a view where there is one array.
    """
    if len(arrays) == 1:
        return arrays[0].reshape(-1)
    return np.concatenate([array.reshape(-1) for array in arrays])


def split_flat(
    output: npt.NDArray[Any], shapes: Sequence[tuple[int, ...]], name: str
) -> list[npt.NDArray[Any]]:
    """Cut an output into pieces of given shapes, without copying what is in one piece.

    Args:
        output: of any shape; its elements are those of the pieces, one after the other.
        shapes: of the pieces.
        name: of the output, for the text of the error.

    Raises:
        InternalError: the model returned another number of elements.
    """
    sizes = [prod(shape) for shape in shapes]
    flat = output.reshape(-1)
    if flat.size != sum(sizes):
        raise InternalError(
            f"output '{name}' is to be cut into the shapes {[list(shape) for shape in shapes]}, "
            f"which have {sum(sizes)} elements, and the model returned the shape "
            f"{list(output.shape)}"
        )
    pieces = []
    start = 0
    for shape, size in zip(shapes, sizes, strict=True):
        pieces.append(flat[start : start + size].reshape(shape))
        start += size
    return pieces


def pick_rows(
    output: npt.NDArray[Any], total: int, positions: Sequence[int]
) -> list[npt.NDArray[Any]]:
    """Cut single rows out of a batched output, without copying.

    Args:
        output: shape ``(total, ...)``.
        total: rows that the model was given.
        positions: of the rows that are wanted.

    Returns:
        Views of ``output`` of shape ``(1, ...)``, in the order of ``positions``.

    Raises:
        InternalError: the model returned another number of rows.
    """
    rows = split_rows(output, [1] * total)
    return [rows[position] for position in positions]


def make_blank(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """What stands in for a tensor of this shape and dtype in a row that nobody asked for."""
    if array.dtype.hasobject:
        return np.full(array.shape, b"", np.object_)
    return np.zeros(array.shape, array.dtype)
