"""Inference responses of the v2 protocol as JSON, with or without a binary tail."""

from collections.abc import Generator, Mapping, Sequence
from typing import Final

import numpy as np
import orjson

from naiad.inference.datatypes import BYTES
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor
from naiad.protocol.binary_data import encode_tensor
from naiad.protocol.classification import classify
from naiad.protocol.json_data import encode_data
from naiad.protocol.json_text import Buffer
from naiad.protocol.output_data import NOTHING, EncodedData, encode_large_outputs, write_region
from naiad.protocol.requested_outputs import AS_BINARY, OutputOptions, RequestedOutputs

# A model with free dims can answer in any number of shapes.
_MAX_CACHED_ENTRIES: Final = 1024


class InferResponseEncoder:
    """Encodes the responses of one model version, keeping what they have in common."""

    __slots__ = ("_entries", "_has_batch_axis", "_head", "_labels")

    def __init__(
        self,
        model_name: str,
        model_version: int,
        labels: Mapping[str, Sequence[str]],
        *,
        has_batch_axis: bool,
    ) -> None:
        self._head = (
            b'"model_name":' + orjson.dumps(model_name) + b',"model_version":"%d"' % model_version
        )
        self._labels = labels
        self._has_batch_axis = has_batch_axis
        self._entries: dict[tuple[str, str, tuple[int, ...]], tuple[bytes, int]] = {}

    def fits(self, labels: Mapping[str, Sequence[str]], *, has_batch_axis: bool) -> bool:
        """Whether it was made of these very labels; a reloaded model has others."""
        return labels is self._labels and has_batch_axis is self._has_batch_axis

    def encode(
        self, response: InferResponse, outputs: RequestedOutputs
    ) -> tuple[bytes, list[Buffer], int]:
        """Encode a response that is not an error.

        Args:
            response: its tensors are not copied; keep them unchanged until the bytes are sent.
            outputs: what ``decode_infer_request`` returned with the request.

        Returns:
            The JSON, the buffers of the binary tail, and their length. An empty tail means that
            the answer is plain JSON.

        Raises:
            InvalidArgumentError: an output can not be sent in the way that the request asked for.
            InternalError: an output does not fit into the shared memory given for it.
        """
        parts, tail, tail_bytes = self._encode_parts(response, outputs, NOTHING)
        return b"".join(parts), tail, tail_bytes

    def encode_in_steps(
        self, response: InferResponse, outputs: RequestedOutputs
    ) -> Generator[None, None, tuple[list[Buffer], list[Buffer], int]]:
        """The same as ``encode``, pausing now and then; the JSON comes in pieces."""
        encoded = yield from encode_large_outputs(response, outputs)
        return self._encode_parts(response, outputs, encoded)

    def _encode_parts(
        self,
        response: InferResponse,
        outputs: RequestedOutputs,
        encoded: EncodedData,
    ) -> tuple[list[Buffer], list[Buffer], int]:
        """JSON and tail; ``encoded`` has the data of outputs that were encoded before."""
        head = b'{"id":%b,' % orjson.dumps(response.request_id) if response.request_id else b"{"
        parts: list[Buffer] = [head, self._head]
        if response.parameters:
            parts.append(b',"parameters":' + orjson.dumps(response.parameters))
        parts.append(b',"outputs":[')
        tail: list[Buffer] = []
        tail_bytes = 0
        by_name = outputs.by_name
        separator = b""
        for tensor in response.outputs:
            options = outputs.default if by_name is None else by_name[tensor.name]
            parts.append(separator)
            separator = b","
            if options is AS_BINARY and tensor.datatype is not BYTES:
                entry, size = self._binary_entry(tensor)
                parts.append(entry)
                if size:
                    tail.append(tensor.data.reshape(-1).view(np.uint8).data)
                    tail_bytes += size
            elif tensor.name in encoded:
                tail_bytes += _place(tensor, options, encoded[tensor.name], parts, tail)
            else:
                tail_bytes += self._encode_special(tensor, options, parts, tail)
        parts.append(b"]}")
        return parts, tail, tail_bytes

    def _binary_entry(self, tensor: Tensor) -> tuple[bytes, int]:
        """The JSON of an output whose bytes are in the tail, and how many there are."""
        key = (tensor.name, tensor.datatype.name, tuple(tensor.shape))
        cached = self._entries.get(key)
        if cached is None:
            size = tensor.data.nbytes
            cached = (_entry_head(tensor) + _binary_size(size), size)
            if len(self._entries) >= _MAX_CACHED_ENTRIES:
                self._entries.clear()
            self._entries[key] = cached
        return cached

    def _encode_special(
        self, tensor: Tensor, options: OutputOptions, parts: list[Buffer], tail: list[Buffer]
    ) -> int:
        """Any output but a plain binary one; returns what it adds to the tail, in bytes."""
        if options.classification:
            tensor = classify(
                tensor,
                options.classification,
                self._labels.get(tensor.name, ()),
                has_batch_axis=self._has_batch_axis,
            )
        parts.append(_entry_head(tensor))
        if options.region is not None:
            write_region(tensor, options.region)
            parts.append(b"}")
            return 0
        if not options.is_binary:
            parts.append(b',"data":' + encode_data(tensor) + b"}")
            return 0
        data, size = encode_tensor(tensor.datatype, tensor.data)
        parts.append(_binary_size(size))
        if size:
            tail.append(data)
        return size


def _place(
    tensor: Tensor,
    options: OutputOptions,
    pieces: Sequence[Buffer],
    parts: list[Buffer],
    tail: list[Buffer],
) -> int:
    """Put an output whose data is encoded into JSON or tail; returns what it adds to the tail."""
    parts.append(_entry_head(tensor))
    if options.region is not None:
        parts.append(b"}")
        return 0
    if not options.is_binary:
        parts += (b',"data":', *pieces, b"}")
        return 0
    size = sum(map(len, pieces))
    parts.append(_binary_size(size))
    tail += pieces
    return size


def _entry_head(tensor: Tensor) -> bytes:
    shape = ",".join(map(str, tensor.shape))
    return b'{"name":%b,"datatype":"%b","shape":[%b]' % (
        orjson.dumps(tensor.name),
        tensor.datatype.name.encode(),
        shape.encode(),
    )


def _binary_size(size: int) -> bytes:
    return b',"parameters":{"binary_data_size":%d}}' % size
