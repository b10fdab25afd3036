"""Trace files: their format, and the thread that writes them.

A file is one JSON array of flat objects that share an ``id``, which Triton's own summary script
reads. It is a whole array after every write, not only when the server has stopped.
"""

import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

from naiad.inference.datatypes import BF16, BOOL, BYTES, Datatype, widen_bf16
from naiad.inference.trace import Trace, TracedTensor

_log = logging.getLogger(__name__)

# With a few megabytes a batch, what a slow disk may keep in memory.
_MAX_QUEUED_BATCHES: Final = 16


class TraceWriter:
    """Writes traces to a file and its numbered siblings, in a thread of its own.

    Args:
        path: of the file; ``path.0``, ``path.1`` ... are the numbered ones.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._index = 0
        self._started: set[Path] = set()
        self._pool = ThreadPoolExecutor(1, "trace_writer")
        self._queued: deque[Future[None]] = deque()

    def is_behind(self) -> bool:
        """Whether so much waits to be written that no more should be traced for now."""
        queued = self._queued
        while queued and queued[0].done():
            queued.popleft()
        return len(queued) >= _MAX_QUEUED_BATCHES

    def write(self, traces: Sequence[Trace], *, is_numbered: bool, ends_file: bool) -> None:
        """Write finished traces some time later; a failure is logged.

        Args:
            traces: not changed any more; none to end a numbered file only.
            is_numbered: into the current numbered file, not into the plain one.
            ends_file: the next traces of a numbered file go into the next one.
        """
        path = self._path
        if is_numbered:
            path = Path(f"{path}.{self._index}")
            self._index += ends_file
        if traces:
            self._queued.append(self._pool.submit(self._append, path, traces))

    def close(self) -> None:
        """Return when everything is written. Blocks."""
        self._pool.shutdown()

    def _append(self, path: Path, traces: Sequence[Trace]) -> None:
        try:
            text = orjson.dumps([record for trace in traces for record in trace_records(trace)])
            # A file of an earlier run is replaced, and so is one that was moved away meanwhile.
            if path not in self._started or not path.exists():
                _begin_array(path, text)
                self._started.add(path)
            else:
                _extend_array(path, text)
        except (OSError, orjson.JSONEncodeError) as error:
            _log.error("failed creating trace file: %s", error)


def _begin_array(path: Path, text: bytes) -> None:
    try:
        path.write_bytes(text)
    except OSError:
        # What a full disk cut off is no array, and takes room. A pipe is somebody else's.
        if path.is_file():
            path.unlink()
        raise


def _extend_array(path: Path, text: bytes) -> None:
    with path.open("r+b", buffering=0) as file:
        end = file.seek(-1, os.SEEK_END)
        rest = memoryview(b"," + text[1:])
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            # The disk is full: the array ends where it did, and goes on when there is room.
            file.truncate(end)
            file.seek(end)
            file.write(b"]")
            raise


def trace_records(trace: Trace) -> Iterator[dict[str, Any]]:
    """The objects of a trace and of its children, as they are in the file."""
    for member in trace.family():
        head: dict[str, Any] = {
            "id": member.trace_id,
            "model_name": member.subject.model_name,
            "model_version": member.subject.model_version,
        }
        if member.subject.request_id:
            head["request_id"] = member.subject.request_id
        if member.parent_id:
            head["parent_id"] = member.parent_id
        yield head
        for name, ns in member.stamps:
            yield {"id": member.trace_id, "timestamps": [{"name": name, "ns": ns}]}
        for tensor in member.tensors:
            yield {
                "id": member.trace_id,
                "activity": tensor.activity,
                "tensor": _tensor_record(tensor),
            }


def _tensor_record(tensor: TracedTensor) -> dict[str, str]:
    return {
        "name": tensor.name,
        "data": "" if tensor.data is None else format_elements(tensor.datatype, tensor.data),
        "shape": ",".join(map(str, tensor.shape)),
        "dtype": tensor.datatype.name,
    }


def format_elements(datatype: Datatype, data: npt.NDArray[Any]) -> str:
    """The elements of a tensor in row-major order, separated by commas.

    Floats have the fewest digits that tell them from their neighbours; booleans are 0 and 1;
    strings stand in quotes, with escapes for what is not UTF-8.
    """
    flat = data.ravel()
    if datatype is BYTES:
        texts = [element.decode("utf-8", "backslashreplace") for element in flat.tolist()]
        return ",".join(f'"{text}"' for text in texts)
    if datatype is BF16:
        flat = widen_bf16(flat)
    elif datatype is BOOL:
        flat = flat.view(np.uint8)
    return ",".join(text.removesuffix(".0") for text in flat.astype(np.str_).tolist())
