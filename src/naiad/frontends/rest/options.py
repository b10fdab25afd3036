"""Settings of the API."""

from dataclasses import dataclass

from naiad.protocol.v2_json import DEFAULT_MAX_INPUT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class RestOptions:
    """What the API accepts, whatever carries it.

    Attributes:
        max_input_bytes: of JSON text, of one tensor given as JSON, and of a raw request.
        max_body_bytes: of any body.
    """

    max_input_bytes: int = DEFAULT_MAX_INPUT_BYTES
    max_body_bytes: int = 2 << 30
