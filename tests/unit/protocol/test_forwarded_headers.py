import pytest

from naiad.errors import InvalidArgumentError
from naiad.inference.request import InferRequest
from naiad.protocol.forwarded_headers import (
    compile_forward_pattern,
    forward_headers,
    select_headers,
)


def make_request() -> InferRequest:
    return InferRequest("", {}, None, print)


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("my_header", "MY_HEADER", True),
        ("header", "my_header_1", True),
        ("^header", "my_header_1", False),
        ("(?-i)MY_HEADER", "MY_HEADER", True),
        ("(?-i)MY_HEADER", "my_header", False),
        ("header_(1|2)", "header_3", False),
        (".*", "anything", True),
    ],
)
def test_a_pattern_is_found_anywhere_in_any_case(pattern: str, name: str, *, matches: bool) -> None:
    selected = select_headers([(name.encode(), b"x")], compile_forward_pattern(pattern))
    assert selected == ({name: "x"} if matches else {})


@pytest.mark.parametrize("pattern", ["(", "a(?-i)b", "*"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="is not a regular expression"):
        compile_forward_pattern(pattern)


def test_values_are_text_whatever_their_bytes() -> None:
    headers = [(b"a", "é".encode()), (b"b", b"\xe9")]
    assert select_headers(headers, compile_forward_pattern(".")) == {"a": "é", "b": "é"}


def test_headers_become_parameters_over_those_of_the_body() -> None:
    request = make_request()
    forward_headers(request, {"X": "1"})
    assert request.parameters == {"X": "1"}
    request.parameters = {"X": 5, "other": True}
    forward_headers(request, {"X": "1"})
    assert request.parameters == {"X": "1", "other": True}


@pytest.mark.parametrize(
    "name",
    [
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "Priority",
        "timeout",
        "headers",
        "binary_data_output",
        "triton_enable_empty_final_response",
    ],
)
def test_reserved_names_are_not_forwarded(name: str) -> None:
    request = make_request()
    with pytest.raises(InvalidArgumentError) as caught:
        forward_headers(request, {"ok": "1", name: "2"})
    assert caught.value.message == (
        f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
    )
    assert request.parameters is None
