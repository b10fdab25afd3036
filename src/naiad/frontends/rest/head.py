"""What handlers see of a request besides its body."""

from typing import TYPE_CHECKING

from naiad.protocol.compression import IDENTITY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from naiad.frontends.rest.exchange import Handler
    from naiad.frontends.rest.response import Response


class RequestHead:
    """The head of a request, once its route is known.

    Attributes:
        handler: answers the request.
        model_name: from the path, or the name of a region; empty where the route has none.
        version: from the path; -1 for the latest.
        headers: by name in lower case; repeated ones joined by a comma.
        is_large: the body may be as large as any, although it has no binary tail.
        has_tail: a binary tail may follow the JSON of the body.
        max_json_bytes: of a body without tensors; None for the option's limit.
        header_length: bytes of JSON before the binary tail; None where no length was given.
        refusal: the answer where the head alone shows that the request can not be taken.
        denial: what ``handler`` answers where a restricted API was asked without its header; a
            carrier need not read the body then.
        forwarded: headers that become parameters of an inference request, by their own spelling.
    """

    __slots__ = (
        "denial",
        "forwarded",
        "handler",
        "has_tail",
        "header_length",
        "headers",
        "is_large",
        "max_json_bytes",
        "model_name",
        "refusal",
        "version",
    )

    handler: "Handler"

    def __init__(self) -> None:
        self.model_name = ""
        self.version = -1
        self.headers: Mapping[bytes, bytes] = {}
        self.is_large = False
        self.has_tail = False
        self.max_json_bytes: int | None = None
        self.header_length: int | None = None
        self.refusal: Response | None = None
        self.denial: Response | None = None
        self.forwarded: Mapping[str, str] = {}

    @property
    def content_encoding(self) -> bytes:
        """What was done to the body; ``identity`` where nothing was."""
        return self.headers.get(b"content-encoding", IDENTITY).strip() or IDENTITY

    @property
    def is_compressed(self) -> bool:
        """Whether the body must be decompressed, or can not be read."""
        return b"content-encoding" in self.headers and self.content_encoding != IDENTITY
