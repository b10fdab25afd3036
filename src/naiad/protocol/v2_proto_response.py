"""Inference responses of the v2 protocol as protobuf messages, in parts that are not joined."""

from collections.abc import Generator, Mapping, Sequence
from typing import Final

import numpy as np

from naiad.inference.datatypes import BYTES
from naiad.inference.request import ParameterValue
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor
from naiad.protocol.binary_data import encode_tensor
from naiad.protocol.classification import classify
from naiad.protocol.json_text import Buffer
from naiad.protocol.output_data import NOTHING, EncodedData, encode_large_outputs, write_region
from naiad.protocol.pb.grpc_service import InferParameter, ModelInferResponse
from naiad.protocol.requested_outputs import AS_BINARY, OutputOptions, RequestedOutputs
from naiad.protocol.wire import encode_varint

FINAL_RESPONSE: Final = "triton_final_response"

# Tags of ModelInferResponse and ModelStreamInferResponse.
_ID: Final = b"\x1a"
_OUTPUTS: Final = b"\x2a"
_RAW_OUTPUT_CONTENTS: Final = b"\x32"
_ERROR_MESSAGE: Final = b"\x0a"
_INFER_RESPONSE: Final = b"\x12"

# A model with free dims can answer in any number of shapes.
_MAX_CACHED_ENTRIES: Final = 1024


class InferResponseEncoder:
    """Encodes the responses of one model version, keeping what they have in common."""

    __slots__ = ("_entries", "_has_batch_axis", "_head", "_labels", "_name")

    def __init__(
        self,
        model_name: str,
        model_version: int,
        labels: Mapping[str, Sequence[str]],
        *,
        has_batch_axis: bool,
    ) -> None:
        self._head = ModelInferResponse(
            model_name=model_name, model_version=str(model_version)
        ).SerializeToString()
        self._name = ModelInferResponse(model_name=model_name).SerializeToString()
        self._labels = labels
        self._has_batch_axis = has_batch_axis
        self._entries: dict[tuple[str, str, tuple[int, ...]], tuple[bytes, bytes]] = {}

    def fits(self, labels: Mapping[str, Sequence[str]], *, has_batch_axis: bool) -> bool:
        """Whether it was made of these very labels; a reloaded model has others."""
        return labels is self._labels and has_batch_axis is self._has_batch_axis

    def encode(
        self,
        response: InferResponse,
        outputs: RequestedOutputs,
        *,
        parameters: bytes = b"",
        encoded: EncodedData = NOTHING,
    ) -> tuple[list[Buffer], int]:
        """Encode a response that is not an error as a ``ModelInferResponse``.

        Args:
            response: its tensors are not copied; keep them unchanged until the bytes are sent.
            outputs: what ``InferRequestDecoder.decode`` returned with the request.
            parameters: fields to add, encoded.
            encoded: the data of outputs that were encoded before, by name.

        Returns:
            The buffers of the message, and their length.

        Raises:
            InvalidArgumentError: an output can not be sent in the way that the request asked for.
            InternalError: an output does not fit into the shared memory given for it.
        """
        head = self._head
        if response.request_id:
            head += _encode_text(_ID, response.request_id)
        if response.parameters:
            head += encode_parameters(response.parameters)
        if parameters:
            head += parameters
        raw: list[Buffer] = []
        raw_bytes = 0
        by_name = outputs.by_name
        for tensor in response.outputs:
            options = AS_BINARY if by_name is None else by_name[tensor.name]
            data: Sequence[Buffer]
            if options is AS_BINARY and tensor.datatype is not BYTES:
                entry, tag = self._entry(tensor)
                size = tensor.data.nbytes
                data = (tensor.data.reshape(-1).view(np.uint8).data,) if size else ()
            else:
                sent, data, size = self._encode_special(tensor, options, encoded)
                entry, tag = self._entry(sent)[0], _raw_tag(size)
            head += entry
            raw.append(tag)
            raw += data
            raw_bytes += len(tag) + size
        return [head, *raw], len(head) + raw_bytes

    def encode_in_steps(
        self, response: InferResponse, outputs: RequestedOutputs, *, is_streamed: bool
    ) -> Generator[None, None, tuple[list[Buffer], int]]:
        """The same as ``encode`` or ``encode_streamed``, pausing now and then."""
        encoded = yield from encode_large_outputs(response, outputs)
        if is_streamed:
            return self.encode_streamed(response, outputs, encoded=encoded)
        return self.encode(response, outputs, encoded=encoded)

    def encode_streamed(
        self,
        response: InferResponse,
        outputs: RequestedOutputs,
        *,
        encoded: EncodedData = NOTHING,
    ) -> tuple[list[Buffer], int]:
        """The same as a ``ModelStreamInferResponse``, with the flag of the last response.

        Raises:
            InvalidArgumentError: an output can not be sent in the way that the request asked for.
            InternalError: an output does not fit into the shared memory given for it.
        """
        final = _FINAL if response.is_final else _NOT_FINAL
        if response.is_final and not response.outputs:
            # Only says that nothing follows; Triton names the model and no version.
            parts: list[Buffer] = [self._bare(response.request_id) + final]
            size = len(parts[0])
        else:
            parts, size = self.encode(response, outputs, parameters=final, encoded=encoded)
        wrap = _INFER_RESPONSE + encode_varint(size)
        return [wrap, *parts], len(wrap) + size

    def encode_streamed_error(self, response: InferResponse, message: str) -> bytes:
        """A response of the model that is an error, as a ``ModelStreamInferResponse``."""
        final = _FINAL if response.is_final else _NOT_FINAL
        return _streamed_error(message, self._bare(response.request_id) + final)

    def _bare(self, request_id: str) -> bytes:
        return self._name + (_encode_text(_ID, request_id) if request_id else b"")

    def _entry(self, tensor: Tensor) -> tuple[bytes, bytes]:
        """An output without its contents, and what comes before its contents."""
        key = (tensor.name, tensor.datatype.name, tuple(tensor.shape))
        cached = self._entries.get(key)
        if cached is None:
            message = ModelInferResponse.InferOutputTensor(
                name=tensor.name, datatype=tensor.datatype.name, shape=tensor.shape
            ).SerializeToString()
            entry = _OUTPUTS + encode_varint(len(message)) + message
            cached = (entry, _raw_tag(0 if tensor.datatype is BYTES else tensor.data.nbytes))
            if len(self._entries) >= _MAX_CACHED_ENTRIES:
                self._entries.clear()
            self._entries[key] = cached
        return cached

    def _encode_special(
        self, tensor: Tensor, options: OutputOptions, encoded: EncodedData
    ) -> tuple[Tensor, Sequence[Buffer], int]:
        """Any output but a plain one: what is sent of it, its contents and their length."""
        pieces = encoded.get(tensor.name)
        if pieces is not None:
            return tensor, pieces, sum(map(len, pieces))
        if options.classification:
            tensor = classify(
                tensor,
                options.classification,
                self._labels.get(tensor.name, ()),
                has_batch_axis=self._has_batch_axis,
            )
        if options.region is not None:
            write_region(tensor, options.region)
            return tensor, (), 0
        data, size = encode_tensor(tensor.datatype, tensor.data)
        return tensor, (data,) if size else (), size


def encode_refusal(message: str, request_id: str) -> bytes:
    """The answer on a stream to a request that no model has seen."""
    return _streamed_error(message, _encode_text(_ID, request_id) if request_id else b"")


def encode_parameters(parameters: Mapping[str, ParameterValue]) -> bytes:
    """The field ``parameters`` of a response."""
    message = ModelInferResponse()
    for key, value in parameters.items():
        message.parameters[key].CopyFrom(_parameter(value))
    return message.SerializeToString(deterministic=True)


def _parameter(value: ParameterValue) -> InferParameter:
    if isinstance(value, bool):
        return InferParameter(bool_param=value)
    if isinstance(value, int):
        return InferParameter(int64_param=value)
    if isinstance(value, float):
        return InferParameter(double_param=value)
    return InferParameter(string_param=value)


def _streamed_error(message: str, infer_response: bytes) -> bytes:
    return (
        _encode_text(_ERROR_MESSAGE, message)
        + _INFER_RESPONSE
        + encode_varint(len(infer_response))
        + infer_response
    )


def _raw_tag(size: int) -> bytes:
    return _RAW_OUTPUT_CONTENTS + encode_varint(size)


def _encode_text(tag: bytes, text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    return tag + encode_varint(len(data)) + data


_FINAL: Final = encode_parameters({FINAL_RESPONSE: True})
_NOT_FINAL: Final = encode_parameters({FINAL_RESPONSE: False})
