"""A named array with its protocol datatype."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from naiad.inference.datatypes import Datatype


class Tensor:
    """One input or output of a request; not copied between socket and backend.

    Attributes:
        name: as in the model config.
        datatype: decides the meaning of ``data`` where numpy's dtype can't (BF16 is uint16 here).
        shape: with the batch axis where the model has one.
        data: C-contiguous, of exactly ``shape``; often a read-only view of a receive buffer, so
            nothing may write to it or keep it after the response.
    """

    __slots__ = ("data", "datatype", "name", "shape")

    def __init__(
        self, name: str, datatype: Datatype, shape: Sequence[int], data: npt.NDArray[Any]
    ) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self.data = data

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.datatype.name}, {list(self.shape)})"


class SharedTensor(Tensor):
    """An input in memory that its client shares and may write to at any time.

    What must hold for values that are read twice, such as an index between its check and its use,
    holds for a copy only.
    """

    __slots__ = ()
