"""Holding a request against its model's signature, before it may join a batch.

One bad item must never spoil a batch, so everything that can be checked without running the model
is checked here. Order and texts are Triton's (``InferenceRequest::Normalize``); both front ends
share them.
"""

from collections.abc import Sequence
from math import prod
from typing import Final

from naiad.errors import InvalidArgumentError, UnsupportedError
from naiad.inference.datatypes import BYTES
from naiad.inference.request import InferRequest
from naiad.inference.tensor import Tensor
from naiad.model_config.signature import ModelSignature, TensorSpec

_BATCHING_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be "
    "prepended to each input shape. If you want to specify the full shape including the batch dim "
    "in your input dims config, try setting max_batch_size to zero. See the model configuration "
    "docs for more info on max_batch_size."
)
_MAX_CORRELATION_ID_BYTES: Final = 128


def validate_request(signature: ModelSignature, request: InferRequest) -> None:
    """Check a decoded request and set its ``batch_size`` and ``batch_key``.

    Raises:
        InvalidArgumentError: with Triton's text; the request did not change the server's state.
        UnsupportedError: the same, of an id that is too long for a sequence.
    """
    if request.correlation_id.__class__ is str:
        _check_correlation_id(request.correlation_id)
    if request.output_names is not None:
        _check_outputs(signature, request.output_names)
    inputs = request.inputs
    specs = signature.inputs
    if not signature.required_inputs <= inputs.keys() or len(inputs) > len(specs):
        raise _wrong_inputs(signature, request)
    batch_size = -1
    # From the last to the first: of several faults Triton names the one it meets that way.
    for name, tensor in reversed(inputs.items()):
        spec = specs.get(name)
        if spec is None:
            raise InvalidArgumentError(
                f"unexpected inference input '{name}' for model '{signature.name}'"
            )
        batch_size = _check_input(signature, request, tensor, spec, batch_size)
    if signature.max_batch_size > 0:
        if batch_size > signature.max_batch_size:
            raise InvalidArgumentError(
                f"{_prefix(request)}inference request batch-size must be <= "
                f"{signature.max_batch_size} for '{signature.name}'"
            )
        if batch_size == 0:
            raise _empty_batch(signature, request)
        request.batch_size = max(batch_size, 1)
        if not signature.is_uniform:
            request.batch_key = _batch_key(signature, inputs)


def _check_input(
    signature: ModelSignature,
    request: InferRequest,
    tensor: Tensor,
    spec: TensorSpec,
    batch_size: int,
) -> int:
    """Check one input; returns the batch size, which the first input checked decides."""
    dims = tensor.shape
    if signature.max_batch_size > 0:
        if not dims:
            raise InvalidArgumentError(
                f"{_prefix(request)}input '{tensor.name}' has no shape but model requires batch "
                f"dimension for '{signature.name}'"
            )
        if batch_size not in (-1, dims[0]):
            raise InvalidArgumentError(
                f"{_prefix(request)}input '{tensor.name}' batch size does not match other inputs "
                f"for '{signature.name}'"
            )
        batch_size = dims[0]
        dims = dims[1:]
    if tensor.datatype is not spec.datatype:
        raise InvalidArgumentError(
            f"{_prefix(request)}inference input '{tensor.name}' data-type is "
            f"'{tensor.datatype.name}', but model '{signature.name}' expects "
            f"'{spec.datatype.name}'"
        )
    if not _fits(dims, spec) and not _is_scalar(signature, dims, spec):
        raise _wrong_shape(signature, request, tensor, spec)
    return batch_size


def _check_correlation_id(correlation_id: int | str) -> None:
    if len(str(correlation_id).encode()) > _MAX_CORRELATION_ID_BYTES:
        raise UnsupportedError(
            f"string correlation ID cannot be longer than {_MAX_CORRELATION_ID_BYTES} characters"
        )


def _prefix(request: InferRequest) -> str:
    return f"[request id: {request.request_id or '<id_unknown>'}] "


def _check_outputs(signature: ModelSignature, names: Sequence[str]) -> None:
    for name in names:
        if name not in signature.outputs:
            raise InvalidArgumentError(
                f"unexpected inference output '{name}' for model '{signature.name}'"
            )


def _fits(shape: Sequence[int], spec: TensorSpec) -> bool:
    """Whether ``shape``, without the batch axis, is one that ``spec.dims`` allows."""
    dims = spec.dims
    if spec.is_fixed:
        return tuple(shape) == dims
    if len(shape) != len(dims):
        return False
    for size, dim in zip(shape, dims, strict=True):  # noqa: SIM110 - a generator costs twice this
        if dim not in (-1, size):
            return False
    return True


def _is_scalar(signature: ModelSignature, shape: Sequence[int], spec: TensorSpec) -> bool:
    """Whether a request calls a scalar of the model what it is: ``[]``, where the config says [1].

    With a batch axis there is one shape for it, so that requests can be joined.
    """
    return not shape and spec.reshape == () and signature.max_batch_size == 0


def _batch_key(signature: ModelSignature, inputs: dict[str, Tensor]) -> object:
    """What two requests must share to share a batch: the inputs they give and their dims.

    The dims of an input with ``allow_ragged_batch`` don't count.
    """
    return tuple(
        (name, () if spec.allow_ragged_batch else tuple(inputs[name].shape[1:]))
        for name, spec in signature.inputs.items()
        if name in inputs
    )


def _wrong_shape(
    signature: ModelSignature, request: InferRequest, tensor: Tensor, spec: TensorSpec
) -> InvalidArgumentError:
    batched = signature.max_batch_size > 0
    expected = [-1, *spec.dims] if batched else list(spec.dims)
    return InvalidArgumentError(
        f"{_prefix(request)}unexpected shape for input '{tensor.name}' for model "
        f"'{signature.name}'. Expected {_format_shape(expected)}, got "
        f"{_format_shape(tensor.shape)}. {_BATCHING_NOTE if batched else ''}"
    )


def _empty_batch(signature: ModelSignature, request: InferRequest) -> InvalidArgumentError:
    """No rows: Triton counts the batch as one row and then misses its data."""
    for name, tensor in reversed(request.inputs.items()):
        count = prod(tensor.shape[1:])
        if count == 0:
            continue
        if tensor.datatype is BYTES:
            return InvalidArgumentError(
                f"{_prefix(request)}expected {count} string elements for inference input '{name}' "
                f"for model '{signature.name}', got 0"
            )
        return InvalidArgumentError(
            f"{_prefix(request)}input byte size mismatch for input '{name}' for model "
            f"'{signature.name}'. Expected {count * tensor.datatype.byte_size}, got 0"
        )
    return InvalidArgumentError(
        f"{_prefix(request)}inference request batch-size must be >= 1 for '{signature.name}'"
    )


def _format_shape(shape: Sequence[int]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"


def _wrong_inputs(signature: ModelSignature, request: InferRequest) -> InvalidArgumentError:
    given = list(reversed(request.inputs))
    needed = signature.required_inputs - request.inputs.keys()
    missing = [name for name in signature.inputs if name in needed]
    total = len(signature.inputs)
    required = len(signature.required_inputs)
    unknown = [name for name in given if name not in signature.inputs]
    if required <= len(given) <= total and unknown:
        return InvalidArgumentError(
            f"unexpected inference input '{unknown[0]}' for model '{signature.name}'"
        )
    counts = f"{total}" if required == total else f"number of inputs between {required} and {total}"
    unit = " inputs" if required == total else ""
    # Triton prints a lone bracket where nothing is missing; clients' tests compare the text.
    missing_text = _quoted(missing) if missing else "]"
    return InvalidArgumentError(
        f"{_prefix(request)}expected {counts}{unit} but got {len(given)} inputs for model "
        f"'{signature.name}'. Got input(s) {_quoted(given)}, but missing required input(s) "
        f"{missing_text}. Please provide all required input(s)."
    )


def _quoted(names: Sequence[str]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"
