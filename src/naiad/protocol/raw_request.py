"""Raw binary requests: a body without a JSON header.

Source: "Raw Binary Request" in Triton's extension_binary_data.md.
"""

from math import prod
from typing import Any, Final

from naiad.errors import InvalidArgumentError
from naiad.inference.datatypes import BYTES
from naiad.inference.request import InferRequest, ResponseCallback
from naiad.inference.tensor import Tensor
from naiad.model_config.signature import ModelSignature
from naiad.protocol.binary_data import arrange_elements, view_tensor
from naiad.protocol.json_text import LIMIT_ADVICE, Buffer

_LABEL: Final = "[request id: <id_unknown>] "


def decode_raw_request(
    signature: ModelSignature,
    body: Buffer,
    max_input_bytes: int,
    on_response: ResponseCallback,
    received_ns: int,
) -> InferRequest:
    """Decode a body that is nothing but the bytes of the one input.

    Args:
        signature: of the model; it must have one input, whose shape has one row and at most one
            free dimension.
        body: the bytes; the input is a view of them.
        max_input_bytes: what ``body`` may have.
        on_response: goes into the request.
        received_ns: goes into the request.

    Raises:
        InvalidArgumentError: the input or its shape does not follow from the body.
    """
    size = len(body)
    if size > max_input_bytes:
        raise InvalidArgumentError(
            f"Raw input has a byte_size ({size} bytes) that exceeds the maximum allowed value of "
            f"{max_input_bytes} bytes. {LIMIT_ADVICE}"
        )
    if len(signature.inputs) != 1:
        raise InvalidArgumentError(
            f"{_LABEL}Raw request must only have 1 input (found 1) to be deduced but got "
            f"{len(signature.inputs)} inputs in '{signature.name}' model configuration"
        )
    (spec,) = signature.inputs.values()
    if spec.datatype is BYTES:
        if spec.dims != (1,):
            raise InvalidArgumentError(
                f"{_LABEL}For BYTE datatype raw input '{spec.name}', the model must have input "
                "shape [1]"
            )
        dims = [1]
        data: Any = arrange_elements([bytes(body)], dims)
    else:
        dims = _deduce_dims(spec.name, spec.dims, size // spec.datatype.byte_size)
        expected = prod(dims) * spec.datatype.byte_size
        if expected != size:
            raise InvalidArgumentError(
                f"{_LABEL}input byte size mismatch for input 'raw_input' for model "
                f"'{signature.name}'. Expected {expected}, got {size}"
            )
        data = view_tensor(spec.datatype, dims, body, 0)
    shape = [1, *dims] if signature.max_batch_size > 0 else dims
    inputs = {spec.name: Tensor(spec.name, spec.datatype, shape, data.reshape(shape))}
    return InferRequest("", inputs, None, on_response, received_ns)


def _deduce_dims(name: str, dims: tuple[int, ...], count: int) -> list[int]:
    if dims.count(-1) > 1:
        raise InvalidArgumentError(
            f"{_LABEL}The shape of the raw input '{name}' can not be deduced because there "
            "are more than one variable-sized dimension"
        )
    fixed = prod(dim for dim in dims if dim != -1)
    return [count // max(fixed, 1) if dim == -1 else dim for dim in dims]
