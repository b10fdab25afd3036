import pytest

from naiad import errors
from naiad.errors import InvalidArgumentError, NaiadError
from naiad.protocol.json_text import MemberError
from naiad.protocol.status import STATUS_BY_ERROR, status_of

EXPECTED = {
    "UnknownError": (400, "UNKNOWN"),
    "InternalError": (500, "INTERNAL"),
    "NotFoundError": (404, "NOT_FOUND"),
    "InvalidArgumentError": (400, "INVALID_ARGUMENT"),
    "UnavailableError": (503, "UNAVAILABLE"),
    "UnsupportedError": (501, "UNIMPLEMENTED"),
    "AlreadyExistsError": (400, "ALREADY_EXISTS"),
    "CancelledError": (400, "CANCELLED"),
    "PermissionDeniedError": (403, "PERMISSION_DENIED"),
}


@pytest.mark.parametrize(("name", "expected"), EXPECTED.items())
def test_each_error_class_has_triton_s_status(name: str, expected: tuple[int, str]) -> None:
    status = status_of(getattr(errors, name)("text"))
    assert (status.http, status.grpc) == expected


def test_every_class_of_the_error_tree_is_in_the_table() -> None:
    tree = {cls for cls in vars(errors).values() if isinstance(cls, type)}
    tree = {cls for cls in tree if issubclass(cls, NaiadError)}
    assert tree == set(STATUS_BY_ERROR)


def test_a_class_that_is_not_in_the_table_takes_its_parent_s_status() -> None:
    assert status_of(MemberError("text")) == status_of(InvalidArgumentError("text"))
