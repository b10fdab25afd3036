"""Tensors on their way through the channel."""

from typing import Any

import numpy as np
import numpy.typing as npt

from naiad.backends.python.stub.naiad_stub.wire import (
    WireTensor,
    decode_elements,
    elements_array,
    encode_elements,
)
from naiad.inference.datatypes import BY_CONFIG_NUMBER, BYTES
from naiad.inference.tensor import Tensor


def tensor_to_wire(tensor: Tensor) -> WireTensor:
    """A tensor of the server as the channel takes it; only BYTES are copied."""
    data: npt.NDArray[Any] = tensor.data
    code = tensor.datatype.config_number
    if tensor.datatype is BYTES:
        data = np.frombuffer(encode_elements(data.reshape(-1)), np.uint8)
    elif not data.flags.c_contiguous:
        data = np.ascontiguousarray(data)
    return WireTensor(tensor.name, code, tensor.data.shape, data)


def tensor_from_wire(tensor: WireTensor) -> Tensor:
    """A tensor of a model as the server takes it; only BYTES are copied.

    Raises:
        ValueError: its elements are not what its shape says.
        KeyError: there is no such datatype.
    """
    datatype = BY_CONFIG_NUMBER[tensor.code]
    data = tensor.data
    if datatype is BYTES:
        data = elements_array(decode_elements(data), tensor.shape)
    return Tensor(tensor.name, datatype, tuple(tensor.shape), data)
