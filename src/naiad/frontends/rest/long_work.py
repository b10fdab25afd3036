"""Work on large bodies, none of which holds the event loop: where each kind is done.

Parsing JSON: another process. Compression: threads, since zlib lets go of Python's lock. Whatever
makes many Python objects: on the loop, a millisecond at a time.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from naiad.frontends.rest.exchange import Exchange
from naiad.frontends.rest.json_decoder import JsonDecoder
from naiad.frontends.turns import Turns
from naiad.protocol.compression import Decompressor, compress
from naiad.protocol.json_text import Buffer

_LOGGER: Final = logging.getLogger(__name__)

# Decompressed, and reserved, at a time.
_STEP_BYTES: Final = 1 << 20
# What the loop itself compresses or decompresses in half a millisecond.
INLINE_BYTES: Final = 64 << 10
_COMPRESSION_THREADS: Final = 2


class LongWork:
    """Whatever takes long about a request or an answer; belongs to one event loop.

    Its threads and processes start when they are first needed.

    Attributes:
        json: parses large texts.
        turns: runs generators on the loop.
    """

    def __init__(self, max_input_bytes: int) -> None:
        self.json = JsonDecoder(max_input_bytes)
        self.turns = Turns()
        self._max_input_bytes = max_input_bytes
        self._threads = ThreadPoolExecutor(_COMPRESSION_THREADS, "compression")
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
        """Do ``work`` until it has answered ``exchange``, or the client goes away."""
        task = asyncio.ensure_future(_guard(exchange, work))
        self._tasks.add(task)  # the loop itself holds tasks only weakly
        task.add_done_callback(self._tasks.discard)
        # One that is cancelled before its first step has not begun its work either.
        task.add_done_callback(lambda _: work.close())

        def cancel() -> None:
            task.cancel()

        exchange.on_lost = cancel

    async def decompress(self, exchange: Exchange, body: Buffer) -> bytearray:
        """The content of a compressed body.

        Each step is counted against the server's budget before it is taken.

        Raises:
            InvalidArgumentError: it can not be read, or is larger than it may be.
            UnavailableError: the server's budget is used up.
        """
        decompressor = Decompressor(body, self._max_input_bytes)
        is_done = False
        if len(body) <= INLINE_BYTES:
            exchange.reserve(INLINE_BYTES)
            is_done = decompressor.advance(INLINE_BYTES)
        loop = asyncio.get_running_loop()
        while not is_done:
            exchange.reserve(_STEP_BYTES)
            is_done = await loop.run_in_executor(self._threads, decompressor.advance, _STEP_BYTES)
        return decompressor.data

    async def compress(self, parts: Sequence[Buffer], encoding: bytes) -> bytes:
        """One compressed body out of ``parts``."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, compress, parts, encoding)

    def close(self) -> None:
        """Give up what is under way, and end threads and processes."""
        for task in self._tasks:
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.json.close()


async def _guard(exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception:
        # As in the connection: a fault in one handler must not leave the client without an answer.
        _LOGGER.exception("handler failed")
        exchange.fail()
