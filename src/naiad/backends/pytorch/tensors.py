"""Between numpy arrays and torch tensors, sharing their memory."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from naiad.backends.borrowed import borrow_array
from naiad.errors import InvalidArgumentError
from naiad.inference import datatypes
from naiad.inference.datatypes import Datatype

DATATYPES: Final[Mapping[torch.dtype, Datatype]] = {
    torch.bool: datatypes.BOOL,
    torch.uint8: datatypes.UINT8,
    torch.uint16: datatypes.UINT16,
    torch.uint32: datatypes.UINT32,
    torch.uint64: datatypes.UINT64,
    torch.int8: datatypes.INT8,
    torch.int16: datatypes.INT16,
    torch.int32: datatypes.INT32,
    torch.int64: datatypes.INT64,
    torch.float16: datatypes.FP16,
    torch.float32: datatypes.FP32,
    torch.float64: datatypes.FP64,
    torch.bfloat16: datatypes.BF16,
}


def to_torch(array: npt.NDArray[Any], datatype: Datatype) -> torch.Tensor:
    """A tensor over the array's memory, without copying; not to be written into.

    torch knows no read-only tensors and warns of the first read-only array, as most inputs are.
    So it is given a writable array over the same memory.
    """
    if not array.flags.writeable and array.size:
        array = borrow_array(array.ctypes.data, array.shape, array.dtype, array)
    elif not array.flags.writeable:
        array = np.empty_like(array)
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if datatype is datatypes.BF16 else tensor


def copy_to_torch(array: npt.NDArray[Any], datatype: Datatype) -> torch.Tensor:
    """A tensor of its own memory, for a model that may write into it."""
    tensor = torch.from_numpy(array.copy())
    return tensor.view(torch.bfloat16) if datatype is datatypes.BF16 else tensor


def to_value(name: str, array: npt.NDArray[Any]) -> bool | int | float | str:
    """The one value of an input, for an argument that is no tensor.

    Raises:
        InvalidArgumentError: there is none, or the rows of a batch differ in it.
    """
    values = array.ravel().tolist()
    if not values:
        raise InvalidArgumentError(
            f"input '{name}' is a plain value to the model, and the request brings none"
        )
    if any(value != values[0] for value in values):
        raise InvalidArgumentError(
            f"input '{name}' is a plain value to the model, so it must be the same for the whole "
            f"batch; got {values[:8]}. Send these requests one by one to a model without a "
            "dynamic batcher"
        )
    value = values[0]
    if isinstance(value, bytes):
        return to_strings(name, array.ravel())[0]
    plain: bool | int | float | str = value
    return plain


def to_strings(name: str, array: npt.NDArray[Any]) -> list[str]:
    """The elements of a BYTES input as TorchScript's ``List[str]``, its only kind of text.

    Raises:
        InvalidArgumentError: there is more than one dimension of text, or an element isn't UTF-8.
    """
    if array.size != (array.shape[0] if array.ndim else 1):
        raise InvalidArgumentError(
            f"PyTorch takes 1-dimensional string input only; input '{name}' has shape "
            f"{list(array.shape)}"
        )
    try:
        return [element.decode() for element in array.ravel()]
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"input '{name}' has an element that is not UTF-8 ({error.reason} at byte "
            f"{error.start}); PyTorch takes text only"
        ) from error


def from_strings(strings: list[str]) -> npt.NDArray[np.object_]:
    """A ``List[str]`` result as a BYTES array of one dimension."""
    array = np.empty(len(strings), np.object_)
    array[:] = [text.encode() for text in strings]
    return array


def to_numpy(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The tensor's elements, shared where it is dense and row-major; bf16 as bit patterns."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.view(torch.uint16)
    array: npt.NDArray[Any] = tensor.numpy()
    return array


Result = torch.Tensor | list[str]


def flatten_results(value: object) -> Iterator[Result]:
    """Tensors and lists of text in the order a model returned them, out of any nesting.

    Depth first: tuples, named tuples and lists in their order, dicts in the order in which the
    model filled them. An empty list is no result, and neither is None.

    Raises:
        TypeError: a result is neither, for example a plain number.
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif value is None:
        return
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from flatten_results(item)
    elif isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from flatten_results(item)
    else:
        raise TypeError(f"the model returned a {type(value).__name__}; only tensors can be served")
