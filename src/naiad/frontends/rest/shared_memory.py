"""Routes of the shared memory extensions."""

from collections.abc import Callable
from typing import Any, Final

from naiad.access.restricted_apis import Api
from naiad.errors import NaiadError
from naiad.frontends.rest.exchange import Exchange
from naiad.frontends.rest.response import JSON, Response, format_head, naiad_error_response
from naiad.frontends.rest.router import Route
from naiad.frontends.serving import ServingEngine
from naiad.protocol.shared_memory import (
    decode_cuda_registration,
    decode_system_registration,
    encode_region_status,
)

_OK: Final = format_head(200, JSON)

# In a head the name of a region is where a model's is in others: the one name that it carries.
_REGION: Final = "/region/{region}"


class SharedMemoryHandlers:
    """Registers, shows and forgets regions; without a name, all of them."""

    def __init__(self, engine: ServingEngine[Any]) -> None:
        self._regions = engine.shared_memory

    def routes(self) -> list[Route]:
        """The routes of this noun."""
        system = "/v2/systemsharedmemory"
        cuda = "/v2/cudasharedmemory"
        api = Api.SHARED_MEMORY
        return [
            Route(f"{system}[{_REGION}]/status", {"GET": self.system_status}, api=api),
            Route(f"{system}{_REGION}/register", {"POST": self.register_system}, api=api),
            Route(f"{system}[{_REGION}]/unregister", {"POST": self.unregister_system}, api=api),
            Route(f"{cuda}[{_REGION}]/status", {"GET": self.cuda_status}, api=api),
            Route(f"{cuda}{_REGION}/register", {"POST": self.register_cuda}, api=api),
            Route(f"{cuda}[{_REGION}]/unregister", {"POST": self.unregister_cuda}, api=api),
        ]

    def system_status(self, exchange: Exchange) -> None:
        """One region of system shared memory, or all."""
        try:
            regions = self._regions.system_status(exchange.head.model_name)
        except NaiadError as error:
            exchange.respond(naiad_error_response(error))
        else:
            exchange.respond(Response(_OK, encode_region_status(regions)))

    def register_system(self, exchange: Exchange) -> None:
        """Map a shared memory object."""
        try:
            wanted = decode_system_registration(exchange.text)
            self._regions.register_system(
                exchange.head.model_name, wanted.key, wanted.offset, wanted.byte_size
            )
        except NaiadError as error:
            exchange.respond(naiad_error_response(error))
        else:
            exchange.respond(Response(_OK, b""))

    def unregister_system(self, exchange: Exchange) -> None:
        """Forget one region of system shared memory, or all."""
        _forget(exchange, self._regions.unregister_system)

    def cuda_status(self, exchange: Exchange) -> None:
        """One region of GPU memory, or all."""
        try:
            regions = self._regions.cuda_status(exchange.head.model_name)
        except NaiadError as error:
            exchange.respond(naiad_error_response(error))
        else:
            exchange.respond(Response(_OK, encode_region_status(regions)))

    def register_cuda(self, exchange: Exchange) -> None:
        """Refuse GPU memory, once the request itself is in order."""
        try:
            decode_cuda_registration(exchange.text)
            self._regions.register_cuda(exchange.head.model_name)
        except NaiadError as error:
            exchange.respond(naiad_error_response(error))

    def unregister_cuda(self, exchange: Exchange) -> None:
        """Forget one region of GPU memory, or all."""
        _forget(exchange, self._regions.unregister_cuda)


def _forget(exchange: Exchange, unregister: Callable[[str], None]) -> None:
    try:
        unregister(exchange.head.model_name)
    except NaiadError as error:
        exchange.respond(naiad_error_response(error))
    else:
        exchange.respond(Response(_OK, b""))
