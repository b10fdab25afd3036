"""The process that parses large JSON: ``python -m naiad.frontends.rest.json_process SOCKET``.

Started by `JsonDecoder`. It ends with the server, because its socket does.
"""

import gc
import mmap
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from naiad.errors import InvalidArgumentError
from naiad.frontends.rest.json_channel import (
    ALIGNMENT,
    ANSWER,
    QUESTION,
    TextKind,
    make_file,
    receive,
    send,
    write,
)
from naiad.protocol.large_generate import split_generate
from naiad.protocol.large_json import SplitDocument, split_document
from naiad.protocol.large_load import split_load

# A text of nothing but empty lists takes this many times its size as Python objects.
_GROWTH: Final = 40
_SPARE_BYTES: Final = 256 << 20
# Bulk work must not take the processor from small requests.
_NICENESS: Final = 5
_STATM: Final = Path("/proc/self/statm")


def main() -> None:
    """Answer questions until the server has gone."""
    # Control-C in a terminal reaches every process there; the server decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    # JSON has no cycles, and the collector would look at every list again and again.
    gc.disable()
    spare_bytes = _address_space_bytes() + _SPARE_BYTES
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        while (question := receive(channel, QUESTION)) is not None:
            sizes, descriptor = question
            _limit_memory(spare_bytes + sizes[1] * _GROWTH)
            try:
                _answer(channel, descriptor, sizes)
            finally:
                os.close(descriptor)


def _answer(channel: socket.socket, descriptor: int, sizes: tuple[int, ...]) -> None:
    kind, text_bytes, max_input_bytes, description_bytes = sizes
    split: SplitDocument | None = None
    with (
        mmap.mmap(descriptor, text_bytes + description_bytes, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
        view[:text_bytes] as text,
        # What was made of the text is gone then. A SystemError is what orjson makes of it.
        suppress(MemoryError, SystemError),
    ):
        if kind == TextKind.LOAD:
            split = split_load(text)
        elif kind == TextKind.GENERATE:
            split = split_generate(text, bytes(view[text_bytes:]), max_input_bytes)
        else:
            split = split_document(text, max_input_bytes)
    if split is None:
        split = SplitDocument.of_error(
            InvalidArgumentError(
                f"the request's JSON of {text_bytes} bytes has so many values that they take more "
                f"than {text_bytes * _GROWTH + _SPARE_BYTES} bytes of memory"
            )
        )
    payload = -(-len(split.head) // ALIGNMENT) * ALIGNMENT
    result = make_file()
    try:
        write(result, split.head, 0)
        for offset, data in split.pieces:
            write(result, data, payload + offset)
        total = payload + split.payload_bytes
        os.ftruncate(result, total)
        send(channel, ANSWER.pack(len(split.head), payload, total), result)
    finally:
        os.close(result)


def _address_space_bytes() -> int:
    try:
        return int(_STATM.read_text().split()[0]) * mmap.PAGESIZE
    except (OSError, ValueError):
        return 1 << 32  # not Linux: more than an interpreter with numpy takes


def _limit_memory(size: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY:
        size = min(size, most)
    resource.setrlimit(resource.RLIMIT_AS, (size, most))


if __name__ == "__main__":
    main()
