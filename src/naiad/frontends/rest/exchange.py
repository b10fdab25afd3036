"""One request and the place for its answer, as handlers see them."""

from collections.abc import Callable, Sequence
from typing import Protocol

from naiad.frontends.rest.head import RequestHead
from naiad.frontends.rest.response import Response, error_response
from naiad.protocol.json_text import Buffer


class Carrier(Protocol):
    """What brings a request and takes its answer back: a connection, or an ASGI call."""

    def send(
        self,
        exchange: "Exchange",
        head: bytes,
        body: bytes,
        tail: Sequence[Buffer] = (),
        tail_bytes: int = 0,
    ) -> None:
        """Write the whole answer of ``exchange``; see `Exchange.send`."""
        ...

    def reserve(self, exchange: "Exchange", size: int) -> None:
        """Count more memory of ``exchange``; see `Exchange.reserve`."""
        ...

    def stream(self, exchange: "Exchange", head: bytes, data: bytes, *, ends: bool) -> bool:
        """Write more of the answer of ``exchange``; see `Exchange.stream`."""
        ...


class Exchange:
    """A request that waits for its answer.

    Attributes:
        head: method, route and headers.
        text: the body, or its JSON part where a header length was given. Only valid until the
            handler returns: the receive buffer is used again.
        tail: what follows the JSON part; kept alive by whoever holds a view of it.
        received_ns: when the request was complete, on the engine's clock.
        started_ns: when its first byte was there; the same for one that came in one piece.
        on_lost: called if the client goes away before it was answered, and forgotten then: it
            leads to the request and back here, and the body should not wait for the garbage
            collector.
    """

    __slots__ = ("_carrier", "head", "on_lost", "received_ns", "started_ns", "tail", "text")

    def __init__(
        self,
        carrier: Carrier,
        head: RequestHead,
        text: Buffer,
        tail: Buffer,
        received_ns: int,
    ) -> None:
        self._carrier = carrier
        self.head = head
        self.text = text
        self.tail = tail
        self.received_ns = received_ns
        self.started_ns = received_ns
        self.on_lost: Callable[[], None] | None = None

    def reserve(self, size: int) -> None:
        """Count memory that the request takes beside its body, until it is answered.

        Raises:
            UnavailableError: the server's budget is used up.
        """
        self._carrier.reserve(self, size)

    def respond(self, response: Response) -> None:
        """Answer; without effect if the client has gone."""
        self.on_lost = None
        self._carrier.send(self, response.head, response.body)

    def send(
        self, head: bytes, body: bytes, tail: Sequence[Buffer] = (), tail_bytes: int = 0
    ) -> None:
        """Answer with a binary tail; without effect if the client has gone.

        Args:
            head: status line and headers but the length, each line ended.
            body: sent before the tail.
            tail: sent without being joined where it is large; unchanged until it is sent.
            tail_bytes: its length.
        """
        self.on_lost = None
        self._carrier.send(self, head, body, tail, tail_bytes)

    def stream(self, head: bytes, data: bytes, *, ends: bool) -> bool:
        """Send an answer of unknown length piece by piece; without effect if the client has gone.

        Args:
            head: with the first piece, status line and headers, each line ended; empty later.
            data: sent at once.
            ends: this is the last piece.

        Returns:
            False where the client has left so much unread that the server should hold no more for
            it; what was sent until then, this piece too, will still reach it.
        """
        if ends:
            self.on_lost = None
        return self._carrier.stream(self, head, data, ends=ends)

    def lose(self) -> None:
        """The client went away."""
        on_lost, self.on_lost = self.on_lost, None
        if on_lost is not None:
            on_lost()

    def fail(self) -> None:
        """Answer for a handler that has a fault; it is in the log."""
        self.respond(error_response(500, "internal error; the server's log says more"))


Handler = Callable[[Exchange], None]
