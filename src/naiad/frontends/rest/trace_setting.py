"""Routes of the trace extension."""

from typing import Any, Final

from naiad.access.restricted_apis import Api
from naiad.errors import NaiadError
from naiad.frontends.rest.exchange import Exchange
from naiad.frontends.rest.response import JSON, Response, format_head, naiad_error_response
from naiad.frontends.rest.router import Route
from naiad.frontends.serving import ServingEngine
from naiad.protocol.trace_setting import decode_trace_update, encode_trace_settings

_OK: Final = format_head(200, JSON)


class TraceSettingHandlers:
    """Shows and changes what is traced, of one model or of all."""

    def __init__(self, engine: ServingEngine[Any]) -> None:
        self._traces = engine.traces

    def routes(self) -> list[Route]:
        """The routes of this noun; a setting is of a model, never of one of its versions."""
        return [
            Route(
                "/v2[/models/{model}]/trace/setting",
                {"GET": self.query, "POST": self.update},
                api=Api.TRACE,
            )
        ]

    def query(self, exchange: Exchange) -> None:
        """What is traced."""
        try:
            values = self._traces.query(exchange.head.model_name)
        except NaiadError as error:
            exchange.respond(naiad_error_response(error))
        else:
            exchange.respond(Response(_OK, encode_trace_settings(values)))

    def update(self, exchange: Exchange) -> None:
        """Change it; answers what holds then."""
        try:
            self._traces.query(exchange.head.model_name)  # an unknown model is the first fault
            update = decode_trace_update(exchange.text)
            values = self._traces.update(exchange.head.model_name, update)
        except NaiadError as error:
            exchange.respond(naiad_error_response(error))
        else:
            exchange.respond(Response(_OK, encode_trace_settings(values)))
