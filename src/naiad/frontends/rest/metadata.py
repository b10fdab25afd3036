"""Routes that describe the server and its models: metadata, config, statistics."""

from typing import Any

import orjson

from naiad.access.restricted_apis import Api
from naiad.errors import NaiadError
from naiad.frontends.rest.exchange import Exchange
from naiad.frontends.rest.response import JSON, Response, format_head, naiad_error_response
from naiad.frontends.rest.router import MODEL, Route
from naiad.frontends.serving import ServingEngine
from naiad.model_config.json_format import config_to_json
from naiad.protocol.v2_metadata import (
    encode_model_metadata,
    encode_server_metadata,
    encode_statistics,
)


class MetadataHandlers:
    """Answers what the server and its models are and have done."""

    def __init__(self, engine: ServingEngine[Any]) -> None:
        self._engine = engine

    def routes(self) -> list[Route]:
        """The routes of this noun; ``/v2/models/stats`` hides a model of that name."""
        return [
            Route("/v2", {"GET": self.server}, api=Api.METADATA),
            Route("/v2/models/stats", {"GET": self.statistics}, api=Api.STATISTICS),
            Route(MODEL, {"GET": self.model}, api=Api.METADATA),
            Route(MODEL + "/config", {"GET": self.config}, api=Api.MODEL_CONFIG),
            Route(MODEL + "/stats", {"GET": self.statistics}, api=Api.STATISTICS),
        ]

    def server(self, exchange: Exchange) -> None:
        """Name, version and extensions of the server."""
        engine = self._engine
        _respond(
            exchange,
            encode_server_metadata(engine.server_id, engine.server_version, engine.extensions),
        )

    def model(self, exchange: Exchange) -> None:
        """Names, datatypes and shapes of a model."""
        head = exchange.head
        try:
            metadata = self._engine.model_metadata(head.model_name, head.version)
        except NaiadError as error:
            exchange.respond(naiad_error_response(error))
            return
        _respond(exchange, encode_model_metadata(metadata))

    def config(self, exchange: Exchange) -> None:
        """The config of a model, with everything that was completed."""
        head = exchange.head
        try:
            config = self._engine.model_config(head.model_name, head.version)
        except NaiadError as error:
            exchange.respond(naiad_error_response(error))
            return
        _respond(exchange, orjson.dumps(config_to_json(config)))

    def statistics(self, exchange: Exchange) -> None:
        """The counters of one model or of all."""
        head = exchange.head
        try:
            models = self._engine.statistics(head.model_name, head.version)
        except NaiadError as error:
            exchange.respond(naiad_error_response(error))
            return
        counted = [(model.name, model.version, model.statistics) for model in models]
        _respond(exchange, encode_statistics(counted))


def _respond(exchange: Exchange, body: bytes) -> None:
    exchange.respond(Response(format_head(200, JSON), body))
