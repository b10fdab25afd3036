"""Between torch tensors and the protocol's datatypes and numpy arrays."""

from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from naiad.backends.pytorch.tensors import DATATYPES
from naiad.errors import InvalidArgumentError, UnsupportedError
from naiad.inference.datatypes import Datatype

_TO_TORCH: Final = MappingProxyType({d.name: dtype for dtype, d in DATATYPES.items()})


def datatype_of(tensor: torch.Tensor, name: str) -> Datatype:
    """The protocol's datatype of a tensor.

    Args:
        tensor: an input or output.
        name: what errors call it, such as ``output 'scores'``.

    Raises:
        UnsupportedError: the protocol has no such datatype (complex and quantized tensors).
    """
    datatype = DATATYPES.get(tensor.dtype)
    if datatype is None:
        raise UnsupportedError(
            f"{name} is a {tensor.dtype} tensor, which the v2 protocol cannot carry; "
            f"it knows {', '.join(str(d) for d in DATATYPES)}"
        )
    return datatype


def to_array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The tensor as a numpy array of its own; BF16 as bit patterns in uint16."""
    plain = tensor.detach().cpu().contiguous()
    if plain.dtype == torch.bfloat16:
        plain = plain.view(torch.uint16)
    return np.array(plain.numpy())


def to_tensor(array: npt.NDArray[Any], datatype: str) -> torch.Tensor:
    """The array as a torch tensor of its own, of a v2 datatype that torch has."""
    tensor = torch.from_numpy(array.copy(order="C"))
    return tensor.view(torch.bfloat16) if datatype == "BF16" else tensor.to(_TO_TORCH[datatype])


def torch_dtype(datatype: str, name: str) -> torch.dtype:
    """The dtype of a v2 datatype.

    Args:
        datatype: such as ``FP32``.
        name: what errors call the tensor, such as ``input 'image'``.

    Raises:
        InvalidArgumentError: torch has no tensors of that datatype.
    """
    dtype = _TO_TORCH.get(datatype)
    if dtype is None:
        raise InvalidArgumentError(
            f"{name} is said to be {datatype}; tensors of torch are {', '.join(_TO_TORCH)}"
        )
    return dtype
