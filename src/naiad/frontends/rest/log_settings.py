"""Routes of the logging extension."""

from typing import Any, Final

from naiad.access.restricted_apis import Api
from naiad.errors import NaiadError
from naiad.frontends.rest.exchange import Exchange
from naiad.frontends.rest.response import JSON, Response, format_head, naiad_error_response
from naiad.frontends.rest.router import Route
from naiad.frontends.serving import ServingEngine
from naiad.protocol.log_settings import decode_log_settings_update, encode_log_settings

_OK: Final = format_head(200, JSON)


class LogSettingsHandlers:
    """Shows and changes how the server logs."""

    def __init__(self, engine: ServingEngine[Any]) -> None:
        self._settings = engine.log_settings

    def routes(self) -> list[Route]:
        """The routes of this noun."""
        return [
            Route("/v2/logging", {"GET": self.query, "POST": self.update}, api=Api.LOGGING),
        ]

    def query(self, exchange: Exchange) -> None:
        """How it logs."""
        exchange.respond(Response(_OK, encode_log_settings(self._settings.values)))

    def update(self, exchange: Exchange) -> None:
        """Change it; answers what holds then."""
        try:
            values = self._settings.update(decode_log_settings_update(exchange.text))
        except NaiadError as error:
            exchange.respond(naiad_error_response(error))
        else:
            exchange.respond(Response(_OK, encode_log_settings(values)))
