"""What a head says about its body, held against the limits before anything is read."""

import re
from typing import TYPE_CHECKING, Final

from naiad.frontends.rest.response import TEXT, Response, error_response, wrong_header_length
from naiad.protocol.json_text import LIMIT_ADVICE

if TYPE_CHECKING:
    from naiad.frontends.rest.head import RequestHead
    from naiad.frontends.rest.options import RestOptions

_HEADER_LENGTH: Final = re.compile(rb"[+-]?[0-9]{1,18}")


def check_body(head: "RequestHead", options: "RestOptions", content_length: int | None) -> None:
    """Put the length of the JSON part into ``head``, or the refusal of its body.

    Args:
        head: its route is known.
        options: the limits.
        content_length: of the body; None where it is not known yet.
    """
    limit = options.max_body_bytes
    if content_length is not None and content_length > limit:
        what = "body" if head.has_tail else "JSON size"
        head.refusal = error_response(
            413,
            f"request {what} of {content_length} bytes exceeds the maximum allowed input size of "
            f"{limit} bytes",
        )
        return
    # tritonclient sends the header along with whatever it asks after an inference.
    text = head.headers.get(b"inference-header-content-length") if head.has_tail else None
    limit = options.max_input_bytes
    small = head.max_json_bytes
    if small is not None and content_length is not None and content_length > small:
        head.refusal = error_response(
            413,
            f"request JSON size of {content_length} bytes exceeds the {small} bytes that this "
            "route takes; it carries no tensors",
        )
        return
    if text is None:
        if content_length is not None and content_length > limit and not head.is_large:
            head.refusal = _too_large(
                f"request JSON size of {content_length} bytes exceeds the maximum allowed input "
                f"size of {limit} bytes"
            )
        return
    if _HEADER_LENGTH.fullmatch(text) is None:
        head.refusal = error_response(
            400,
            f"Unable to parse Inference-Header-Content-Length, got: {text.decode('latin-1')}",
            TEXT,
        )
        return
    if head.is_compressed:
        return  # a length of the content, which nobody knows yet
    head.header_length = int(text)
    if content_length is None:
        return
    head.refusal = check_header_length(head, content_length)
    if head.header_length == 0 and content_length > limit:
        head.refusal = _too_large(
            f"Raw input has a byte_size ({content_length} bytes) that exceeds the maximum allowed "
            f"value of {limit} bytes"
        )


def check_header_length(head: "RequestHead", body_bytes: int) -> Response | None:
    """The refusal of a JSON part that can not lie in a body of ``body_bytes``, or None."""
    if head.header_length is None or 0 <= head.header_length <= body_bytes:
        return None
    return wrong_header_length(head.header_length, body_bytes).response()


def max_body_bytes(head: "RequestHead", options: "RestOptions") -> int:
    """What a body of unknown length may grow to."""
    if head.max_json_bytes is not None:
        return head.max_json_bytes
    is_small = head.header_length is None and not head.is_large
    return options.max_input_bytes if is_small else options.max_body_bytes


def _too_large(what: str) -> Response:
    return error_response(400, f"{what}. {LIMIT_ADVICE}")
