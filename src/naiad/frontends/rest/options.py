"""Settings of the API."""

import re
from dataclasses import dataclass, field

from naiad.access.restricted_apis import RestrictedApis
from naiad.protocol.v2_json import DEFAULT_MAX_INPUT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class RestOptions:
    """What the API accepts, whatever carries it.

    Attributes:
        max_input_bytes: of JSON text, of one tensor given as JSON, and of a raw request.
        max_body_bytes: of any body.
        max_unsent_bytes: of a stream of answers that its client leaves unread, before the request
            is cancelled.
        restrictions: what needs a secret header.
        header_forward_pattern: headers whose name has a match become parameters of a request.
    """

    max_input_bytes: int = DEFAULT_MAX_INPUT_BYTES
    max_body_bytes: int = 2 << 30
    max_unsent_bytes: int = 16 << 20
    restrictions: RestrictedApis = field(default_factory=RestrictedApis)
    header_forward_pattern: re.Pattern[str] | None = None
