"""Arrays over memory that a framework owns."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


class _Owner:
    """What numpy keeps as the array's base, so that the memory outlives every view of it."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, interface: dict[str, Any], owner: object) -> None:
        self.__array_interface__ = interface
        self.owner = owner


def borrow_array(
    address: int, shape: Sequence[int], dtype: npt.DTypeLike, owner: object
) -> npt.NDArray[Any]:
    """A writable array over memory that is already there, without copying.

    Args:
        address: of the first element; the elements lie densely in row-major order.
        shape: of the array.
        dtype: of the elements, of the machine's byte order.
        owner: kept alive as long as the array or a view of it is.
    """
    dtype = np.dtype(dtype)
    if 0 in shape:
        # Frameworks give an empty tensor any address, zero among them, which numpy refuses.
        return np.empty(shape, dtype)
    interface = {
        "version": 3,
        "shape": tuple(shape),
        "typestr": dtype.str,
        "data": (address, False),
    }
    return np.asarray(_Owner(interface, owner))
