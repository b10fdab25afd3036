"""The data of outputs that takes long to encode or to place, in steps; the same for both APIs."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from naiad.errors import InternalError
from naiad.inference.datatypes import BYTES
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor
from naiad.protocol.binary_data import encode_elements_in_steps, encode_tensor
from naiad.protocol.json_data import encode_data_in_steps
from naiad.protocol.json_text import Buffer
from naiad.protocol.requested_outputs import OutputOptions, RequestedOutputs

# About as many as take a millisecond to encode.
_MANY_ELEMENTS: Final = 8192
# What is copied in half a millisecond, into memory that nobody has touched yet.
_STEP_BYTES: Final = 1 << 20

# The data of outputs by name, as it was encoded in steps; of those in shared memory none is left.
EncodedData = Mapping[str, Sequence[Buffer]]
NOTHING: Final[EncodedData] = MappingProxyType({})


def has_large_output(response: InferResponse, outputs: RequestedOutputs) -> bool:
    """Whether encoding a response would hold the event loop, so that steps are better."""
    for tensor in response.outputs:  # noqa: SIM110 - asked of every response; no generator for that
        if _is_large(tensor, outputs.options(tensor.name)):
            return True
    return False


def encode_large_outputs(
    response: InferResponse, outputs: RequestedOutputs
) -> Generator[None, None, EncodedData]:
    """The data of the outputs that take long, encoded in steps; the others are left.

    Raises:
        InvalidArgumentError: JSON can not carry one.
        InternalError: one does not fit into the shared memory given for it.
    """
    encoded: dict[str, list[Buffer]] = {}
    for tensor in response.outputs:
        options = outputs.options(tensor.name)
        if _is_large(tensor, options):
            encoded[tensor.name] = yield from encode_output_in_steps(tensor, options)
    return encoded


def _is_large(tensor: Tensor, options: OutputOptions) -> bool:
    if options.classification:
        return False
    if tensor.datatype is BYTES or not (options.is_binary or options.region is not None):
        return tensor.data.size > _MANY_ELEMENTS
    return options.region is not None and tensor.data.nbytes > _STEP_BYTES


def encode_output_in_steps(
    tensor: Tensor, options: OutputOptions
) -> Generator[None, None, list[Buffer]]:
    """The pieces of an output's data, or none where they were written into shared memory.

    Raises:
        InvalidArgumentError: JSON can not carry it.
        InternalError: it does not fit into the shared memory given for it.
    """
    pieces: list[Buffer] = []
    for piece in _split(tensor, options):
        pieces.append(piece)
        yield
    if options.region is None:
        return pieces
    size = sum(map(len, pieces))
    _check_room(tensor, size, options.region)
    position = 0
    for piece in pieces:
        options.region[position : position + len(piece)] = piece
        position += len(piece)
        yield
    return []


def _split(tensor: Tensor, options: OutputOptions) -> Iterator[Buffer]:
    if options.region is None and not options.is_binary:
        yield from encode_data_in_steps(tensor)
    elif tensor.datatype is BYTES:
        yield from encode_elements_in_steps(tensor.data)
    else:
        data, size = encode_tensor(tensor.datatype, tensor.data)
        for start in range(0, size, _STEP_BYTES):
            yield memoryview(data)[start : start + _STEP_BYTES]


def write_region(tensor: Tensor, region: memoryview) -> None:
    """Write a small output into the shared memory given for it.

    Raises:
        InternalError: it does not fit.
    """
    data, size = encode_tensor(tensor.datatype, tensor.data)
    _check_room(tensor, size, region)
    region[:size] = data


def _check_room(tensor: Tensor, size: int, region: memoryview) -> None:
    if size > len(region):
        raise InternalError(
            "shared memory size specified with the request for output "
            f"'{tensor.name}' ({len(region)} bytes) should be at least {size} bytes to hold the "
            "results"
        )
