"""Large JSON requests, read in another process: what it sends back instead of the text.

Parsing holds Python's lock from the first byte to the last, so a large text would stop every other
request for as long. ``split_document`` runs elsewhere and turns each ``data`` into the bytes of its
tensor; ``join_document`` runs in the server and costs next to nothing. Between them is a head, the
document as JSON with a reference in place of each ``data``, and a payload that it refers to.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from naiad.errors import InvalidArgumentError, NaiadError
from naiad.inference.datatypes import BYTES
from naiad.protocol.binary_data import encode_list
from naiad.protocol.json_data import SeparateData, decode_data, encode_strings, flatten
from naiad.protocol.json_text import Buffer, wrong_type
from naiad.protocol.v2_json import check_json_size, declare_input, parse_infer_document

# What is left when the data is gone is read by the server itself, so it must stay small.
_MAX_HEAD_BYTES: Final = 256 << 10
# Where tensors start in the payload: a cache line.
_ALIGNMENT: Final = 64
_MEMBERS: Final = ("id", "inputs", "outputs", "parameters")
_INPUT_MEMBERS: Final = ("name", "datatype", "shape", "parameters")


class SplitDocument:
    """A request without its data, and the data.

    Attributes:
        head: JSON; read by ``join_document``.
        pieces: offset in the payload and bytes of every tensor.
        payload_bytes: what the payload needs.
    """

    __slots__ = ("head", "payload_bytes", "pieces")

    def __init__(self, head: bytes, pieces: list[tuple[int, Buffer]], payload_bytes: int) -> None:
        self.head = head
        self.pieces = pieces
        self.payload_bytes = payload_bytes

    @classmethod
    def of_error(cls, error: NaiadError) -> "SplitDocument":
        """What is wrong with the text, for ``join_document`` to raise."""
        return cls(_encode({"error": error.message}), [], 0)


class DocumentSplitter:
    """Collects the data of one document."""

    def __init__(self) -> None:
        self._pieces: list[tuple[int, Buffer]] = []
        self._payload_bytes = 0

    def add(self, data: Buffer) -> dict[str, Any]:
        """The reference to ``data`` in the payload, in place of the ``data`` of an input."""
        start = -(-self._payload_bytes // _ALIGNMENT) * _ALIGNMENT
        self._pieces.append((start, data))
        self._payload_bytes = start + len(data)
        return {"start": start, "size": len(data)}

    def finish(self, document: Any) -> SplitDocument:
        """The document, with references in it, and what they refer to.

        Raises:
            InvalidArgumentError: too much is left of it.
        """
        return SplitDocument(_encode_head(document), self._pieces, self._payload_bytes)


def split_document(text: Buffer, max_input_bytes: int) -> SplitDocument:
    """Parse the JSON of an inference request and take its data out.

    What is wrong with the text, or with one input's data, goes into the head and is raised by
    ``join_document`` or when the decoder comes to that input.
    """
    try:
        document = parse_infer_document(text, max_input_bytes)
        splitter = _InferSplitter(max_input_bytes)
        return splitter.finish(splitter.split(document))
    except NaiadError as error:
        return SplitDocument.of_error(error)


def join_document(head: bytes, payload: memoryview) -> Any:
    """The document of ``split_document``, with ``SeparateData`` as the ``data`` of each input.

    Args:
        head: as it came.
        payload: kept by the data, which are views of it.

    Raises:
        InvalidArgumentError: the text is no JSON.
    """
    joined = json.loads(head)
    error = joined.get("error")
    if error is not None:
        raise InvalidArgumentError(error)
    document = joined["document"]
    for entry in _entries(document):
        reference = entry.get("data")
        if reference is not None:
            entry["data"] = _join_data(reference, payload)
    return document


def _join_data(reference: dict[str, Any], payload: memoryview) -> SeparateData:
    error = reference.get("error")
    if error is not None:
        return SeparateData(error, payload[:0])
    start = reference["start"]
    return SeparateData(None, payload[start : start + reference["size"]])


class _InferSplitter(DocumentSplitter):
    """Collects the data of an inference request."""

    def __init__(self, max_input_bytes: int) -> None:
        super().__init__()
        self._max_input_bytes = max_input_bytes

    def split(self, document: Any) -> Any:
        """The document with references in place of the data, and without what nobody reads."""
        if type(document) is not dict:
            return None
        kept = {key: document[key] for key in _MEMBERS if key in document}
        if type(kept.get("inputs")) is list:
            kept["inputs"] = [self._split_input(entry) for entry in kept["inputs"]]
        elif "inputs" in kept:
            kept["inputs"] = None
        return kept

    def _split_input(self, entry: Any) -> Any:
        if type(entry) is not dict:
            return [] if type(entry) is list else None
        kept = {key: entry[key] for key in _INPUT_MEMBERS if key in entry}
        if "data" in entry:
            kept["data"] = self._refer(entry)
        return kept

    def _refer(self, entry: dict[str, Any]) -> dict[str, Any]:
        try:
            data = _encode_data(entry, self._max_input_bytes)
        except NaiadError as error:
            return {"error": error.message}
        return self.add(data)


def _encode_data(entry: dict[str, Any], max_input_bytes: int) -> Buffer:
    name, datatype, shape, count = declare_input(entry)
    check_json_size(name, datatype, count, max_input_bytes)
    data = entry["data"]
    if type(data) is not list:
        raise wrong_type("data", "array")
    if datatype is BYTES:
        return encode_list(encode_strings(*flatten(data)))
    return decode_data(data, datatype, shape, count, name).reshape(-1).view(np.uint8).data


def _entries(document: Any) -> Iterator[dict[str, Any]]:
    entries = document.get("inputs") if type(document) is dict else None
    for entry in entries or ():
        if type(entry) is dict:
            yield entry


def _encode_head(document: Any) -> bytes:
    head = _encode({"document": document})
    if len(head) > _MAX_HEAD_BYTES:
        raise InvalidArgumentError(
            f"the request's JSON has {len(head)} bytes besides its tensors or files, the limit "
            f"is {_MAX_HEAD_BYTES} bytes"
        )
    return head


def _encode(value: Any) -> bytes:
    # The standard library's, which writes NaN and integers of any size.
    return json.dumps(value, separators=(",", ":")).encode()
