"""Health routes."""

from typing import Any

from naiad.access.restricted_apis import Api
from naiad.errors import NaiadError, NotFoundError
from naiad.frontends.rest.exchange import Exchange
from naiad.frontends.rest.response import (
    TEXT,
    Response,
    error_response,
    format_head,
    naiad_error_response,
)
from naiad.frontends.rest.router import MODEL, Route
from naiad.frontends.serving import ServingEngine


class HealthHandlers:
    """Answers whether the server and its models can take requests."""

    def __init__(self, engine: ServingEngine[Any]) -> None:
        self._engine = engine
        self._yes = Response(format_head(200, TEXT), b"")
        self._no = Response(format_head(400, TEXT), b"")
        self._model_not_ready = error_response(400, "Model version not ready", TEXT)

    def routes(self) -> list[Route]:
        """The routes of this noun."""
        return [
            Route("/v2/health/live", {"GET": self.live}, TEXT, api=Api.HEALTH),
            Route("/v2/health/ready", {"GET": self.ready}, TEXT, api=Api.HEALTH),
            Route(MODEL + "/ready", {"GET": self.model_ready}, TEXT, api=Api.HEALTH),
        ]

    def live(self, exchange: Exchange) -> None:
        """Whether the server answers at all."""
        exchange.respond(self._yes if self._engine.is_live() else self._no)

    def ready(self, exchange: Exchange) -> None:
        """Whether traffic should come here."""
        exchange.respond(self._yes if self._engine.is_ready() else self._no)

    def model_ready(self, exchange: Exchange) -> None:
        """Whether a model version serves; 404 where there is none, as newer Tritons say."""
        head = exchange.head
        try:
            self._engine.find(head.model_name, head.version)
        except NotFoundError as error:
            exchange.respond(naiad_error_response(error, TEXT))
            return
        except NaiadError:
            exchange.respond(self._model_not_ready)
            return
        # A version that is loaded may still have no instance that can run.
        is_ready = self._engine.is_model_ready(head.model_name, head.version)
        exchange.respond(self._yes if is_ready else self._model_not_ready)
