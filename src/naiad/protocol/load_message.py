"""Load requests of the gRPC API, whose files stay where they lie in the message."""

from collections.abc import Mapping
from typing import Final

from google.protobuf.message import DecodeError

from naiad.errors import InternalError
from naiad.protocol.pb.grpc_service import RepositoryModelLoadRequest
from naiad.protocol.wire import LENGTH, Bytes, Field, MalformedMessageError, read_fields

# Numbers of the fields: of the request, of an entry of its map, of the parameter.
_PARAMETERS: Final = 3
_KEY: Final = 1
_VALUE: Final = 2
_BYTES_PARAM: Final = 4

# Protobuf copies less in no time.
_MANY_BYTES: Final = 64 << 10


def read_load_request(
    data: Bytes, start: int
) -> tuple[RepositoryModelLoadRequest, Mapping[str, memoryview]]:
    """The message that fills ``data`` from ``start`` on.

    Returns:
        The message, where large files are missing, and those files by the keys of their parameters,
        as views of ``data``.

    Raises:
        InternalError: it is none; Triton's class and text for that.
    """
    rest = bytearray()
    files: dict[str, memoryview] = {}
    view = memoryview(data)
    try:
        for field in read_fields(data, start, len(data)):
            entry = view[field.start : field.end]
            if field.number == _PARAMETERS and len(entry) > _MANY_BYTES:
                key, content = _find_file(data, field)
                if key is not None and content is not None:
                    files[key] = content
                    continue
            rest += entry
        message = RepositoryModelLoadRequest.FromString(bytes(rest))
    except (MalformedMessageError, UnicodeDecodeError, DecodeError):
        raise InternalError("Unable to parse request") from None
    # Of a key that is given twice the last one counts, and a file that is so is not large.
    return message, {key: file for key, file in files.items() if key not in message.parameters}


def _find_file(data: Bytes, parameter: Field) -> tuple[str | None, memoryview | None]:
    """Key and content of a parameter that is a file in the usual order, else None."""
    fields = list(read_fields(data, parameter.content, parameter.end))
    if [(field.number, field.kind) for field in fields] != [(_KEY, LENGTH), (_VALUE, LENGTH)]:
        return None, None
    key, value = fields
    inner = list(read_fields(data, value.content, value.end))
    if [(field.number, field.kind) for field in inner] != [(_BYTES_PARAM, LENGTH)]:
        return None, None
    view = memoryview(data)
    return str(view[key.content : key.end], "utf-8"), view[inner[0].content : inner[0].end]
