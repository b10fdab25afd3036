"""Routes of the model repository extension: index, load, unload."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from naiad.access.restricted_apis import Api
from naiad.errors import NaiadError
from naiad.frontends.rest.exchange import Exchange
from naiad.frontends.rest.json_decoder import LARGE_TEXT_BYTES
from naiad.frontends.rest.long_work import LongWork
from naiad.frontends.rest.response import (
    JSON,
    Response,
    error_response,
    format_head,
    naiad_error_response,
)
from naiad.frontends.rest.router import BodyKind, Route
from naiad.frontends.serving import ServingEngine
from naiad.protocol.v2_metadata import (
    decode_index_request,
    decode_load_request,
    decode_unload_request,
    encode_index,
)

_LOGGER: Final = logging.getLogger(__name__)

_MODEL: Final = "/v2/repository/models/{model}"
_OTHER_MODEL: Final = "/v2/repository/{repository}/models/{model}"


class RepositoryHandlers:
    """Answers what is in the repository, and changes what serves.

    These requests take long, so each has a task; a client that goes away does not stop a load.
    """

    def __init__(self, engine: ServingEngine[Any], long_work: LongWork) -> None:
        self._engine = engine
        self._long_work = long_work
        self._tasks: set[asyncio.Task[None]] = set()

    def routes(self) -> list[Route]:
        """The routes of this noun."""
        api = Api.MODEL_REPOSITORY
        return [
            # Any repository may be named and means the same: Triton has one index.
            Route("/v2/repository[/{repository}]/index", {"POST": self.index}, api=api),
            Route(_MODEL + "/load", {"POST": self.load}, body=BodyKind.FILES, api=api),
            Route(_MODEL + "/unload", {"POST": self.unload}, api=api),
            Route(_OTHER_MODEL + "/load", {"POST": self.refuse_repository}, api=api),
            Route(_OTHER_MODEL + "/unload", {"POST": self.refuse_repository}, api=api),
        ]

    def index(self, exchange: Exchange) -> None:
        """Every model with its versions and states."""

        async def read(*, ready_only: bool) -> bytes:
            return encode_index(await self._engine.index(ready_only=ready_only))

        self._start(exchange, lambda: read(ready_only=decode_index_request(exchange.text)))

    def load(self, exchange: Exchange) -> None:
        """Load or reload a model, perhaps with another config or other files."""
        name = exchange.head.model_name

        def begin() -> Awaitable[None]:
            return self._engine.load_model(name, *decode_load_request(exchange.text))

        async def load_large() -> None:
            text, exchange.text = exchange.text, b""
            config_json, files = await self._long_work.json.parse_load(text)
            del text
            exchange.reserve(sum(map(len, files.values())))
            await self._engine.load_model(name, config_json, files)

        is_large = len(exchange.text) > LARGE_TEXT_BYTES
        self._start(exchange, load_large if is_large else begin)

    def unload(self, exchange: Exchange) -> None:
        """Stop serving a model."""

        def begin() -> Awaitable[None]:
            unload_dependents = decode_unload_request(exchange.text)
            return self._engine.unload_model(
                exchange.head.model_name, unload_dependents=unload_dependents
            )

        self._start(exchange, begin)

    def refuse_repository(self, exchange: Exchange) -> None:
        """Models of one named repository can not be controlled, as in Triton."""
        exchange.respond(error_response(501, "'repository_name' specification is not supported"))

    def _start(self, exchange: Exchange, begin: Callable[[], Awaitable[bytes | None]]) -> None:
        try:
            work = begin()
        except NaiadError as error:
            exchange.respond(naiad_error_response(error))
            return
        task = asyncio.ensure_future(_answer(exchange, work))
        self._tasks.add(task)  # the loop itself holds tasks only weakly
        task.add_done_callback(self._tasks.discard)


async def _answer(exchange: Exchange, work: Awaitable[bytes | None]) -> None:
    try:
        body = await work
    except NaiadError as error:
        exchange.respond(naiad_error_response(error))
    except Exception:
        _LOGGER.exception("request for the model repository failed")
        exchange.fail()
    else:
        exchange.respond(Response(format_head(200, JSON), body or b""))
