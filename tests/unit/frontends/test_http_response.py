import json

from naiad.errors import NotFoundError
from naiad.frontends.rest.response import (
    JSON,
    TEXT,
    error_response,
    format_head,
    naiad_error_response,
)


def test_status_lines() -> None:
    assert format_head(200, JSON) == b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
    assert format_head(405, TEXT).startswith(b"HTTP/1.1 405 Not Allowed\r\n")


def test_errors_have_one_form() -> None:
    response = naiad_error_response(NotFoundError('no "m"\n'), TEXT)
    assert response.head.startswith(b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\n")
    assert json.loads(response.body) == {"error": 'no "m"\n'}


def test_text_that_no_encoding_holds_is_still_sent() -> None:
    assert json.loads(error_response(400, "a\udc80b").body) == {"error": "a?b"}
