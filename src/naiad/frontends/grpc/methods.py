"""What can be called, and by whom."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from naiad.frontends.grpc.call import Call

UnaryHandler = Callable[["Call", "bytes | memoryview", int], None]


class Receiver(Protocol):
    """The server's side of a streaming call."""

    def on_message(self, data: "bytes | memoryview", start: int) -> None:
        """A message of the client, which fills ``data`` from ``start`` on."""
        ...

    def on_half_close(self) -> None:
        """The client sends no more."""
        ...

    def on_writable(self) -> None:
        """Everything that was sent has left, or most of it."""
        ...


StreamHandler = Callable[["Call"], Receiver]


class Method:
    """One method of a service.

    Attributes:
        path: as HTTP/2 names it.
        category: what restrictions call it; empty where there is no restriction for it.
        unary: answers one message with one; None for a streaming method.
        stream: begins a streaming call; None for a unary method.
        is_packed: its answers are compressed where the options say so.
        restriction: the metadata key and value that a call must bring.
    """

    __slots__ = ("category", "is_packed", "path", "restriction", "stream", "unary")

    def __init__(
        self,
        path: str,
        category: str,
        *,
        unary: UnaryHandler | None = None,
        stream: StreamHandler | None = None,
        is_packed: bool = False,
    ) -> None:
        self.path = path.encode()
        self.category = category
        self.unary = unary
        self.stream = stream
        self.is_packed = is_packed
        self.restriction: tuple[bytes, bytes] | None = None


RESTRICTION_PREFIX = "triton-grpc-protocol-"


def index_methods(
    methods: Iterable[Method], restrictions: Mapping[str, tuple[str, str]]
) -> dict[bytes, Method]:
    """Methods by path, restricted as the options say."""
    by_path: dict[bytes, Method] = {}
    for method in methods:
        restriction = restrictions.get(method.category)
        if restriction is not None:
            key, value = restriction
            method.restriction = (f"{RESTRICTION_PREFIX}{key}".lower().encode(), value.encode())
        by_path[method.path] = method
    return by_path
