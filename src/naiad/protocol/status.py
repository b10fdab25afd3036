"""The one table from error class to status: HTTP's number and gRPC's name.

Source: ``HttpCodeFromError`` in Triton's http_server.cc and ``GrpcStatusUtil`` in its gRPC server.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from naiad.errors import (
    AlreadyExistsError,
    CancelledError,
    InternalError,
    InvalidArgumentError,
    NaiadError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
    UnknownError,
    UnsupportedError,
)


@dataclass(frozen=True, slots=True)
class Status:
    """One outcome in the words of both protocols.

    Attributes:
        http: status code of the HTTP answer.
        grpc: name of the gRPC status code, as in ``grpc.StatusCode``.
    """

    http: int
    grpc: str


# 400, not 409 or 499, for "already exists" and "cancelled": Triton maps every code that it does
# not name to 400, and clients match on it. Permission denied is ours; 403 is what Triton answers
# for a restricted API.
STATUS_BY_ERROR: Final[Mapping[type[NaiadError], Status]] = MappingProxyType(
    {
        NaiadError: Status(400, "UNKNOWN"),
        UnknownError: Status(400, "UNKNOWN"),
        InternalError: Status(500, "INTERNAL"),
        NotFoundError: Status(404, "NOT_FOUND"),
        InvalidArgumentError: Status(400, "INVALID_ARGUMENT"),
        UnavailableError: Status(503, "UNAVAILABLE"),
        UnsupportedError: Status(501, "UNIMPLEMENTED"),
        AlreadyExistsError: Status(400, "ALREADY_EXISTS"),
        CancelledError: Status(400, "CANCELLED"),
        PermissionDeniedError: Status(403, "PERMISSION_DENIED"),
    }
)


def status_of(error: NaiadError) -> Status:
    """The status of ``error``, or of the nearest class that it derives from."""
    for cls in type(error).__mro__:
        status = STATUS_BY_ERROR.get(cls)
        if status is not None:
            return status
    raise AssertionError("NaiadError itself is in the table")
