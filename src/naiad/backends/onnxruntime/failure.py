"""onnxruntime's exceptions in Triton's words."""

import re
from typing import Final

from onnxruntime.capi.onnxruntime_pybind11_state import (
    EPFail,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NoModel,
    NoSuchFile,
    RuntimeException,
)
from onnxruntime.capi.onnxruntime_pybind11_state import (
    NotImplemented as OrtNotImplemented,
)

from naiad.errors import InternalError

# Its exceptions have no common class of their own. RuntimeError and ValueError come from its
# Python layer: a value it can't convert, a missing input.
ORT_FAILURES: Final[tuple[type[Exception], ...]] = (
    EPFail,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NoModel,
    NoSuchFile,
    OrtNotImplemented,
    RuntimeException,
    RuntimeError,
    ValueError,
)

_PREFIX: Final = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : ", re.ASCII)
_FAIL: Final = "1"


def to_internal_error(error: Exception) -> InternalError:
    """The error that Triton answers: ``onnx runtime error <code>: <text>``."""
    text = str(error)
    match = _PREFIX.match(text)
    if match is None:
        return InternalError(f"onnx runtime error {_FAIL}: {text}")
    return InternalError(f"onnx runtime error {match[1]}: {text[match.end() :]}")
