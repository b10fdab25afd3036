"""Large JSON requests are parsed in a process of their own, so that the event loop goes on.

A thread would not help: the parsers hold Python's lock from the first byte to the last, 3 ms for a
megabyte of numbers. A request of that size crosses to the other process and back in a fraction of
that, and of the event loop's time it takes next to nothing.
"""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from naiad.errors import InternalError, UnavailableError
from naiad.frontends.rest.json_channel import (
    ANSWER,
    QUESTION,
    TextKind,
    make_file,
    read,
    receive,
    send,
    write,
)
from naiad.protocol.json_text import Buffer
from naiad.protocol.large_json import join_document
from naiad.protocol.large_load import join_load

# From here on to ask costs less than to hold the loop. A receive buffer of the server is as large
# as this, so the text of a larger request lies in a buffer of its own.
LARGE_TEXT_BYTES: Final = 64 << 10
# A request of some megabytes must not wait behind one of sixty-four.
_LANE_BYTES: Final = 8 << 20
# The largest that the default limits allow takes a second or two.
_TIMEOUT_S: Final = 60.0
# For a process to start, on a machine that has much else to do.
_START_S: Final = 30.0
_BINARY_ADVICE: Final = "send tensors in the binary data format"
_ADVICE: Final = {
    TextKind.INFER: _BINARY_ADVICE,
    TextKind.GENERATE: _BINARY_ADVICE,
    TextKind.LOAD: "put the model's files into the model repository",
}
_MODULE: Final = "naiad.frontends.rest.json_process"


class JsonDecoder:
    """Parses large request texts elsewhere; belongs to one event loop.

    Its processes start when they are first needed. One that dies or takes too long fails the
    request that it had, and the next request gets a new one.

    Args:
        max_input_bytes: of a text, and of one tensor given as JSON.
        timeout_s: for one text.
    """

    def __init__(self, max_input_bytes: int, timeout_s: float = _TIMEOUT_S) -> None:
        self._lanes = [_Lane(max_input_bytes, timeout_s) for _ in range(2)]

    async def parse(self, text: Buffer, description: bytes = b"") -> Any:
        """The document of a request, for ``decode_infer_document``.

        Args:
            text: must not change until the call is over.
            description: of ``describe_signature`` for a generate request, whose document is for
                ``decode_split_generate``.

        Raises:
            InvalidArgumentError: not JSON.
            NaiadError: the process died, or took too long.
        """
        kind = TextKind.GENERATE if description else TextKind.INFER
        return join_document(*await self._ask(kind, text, description))

    async def parse_load(self, text: Buffer) -> tuple[str | None, Mapping[str, memoryview]]:
        """Config and files of a load request, as ``decode_load_request`` returns them.

        Raises:
            InvalidArgumentError: what is wrong with the request.
            NaiadError: the process died, or took too long.
        """
        return join_load(*await self._ask(TextKind.LOAD, text, b""))

    async def _ask(
        self, kind: TextKind, text: Buffer, description: bytes
    ) -> tuple[bytes, memoryview]:
        lane = self._lanes[len(text) > _LANE_BYTES]
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(lane.thread, lane.ask, kind, text, description)

    def close(self) -> None:
        """End the processes."""
        for lane in self._lanes:
            lane.close()


class _Lane:
    """One process and the thread that speaks with it.

    Attributes:
        thread: runs ``ask``.
    """

    def __init__(self, max_input_bytes: int, timeout_s: float) -> None:
        self.thread = ThreadPoolExecutor(1, "json")
        self._max_input_bytes = max_input_bytes
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    def ask(self, kind: TextKind, text: Buffer, description: bytes) -> tuple[bytes, memoryview]:
        """Head and payload of the split document; blocks."""
        if self._process is not None and self._process.poll() is not None:
            self._stop()  # it died of something else than a request
        channel = self._channel
        if channel is None:
            channel = self._start()
            channel.settimeout(self._timeout_s + _START_S)
        else:
            channel.settimeout(self._timeout_s)
        descriptor = make_file()
        try:
            write(descriptor, text, 0)
            write(descriptor, description, len(text))
            sizes = QUESTION.pack(kind, len(text), self._max_input_bytes, len(description))
            send(channel, sizes, descriptor)
            answer = receive(channel, ANSWER)
        except TimeoutError:
            self._stop()
            raise UnavailableError(
                f"the request's JSON of {len(text)} bytes could not be read within "
                f"{self._timeout_s:g} s; {_ADVICE[kind]}"
            ) from None
        except OSError:
            answer = None
        finally:
            os.close(descriptor)
        if answer is None:
            code = self._stop()
            raise InternalError(
                f"the process that reads large JSON ended (exit code {code}) with this request of "
                f"{len(text)} bytes, perhaps for want of memory; {_ADVICE[kind]}"
            )
        (head_bytes, start, total), result = answer
        try:
            view = read(result, total)
        finally:
            os.close(result)
        return bytes(view[:head_bytes]), view[start:]

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - this interpreter, our module
                    [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                )
            except OSError as error:
                ours.close()
                raise UnavailableError(
                    f"the process that reads large JSON could not be started: {error.strerror}"
                ) from error
        self._channel = ours
        return ours

    def _stop(self) -> int | None:
        """End the process and forget it; returns its exit code."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        return process.wait()

    def close(self) -> None:
        """End the process, whatever it does, and the thread."""
        self.thread.shutdown(wait=False, cancel_futures=True)
        process = self._process
        if process is not None:
            process.kill()  # so that the thread has its answer
        self.thread.shutdown()
        self._stop()
