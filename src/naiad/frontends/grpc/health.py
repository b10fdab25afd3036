"""Whether the server and its models are there: Triton's methods, and the health service."""

from typing import TYPE_CHECKING, Any

from naiad.access.restricted_apis import Api
from naiad.frontends.grpc.infer import SERVICE
from naiad.frontends.grpc.messages import answered_by, parse
from naiad.frontends.grpc.methods import Method
from naiad.frontends.serving import ServingEngine
from naiad.protocol.pb.grpc_service import (
    ModelReadyRequest,
    ModelReadyResponse,
    ServerLiveRequest,
    ServerLiveResponse,
    ServerReadyRequest,
    ServerReadyResponse,
)
from naiad.protocol.pb.health import HealthCheckRequest, HealthCheckResponse
from naiad.protocol.v2_proto import parse_version

if TYPE_CHECKING:
    from naiad.frontends.grpc.call import Call

_HEALTH_SERVICE = "/grpc.health.v1.Health/"


class HealthHandlers:
    """Answers from the state of the engine."""

    def __init__(self, engine: ServingEngine[Any]) -> None:
        self._engine = engine
        self._watches: set[Watch] = set()

    def methods(self) -> list[Method]:
        """The methods of this noun."""
        return [
            Method(
                f"{SERVICE}ServerLive",
                Api.HEALTH,
                unary=answered_by(ServerLiveRequest, self._server_live),
            ),
            Method(
                f"{SERVICE}ServerReady",
                Api.HEALTH,
                unary=answered_by(ServerReadyRequest, self._server_ready),
            ),
            Method(
                f"{SERVICE}ModelReady",
                Api.HEALTH,
                unary=answered_by(ModelReadyRequest, self._model_ready),
            ),
            Method(
                f"{_HEALTH_SERVICE}Check",
                Api.HEALTH,
                unary=answered_by(HealthCheckRequest, self._check),
            ),
            Method(f"{_HEALTH_SERVICE}Watch", Api.HEALTH, stream=self._watch),
        ]

    def tell_watches(self) -> None:
        """Send those who watch what has changed; called about once a second."""
        for watch in tuple(self._watches):
            watch.tell(self._status())

    def _server_live(self, request: ServerLiveRequest) -> ServerLiveResponse:
        return ServerLiveResponse(live=self._engine.is_live())

    def _server_ready(self, request: ServerReadyRequest) -> ServerReadyResponse:
        return ServerReadyResponse(ready=self._engine.is_ready())

    def _model_ready(self, request: ModelReadyRequest) -> ModelReadyResponse:
        version = parse_version(request.version)
        return ModelReadyResponse(ready=self._engine.is_model_ready(request.name, version))

    def _check(self, request: HealthCheckRequest) -> HealthCheckResponse:
        return self._status()

    def _watch(self, call: "Call") -> "Watch":
        return Watch(self, call)

    def add(self, watch: "Watch") -> None:
        """Someone watches."""
        self._watches.add(watch)
        watch.tell(self._status())

    def remove(self, watch: "Watch") -> None:
        """They do no longer."""
        self._watches.discard(watch)

    def _status(self) -> HealthCheckResponse:
        statuses = HealthCheckResponse.ServingStatus
        is_ready = self._engine.is_ready()
        return HealthCheckResponse(status=statuses.SERVING if is_ready else statuses.NOT_SERVING)


class Watch:
    """One call that hears of every change."""

    def __init__(self, handlers: HealthHandlers, call: "Call") -> None:
        self._handlers = handlers
        self._call = call
        self._told: bytes | None = None
        call.on_lost = lambda: handlers.remove(self)

    @property
    def is_idle(self) -> bool:
        """A server that stops does not wait for those who watch it."""
        return True

    def on_message(self, data: bytes | memoryview, start: int) -> None:
        """The one request."""
        parse(HealthCheckRequest, data, start)

    def on_half_close(self) -> None:
        """Begin, with the state as it is."""
        self._handlers.add(self)

    def on_writable(self) -> None:
        """Nothing waits for that."""

    def tell(self, status: HealthCheckResponse) -> None:
        """Send the state if it is another one."""
        data = status.SerializeToString()
        if data != self._told:
            self._told = data
            self._call.send((data,), len(data))
