"""Errors on their way through the channel: Triton's codes there, classes here."""

from typing import Final

from naiad.backends.python.stub.naiad_stub.wire import WireError
from naiad.errors import (
    AlreadyExistsError,
    CancelledError,
    InternalError,
    InvalidArgumentError,
    NaiadError,
    NotFoundError,
    UnavailableError,
    UnknownError,
    UnsupportedError,
)

# By the number of TRITONSERVER_Error_Code.
_CLASSES: Final = (
    UnknownError,
    InternalError,
    NotFoundError,
    InvalidArgumentError,
    UnavailableError,
    UnsupportedError,
    AlreadyExistsError,
    CancelledError,
)
_CODES: Final = {kind: code for code, kind in enumerate(_CLASSES)}


def error_from_wire(error: WireError) -> NaiadError:
    """The error that a model answered with."""
    kind = _CLASSES[error.code] if error.code < len(_CLASSES) else UnknownError
    return kind(error.message)


def error_to_wire(error: NaiadError) -> WireError:
    """An error as a model sees it; one that Triton lacks a code for is unknown there."""
    return WireError(_CODES.get(type(error), 0), error.message)
