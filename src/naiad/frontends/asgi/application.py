"""The application: scopes to heads, heads to handlers."""

from typing import Any

from naiad.frontends.asgi.call import Call
from naiad.frontends.asgi.lifespan import run_lifespan
from naiad.frontends.asgi.messages import Receive, Scope, Send, join_headers, request_path
from naiad.frontends.byte_budget import ByteBudget
from naiad.frontends.rest.api import build_routes
from naiad.frontends.rest.head import RequestHead
from naiad.frontends.rest.limits import check_body
from naiad.frontends.rest.long_work import LongWork
from naiad.frontends.rest.options import RestOptions
from naiad.frontends.rest.response import HttpError
from naiad.frontends.rest.router import Router
from naiad.frontends.serving import ServingEngine
from naiad.protocol.forwarded_headers import select_headers


class AsgiApplication:
    """Serves the v2 protocol's HTTP API over a running engine, in whatever host calls it.

    Framing, keep-alive and the time that a client may take are the host's business. Belongs to the
    event loop that runs the engine.
    """

    def __init__(
        self, engine: ServingEngine[Any], options: RestOptions, budget: ByteBudget
    ) -> None:
        self._engine = engine
        self._options = options
        self._budget = budget
        self._long_work = LongWork(options.max_input_bytes)
        self._router = Router(build_routes(engine, options, self._long_work), options.restrictions)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or follow the host's life.

        Raises:
            ValueError: the scope is of another protocol, which tells a host that it is not spoken.
        """
        if scope["type"] == "lifespan":
            await run_lifespan(receive, send, self._start, self.close)
        elif scope["type"] == "http":
            call = Call(receive, send, self._options, self._budget)
            head = self._read_head(scope)
            await call.run(head, scope["method"], self._engine.now_ns)
        else:
            raise ValueError(f"Naiad speaks HTTP and no {scope['type']}")

    async def close(self) -> None:
        """End what helps with large bodies; the engine goes on."""
        self._long_work.close()

    async def _start(self) -> None:
        """The engine runs already."""

    def _read_head(self, scope: Scope) -> RequestHead:
        head = RequestHead()
        headers = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
        head.headers = join_headers(headers)
        pattern = self._options.header_forward_pattern
        if pattern is not None:
            head.forwarded = select_headers(headers, pattern)
        self._router.resolve(scope["method"], request_path(scope), head)
        if head.denial is None:
            try:
                check_body(head, self._options, _content_length(head))
            except HttpError as error:
                head.refusal = error.response()
        return head


def _content_length(head: RequestHead) -> int | None:
    text = head.headers.get(b"content-length")
    if text is None or b"transfer-encoding" in head.headers:
        return None
    if not text.isdigit() or len(text) > 18:
        raise HttpError(400, "Bad Request: the Content-Length is no number")
    return int(text)
