"""ASGI's lifespan protocol: the host says when it starts and when it stops."""

from collections.abc import Awaitable, Callable

from naiad.errors import NaiadError
from naiad.frontends.asgi.messages import Receive, Send


async def run_lifespan(
    receive: Receive,
    send: Send,
    start: Callable[[], Awaitable[None]],
    stop: Callable[[], Awaitable[None]],
) -> None:
    """Call ``start`` and ``stop`` when the host says so; a start that fails stops the host."""
    while (message := await receive())["type"] == "lifespan.startup":
        try:
            await start()
        except NaiadError as error:
            await send({"type": "lifespan.startup.failed", "message": error.message})
            return
        await send({"type": "lifespan.startup.complete"})
    if message["type"] == "lifespan.shutdown":
        await stop()
        await send({"type": "lifespan.shutdown.complete"})
