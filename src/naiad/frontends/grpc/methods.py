"""What can be called, and by whom."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol

from naiad.access.restricted_apis import Api, RestrictedApis

if TYPE_CHECKING:
    from naiad.frontends.grpc.call import Call

UnaryHandler = Callable[["Call", "bytes | memoryview", int], None]


class Receiver(Protocol):
    """The server's side of a streaming call."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing that the client asked for is still to be answered."""
        ...

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
        api: what restrictions call it; None where there is no restriction for it.
        unary: answers one message with one; None for a streaming method.
        stream: begins a streaming call; None for a unary method.
        is_packed: its answers are compressed where the options say so.
        restriction: the metadata key and the secret that a call must bring.
    """

    __slots__ = ("api", "is_packed", "path", "restriction", "stream", "unary")

    def __init__(
        self,
        path: str,
        api: Api | None,
        *,
        unary: UnaryHandler | None = None,
        stream: StreamHandler | None = None,
        is_packed: bool = False,
    ) -> None:
        self.path = path.encode()
        self.api = api
        self.unary = unary
        self.stream = stream
        self.is_packed = is_packed
        self.restriction: tuple[bytes, str] | None = None


# Source: Triton's grpc_server.cc. Metadata keys are lower case, whatever the operator wrote.
_KEY_PREFIX: Final = "triton-grpc-protocol-"


def index_methods(methods: Iterable[Method], restrictions: RestrictedApis) -> dict[bytes, Method]:
    """Methods by path, restricted as the options say."""
    by_path: dict[bytes, Method] = {}
    for method in methods:
        needed = restrictions.headers.get(method.api) if method.api is not None else None
        if needed is not None:
            key, value = needed
            method.restriction = (f"{_KEY_PREFIX}{key}".lower().encode(), value)
        by_path[method.path] = method
    return by_path
