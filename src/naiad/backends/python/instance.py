"""A model instance in a process of its own, which is watched and started again when it ends."""

import contextlib
import itertools
import json
import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from naiad.backends.base import Answer, ModelResponse, ModelServices, RequestBatch
from naiad.backends.python.environment import Environment
from naiad.backends.python.messages import (
    request_to_wire,
    response_from_wire,
    with_request_id,
)
from naiad.backends.python.model_process import ModelProcess, ProcessOptions
from naiad.backends.python.options import PythonOptions
from naiad.backends.python.server_calls import ServerCalls
from naiad.backends.python.stub.naiad_stub import wire
from naiad.backends.python.stub.naiad_stub.channel import ChannelClosedError, Frame
from naiad.errors import InternalError, NaiadError, UnavailableError
from naiad.inference.datatypes import BYTES
from naiad.inference.request import InferRequest

_log = logging.getLogger(__name__)

# Before the second start in a row, and the most that it grows to.
_FIRST_DELAY_S: Final = 0.25
_LONGEST_DELAY_S: Final = 10.0
# What a process answers whose model has a method ``is_ready``, and how often it is asked. The time
# that it has is Triton's.
_HAS_READINESS: Final = "is_ready"
_READINESS_INTERVAL_S: Final = 1.0
_READINESS_TIMEOUT_S: Final = 5.0
# What the loop passes on by itself: it takes 0.1 ms at most, and the socket has room for it.
_PROMPT_REQUESTS: Final = 16
_PROMPT_FRAME_BYTES: Final = 32 << 10


@dataclass(frozen=True, slots=True)
class InstanceSetup:
    """What an instance is made of.

    Attributes:
        name: as Triton's log spells it.
        model_name: of the model.
        version: of the model.
        arguments: what ``initialize`` gets, and where the model lies.
        environment: whose interpreter runs it.
        options: how it runs.
        services: what the model may ask of the server.
    """

    name: str
    model_name: str
    version: int
    arguments: Mapping[str, str]
    environment: Environment
    options: PythonOptions
    services: ModelServices


class _Running:
    """A batch in the process.

    Attributes:
        batch: the engine's.
        open: the requests that have not had their last response, by key.
        returned: set once ``execute`` has returned, or never will.
    """

    __slots__ = ("batch", "open", "returned")

    def __init__(self, batch: RequestBatch) -> None:
        self.batch = batch
        self.open: dict[int, InferRequest] = {}
        self.returned = threading.Event()


def _is_small(batch: RequestBatch) -> bool:
    """Whether the inputs that the model gets of it are copied in no time, and into the frame."""
    if len(batch.requests) > _PROMPT_REQUESTS:
        return False
    size = 0
    for request in batch.requests:
        for tensor in batch.inputs(request).values():
            data = tensor.data
            if tensor.datatype is not BYTES:
                size += data.nbytes
            elif data.size <= _PROMPT_REQUESTS:
                size += sum(map(len, data.flat))
            else:
                return False
    return size <= wire.INLINE_BYTES


class PythonInstance:
    """Gives batches to the process and its answers to the engine.

    Args:
        setup: what it is made of.

    Raises:
        InternalError: the process or the model did not start.
    """

    def __init__(self, setup: InstanceSetup) -> None:
        self._setup = setup
        self._keys = itertools.count(1)
        # What follows is shared between the instance's thread, the one that reads, and the loop.
        self._lock = threading.Lock()
        self._batches: dict[int, _Running] = {}
        self._requests: dict[int, tuple[_Running, InferRequest]] = {}
        self._keys_of: dict[InferRequest, int] = {}
        self._readiness: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._calls = ServerCalls(setup.services, self, self._find_request)
        self._closing = threading.Event()
        self._on_change: Callable[[], None] = lambda: None
        self._has_answered = False
        self._process: ModelProcess | None = None
        self._ended: ModelProcess | None = None
        self.is_ready = False
        self.failure = "it has not started yet"
        self.is_lost = False
        self._start()

    def watch(self, on_change: Callable[[], None]) -> None:
        """Have ``on_change`` called, by any thread, when the instance becomes ready or unready."""
        self._on_change = on_change

    def begin_at_once(self, batch: RequestBatch) -> bool:
        """Give a small batch to the process; see `PromptInstance`."""
        process = self._process
        if (
            process is None
            or not self.is_ready
            or self._setup.options.execute_timeout_s is not None
        ):
            return False
        running = _Running(batch)
        key = None
        try:
            if not _is_small(batch):
                return False
            key = self._register(process, running)
            if key is None:
                return False
            # No region: what turns out to be larger than it looked goes by the thread.
            writer = wire.Writer(None)
            self._encode(writer, running)
            payload = writer.payload()
            if len(payload) <= _PROMPT_FRAME_BYTES and process.channel.try_send(
                wire.EXECUTE, key, payload
            ):
                return True
        except Exception as error:  # noqa: BLE001 - the thread meets it too, and answers
            _log.debug("model instance '%s': not begun at once: %r", self._setup.name, error)
        return key is not None and not self._withdraw(running, key)

    def execute_requests(self, batch: RequestBatch) -> None:
        """Give a batch to the process; its answers come from the thread that reads."""
        running = _Running(batch)
        process = self._process
        key = self._register(process, running) if process is not None else None
        if process is None or key is None:
            cause = self.failure if process is None else process.cause()
            error = UnavailableError(self._unhealthy(cause))
            for request in batch.requests:
                batch.respond(request, ModelResponse(error=error))
            batch.finish()
            return
        writer = process.channel.writer()
        try:
            self._encode(writer, running)
            process.channel.send(wire.EXECUTE, key, writer.payload())
        except ChannelClosedError:
            return  # the thread that reads sees it too, and fails the batch
        except Exception as error:  # noqa: BLE001 - the batch must be answered, and the thread go on
            writer.discard()
            if not process.has_ended():  # or else that is the reason, and is told as above
                text = f"model '{self._setup.name}': {error or type(error).__name__}"
                self._fail(running, key, InternalError(text))
            return
        timeout_s = self._setup.options.execute_timeout_s
        if timeout_s is not None and not running.returned.wait(timeout_s):
            process.kill(f"execute did not return within EXECUTE_TIMEOUT_MS ({timeout_s:g} s)")

    def cancel(self, request: InferRequest) -> None:
        """Tell the model that nobody waits for a request any more; called on the loop."""
        key = self._keys_of.get(request)
        process = self._process
        if key is not None and process is not None:
            process.channel.post(wire.CANCEL, key)

    def close(self) -> None:
        """Let the model clean up and end its process."""
        self._closing.set()
        process = self._process
        self.is_ready = False
        if process is None:
            return
        limit_s = self._setup.options.start_timeout_s
        try:
            process.ask(wire.FINALIZE, "", limit_s)
        except NaiadError as error:
            _log.error("model instance '%s': finalize failed: %s", self._setup.name, error.message)
        if not process.wait(limit_s):
            process.kill("it did not end when it was told to")
            process.wait(limit_s)
        # Until what it wrote at last is in the log, and its threads and what they hold are gone.
        process.ended.wait(limit_s)
        self._calls.close()

    # What the process says; called by the thread that reads.

    def on_frame(self, process: ModelProcess, frame: Frame) -> None:
        """See `ProcessListener`."""
        if frame.kind == wire.EXECUTED:
            self._take_executed(process, frame)
        elif frame.kind == wire.IS_READY:
            error = process.channel.reader(frame).text()
            text = "" if frame.flags else error or "is_ready() of the model says no"
            self._readiness.put((frame.key, text))
        elif frame.kind == wire.RESPONSE:
            self._take_response(process, frame)
        else:
            self._calls.take(process, frame)

    def on_end(self, process: ModelProcess) -> None:
        """See `ProcessListener`."""
        with self._lock:
            if process is not self._process or process is self._ended:
                return  # it did not get as far as being used, or this is known
            self._ended = process
            self.failure = process.describe_end()
            self.is_ready = False
        self._calls.drop_all()
        self._fail_all(InternalError(self._unhealthy(process.cause())))
        if self._closing.is_set():
            return
        _log.error("%s", self.failure)
        self._on_change()
        threading.Thread(
            target=self._start_again, name=f"{self._setup.name}-start", daemon=True
        ).start()

    def _take_executed(self, process: ModelProcess, frame: Frame) -> None:
        running = self._batches.get(frame.key)
        if running is None:
            return
        reader = process.channel.reader(frame)
        rescheduled: list[InferRequest] = []
        if frame.flags:
            message, details = reader.text(), reader.text()
            if details:
                _log.error("%s\n%s", message, details)
            answers = [
                (request, ModelResponse(error=InternalError(with_request_id(message, request))))
                for request in self._take_open(running)
            ]
        else:
            self._has_answered = True
            answers = self._take_answers(running, reader)
            rescheduled = self._take_rescheduled(running, reader)
        self._finish(running, frame.key, answers, rescheduled)

    def _take_answers(self, running: _Running, reader: wire.Reader) -> list[Answer]:
        """The responses that ``execute`` has returned, each the last of its request."""
        answers = []
        responses = [(reader.u64(), reader.response()) for _ in range(reader.u32())]
        with self._lock:
            for key, response in responses:
                request = running.open.get(key)
                if request is not None:
                    self._close_request(running, key)
                    answers.append((request, response_from_wire(response, is_final=True)))
        return answers

    def _take_rescheduled(self, running: _Running, reader: wire.Reader) -> list[InferRequest]:
        """The requests that are to run again; they come with other keys then."""
        requests = []
        keys = [reader.u64() for _ in range(reader.u32())]
        with self._lock:
            for key in keys:
                request = running.open.get(key)
                if request is not None:
                    self._close_request(running, key)
                    requests.append(request)
        return requests

    def _take_response(self, process: ModelProcess, frame: Frame) -> None:
        key, is_final = frame.key, bool(frame.flags & wire.IS_FINAL)
        response = process.channel.reader(frame).response()
        with self._lock:
            known = self._requests.get(key)
            if known is not None and is_final:
                self._close_request(known[0], key)
        if known is None:
            # It failed with its batch; whoever sends the rest must not wait.
            process.channel.post(wire.GO_ON, key)
            return
        running, request = known
        if request.pace is not None and not is_final:
            request.pace.wait(lambda: process.channel.post(wire.GO_ON, key))
        running.batch.respond(request, response_from_wire(response, is_final=is_final))

    def _find_request(self, key: int) -> InferRequest | None:
        known = self._requests.get(key)
        return known[1] if known is not None else None

    def _register(self, process: ModelProcess, running: _Running) -> int | None:
        """Note a batch before a process gets it.

        Returns:
            The key of the batch, which fails with the process from now on; None where the process
            has ended.
        """
        with self._lock:
            if process is not self._process or process is self._ended:
                return None
            batch_key = next(self._keys)
            for request in running.batch.requests:
                key = next(self._keys)
                running.open[key] = request
                self._requests[key] = (running, request)
                self._keys_of[request] = key
            self._batches[batch_key] = running
        return batch_key

    def _withdraw(self, running: _Running, batch_key: int) -> bool:
        """Forget a batch that the process has not got; False where it has failed already."""
        with self._lock:
            if self._batches.pop(batch_key, None) is None:
                return False
            for key in list(running.open):
                self._close_request(running, key)
        return True

    def _close_request(self, running: _Running, key: int) -> None:
        request = running.open.pop(key)
        self._requests.pop(key, None)
        self._keys_of.pop(request, None)

    def _finish(
        self,
        running: _Running,
        batch_key: int,
        answers: Sequence[Answer] = (),
        rescheduled: Sequence[InferRequest] = (),
    ) -> None:
        """Let the engine have the instance back, once for each batch."""
        with self._lock:
            known = self._batches.pop(batch_key, None)
        running.returned.set()
        if known is not None:
            running.batch.finish(answers, rescheduled)

    def _fail(self, running: _Running, batch_key: int, error: NaiadError) -> None:
        for request in self._take_open(running):
            running.batch.respond(request, ModelResponse(error=error))
        self._finish(running, batch_key)

    def _take_open(self, running: _Running) -> list[InferRequest]:
        with self._lock:
            requests = list(running.open.values())
            for key in list(running.open):
                self._close_request(running, key)
        return requests

    def _fail_all(self, error: NaiadError) -> None:
        """Answer everything that the process has with an error."""
        with self._lock:
            batches = list(self._batches.values())
            self._batches.clear()
            # Decoupled requests whose batch is over are here too.
            requests = list(self._requests.items())
            for key, (running, _) in requests:
                self._close_request(running, key)
        for _, (running, request) in requests:
            running.batch.respond(request, ModelResponse(error=error))
        for running in batches:
            running.returned.set()
            running.batch.finish()

    def _encode(self, writer: wire.Writer, running: _Running) -> None:
        writer.u32(len(running.open))
        batch = running.batch
        for key, request in list(running.open.items()):
            writer.request(request_to_wire(key, request, batch, self._setup.version))

    # How it starts.

    def _start(self) -> None:
        """Start a process and the model in it.

        Raises:
            InternalError: that failed.
        """
        setup, options = self._setup, self._setup.options
        process = ModelProcess(
            ProcessOptions(
                setup.name, setup.environment, options.region_bytes, options.start_timeout_s
            ),
            self,
        )
        try:
            answer = process.ask(
                wire.INITIALIZE, json.dumps(dict(setup.arguments)), options.initialize_timeout_s
            )
        except BaseException:
            process.kill("the model could not be initialized")
            self._calls.drop_all()
            raise
        self._process = process
        self._has_answered = False
        self.failure = ""
        if answer == _HAS_READINESS:
            self._ask_readiness(process)
            threading.Thread(
                target=self._watch_readiness,
                args=(process,),
                name=f"{setup.name}-readiness",
                daemon=True,
            ).start()
        self.is_ready = True
        if process.has_ended():
            # Between its answer and now, when its end was not looked at.
            self.on_end(process)

    def _watch_readiness(self, process: ModelProcess) -> None:
        """Ask the model again and again, since whoever asks the server can't wait for it."""
        while not self._closing.wait(_READINESS_INTERVAL_S) and not process.ended.is_set():
            self._ask_readiness(process)

    def _ask_readiness(self, process: ModelProcess) -> None:
        """Let the model say whether it is ready; where it is not, that is the failure."""
        asked = next(self._keys)
        text = "is_ready() did not answer in time"
        with contextlib.suppress(ChannelClosedError, queue.Empty):
            process.channel.send(wire.IS_READY, asked)
            key = 0
            # Answers to questions that were given up come late, and count for nothing.
            while key != asked:
                key, text = self._readiness.get(timeout=_READINESS_TIMEOUT_S)
        with self._lock:
            if process is self._process and process is not self._ended:
                self.failure = text

    def _start_again(self) -> None:
        options = self._setup.options
        delay_s = 0.0 if self._has_answered else _FIRST_DELAY_S
        for attempt in range(1, options.restart_limit + 1):
            if self._closing.wait(delay_s):
                return
            try:
                self._start()
            except NaiadError as error:
                self.failure = error.message
                _log.error(
                    "model instance '%s': start %d of %d failed: %s",
                    self._setup.name,
                    attempt,
                    options.restart_limit,
                    error.message,
                )
                delay_s = min(max(2 * delay_s, _FIRST_DELAY_S), _LONGEST_DELAY_S)
                continue
            if self._closing.is_set():
                self.close()
                return
            _log.info("model instance '%s' is back", self._setup.name)
            self._on_change()
            return
        self.failure = f"given up after {options.restart_limit} starts: {self.failure}"
        self.is_lost = True
        _log.error("model instance '%s' is %s", self._setup.name, self.failure)
        self._on_change()

    def _unhealthy(self, cause: str) -> str:
        head = f"Stub process '{self._setup.name}' is not healthy."
        return cause if cause.startswith(head) else f"{head} {cause[:1].upper()}{cause[1:]}"
