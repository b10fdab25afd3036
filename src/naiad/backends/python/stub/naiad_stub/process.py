"""The life of the process: what the server asks for, one thing after the other."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import signal
import socket
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, NoReturn

from . import pb_utils, wire
from .channel import Channel, ChannelClosedError, Frame
from .host import Host, HostError, binding
from .model_file import ModelError, failure_text
from .region import RegionFullError
from .runner import make_runner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .pb_utils import InferenceRequest, InferenceResponse
    from .runner import Runner

# How the server tells that this process speaks its language.
PROTOCOL = 1


class ProcessHost(Host):
    """The server at the other end of the channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._keys = itertools.count(1)
        self._inferring: dict[int, Callable[[wire.WireResponse, bool], None]] = {}
        self._calling: dict[int, queue.SimpleQueue[tuple[bool, str]]] = {}
        self.is_executing = False

    def respond(self, key: int, response: wire.WireResponse, *, is_final: bool) -> None:
        """See `Host`."""
        writer = self._channel.writer()
        try:
            writer.response(response)
        except RegionFullError as error:
            writer.discard()
            writer = self._channel.writer()
            fault = wire.WireError(pb_utils.TritonError.INTERNAL, str(error))
            writer.response(wire.WireResponse((), fault, ""))
        flags = wire.IS_FINAL if is_final else 0
        self._channel.send(wire.RESPONSE, key, writer.payload(), flags)

    def infer(
        self,
        request: wire.WireRequest,
        on_response: Callable[[wire.WireResponse, bool], None],
        *,
        is_decoupled: bool,
    ) -> int:
        """See `Host`."""
        key = next(self._keys)
        writer = self._channel.writer()
        try:
            writer.request(request)
        except RegionFullError as error:
            writer.discard()
            raise pb_utils.TritonModelException(str(error)) from error
        self._inferring[key] = on_response
        # While `execute` waits, the instance takes no other request: the server must know, or a
        # model that asks itself would wait for ever. Other threads of a model may be what it
        # waits for, but not of a decoupled one.
        is_blocking = self.is_executing and (
            not self.is_decoupled or threading.current_thread() is threading.main_thread()
        )
        flags = wire.IS_DECOUPLED * is_decoupled + wire.IS_BLOCKING * is_blocking
        self._channel.send(wire.INFER, key, writer.payload(), flags)
        return key

    def cancel_infer(self, key: int) -> None:
        """See `Host`."""
        self._channel.post(wire.INFER_CANCEL, key)

    def call(
        self, name: str, arguments: Mapping[str, Any], files: Mapping[str, bytes | memoryview]
    ) -> Any:
        """See `Host`."""
        key = next(self._keys)
        answer: queue.SimpleQueue[tuple[bool, str]] = queue.SimpleQueue()
        self._calling[key] = answer
        writer = self._channel.writer()
        writer.text(name)
        writer.text(json.dumps(arguments))
        writer.u32(len(files))
        for path, content in files.items():
            writer.text(path)
            writer.u64(len(content))
            writer.put(bytes(content))
        self._channel.send(wire.CALL, key, writer.payload())
        is_refused, text = answer.get()
        if is_refused:
            raise HostError(text)
        return json.loads(text)

    def tell(self, name: str, arguments: Mapping[str, Any]) -> None:
        """See `Host`."""
        writer = self._channel.writer()
        writer.text(name)
        writer.text(json.dumps(arguments))
        self._channel.post(wire.TELL, 0, writer.payload())

    def log(self, level: int, text: str) -> None:
        """See `Host`."""
        writer = self._channel.writer()
        writer.text(text)
        try:
            self._channel.send(wire.LOG, 0, writer.payload(), level)
        except ChannelClosedError:  # in a process that the model has forked
            print(text, file=sys.stderr, flush=True)  # noqa: T201 - which is in the log, too

    def take_response(self, frame: Frame) -> None:
        """A response to `infer` came."""
        is_final = bool(frame.flags & wire.IS_FINAL)
        response = self._channel.reader(frame).response()
        on_response = (
            self._inferring.pop(frame.key, None) if is_final else self._inferring.get(frame.key)
        )
        if on_response is not None:
            on_response(response, is_final)

    def take_result(self, frame: Frame) -> None:
        """The answer to `call` came."""
        answer = self._calling.pop(frame.key, None)
        if answer is not None:
            answer.put((bool(frame.flags), self._channel.reader(frame).text()))


class Process:
    """The main thread runs the model; a second one reads what the server says."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._host = ProcessHost(channel)
        self._work: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        # Requests whose answer is not complete, for cancellations.
        self._open: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        # Those of the batch to come that were cancelled already, and the newest key that has come.
        self._cancelled: set[int] = set()
        self._newest = 0
        self._lock = threading.Lock()
        self._runner: Runner | None = None

    def run(self) -> None:
        """Work until the server says that it is enough."""
        binding.set_default(self._host)
        threading.Thread(target=self._receive, name="server-reader", daemon=True).start()
        self._channel.send(wire.HELLO, PROTOCOL)
        while True:
            frame = self._work.get()
            if frame is None or not self._do(frame):
                return

    def _do(self, frame: Frame) -> bool:
        """Do what a frame asks for; False where nothing may follow."""
        if frame.kind == wire.EXECUTE:
            self._execute(frame)
            return True
        try:
            if frame.kind == wire.INITIALIZE:
                self._initialize(frame)
                return True
            if frame.kind == wire.COMPLETE_CONFIG:
                self._complete(frame)
            elif self._runner is not None:
                self._host.can_infer = False
                self._runner.finalize()
                self._done("")
        except ModelError as error:
            writer = self._channel.writer()
            writer.text(str(error))
            writer.text(error.details)
            self._channel.send(wire.FAILED, 0, writer.payload(), error.code)
        return False

    def _load(self, arguments: Mapping[str, str]) -> Runner:
        host = self._host
        host.model_name = arguments["model_name"]
        host.instance_name = arguments["model_instance_name"]
        host.model_directory = arguments["model_directory"]
        host.is_decoupled = arguments["is_decoupled"] == "1"
        self._runner = make_runner(arguments, host)
        self._runner.load()
        return self._runner

    def _initialize(self, frame: Frame) -> None:
        arguments = json.loads(self._channel.reader(frame).text())
        runner = self._load(arguments)
        for name in ("model_directory", "model_file", "is_decoupled"):
            del arguments[name]
        runner.initialize(arguments)
        self._host.can_infer = True
        self._done("is_ready" if runner.has_readiness() else "")

    def _complete(self, frame: Frame) -> None:
        arguments = json.loads(self._channel.reader(frame).text())
        self._done(self._load(arguments).complete(arguments["model_config"]))

    def _done(self, text: str) -> None:
        writer = self._channel.writer()
        writer.text(text)
        self._channel.send(wire.DONE, 0, writer.payload())

    def _execute(self, frame: Frame) -> None:
        # In a function of its own, so that the requests are gone, and their memory is known to be
        # free, when the server hears that the batch is done.
        payload, flags = self._run_batch(frame)
        key = frame.key
        del frame
        self._channel.send(wire.EXECUTED, key, payload, flags)

    def _run_batch(self, frame: Frame) -> tuple[bytes, int]:
        host = self._host
        reader = self._channel.reader(frame)
        requests = [pb_utils.make_request(host, reader.request()) for _ in range(reader.u32())]
        self._note(requests)
        host.is_executing = True
        runner = self._runner
        assert runner is not None  # noqa: S101 - the server initializes first
        try:
            responses = runner.execute(requests, is_decoupled=host.is_decoupled)
            return self._encode(responses, pb_utils.take_rescheduled(requests)), 0
        except ModelError as error:
            return self._encode_failure(requests, error), 1
        finally:
            host.is_executing = False

    def _note(self, requests: list[InferenceRequest]) -> None:
        """Let cancellations find the requests, also those that have overtaken them."""
        with self._lock:
            for request in requests:
                answering = request._answering
                assert answering is not None  # noqa: S101 - the server's requests have one
                self._open[answering.key] = answering
                self._newest = answering.key
                if answering.key in self._cancelled:
                    answering.is_cancelled = True
            self._cancelled.clear()

    def _cancel(self, key: int) -> None:
        with self._lock:
            answering = self._open.get(key)
            if answering is not None:
                answering.is_cancelled = True
            elif key > self._newest:
                self._cancelled.add(key)
        # Its end, if this was the last that had it, sends something.
        del answering

    def _encode(
        self,
        responses: list[tuple[InferenceRequest, InferenceResponse]],
        rescheduled: list[int],
    ) -> bytes:
        writer = self._channel.writer()
        writer.u32(len(responses))
        for request, response in responses:
            answering = request._answering
            assert answering is not None  # noqa: S101 - the server's requests have one
            writer.u64(answering.key)
            try:
                writer.response(response._to_wire(answering.wanted))
            except RegionFullError as error:
                writer.discard()
                raise ModelError(str(error)) from error
        writer.u32(len(rescheduled))
        for key in rescheduled:
            writer.u64(key)
        return writer.payload()

    def _encode_failure(self, requests: list[InferenceRequest], error: ModelError) -> bytes:
        writer = self._channel.writer()
        writer.text(failure_text(self._host.instance_name, error))
        writer.text(error.details)
        for request in requests:
            if request._answering is not None:
                request._answering.is_closed = True
        return writer.payload()

    def _receive(self) -> None:
        try:
            while True:
                frame = self._channel.receive()
                if frame.kind == wire.INFER_RESPONSE:
                    self._host.take_response(frame)
                elif frame.kind == wire.RESULT:
                    self._host.take_result(frame)
                elif frame.kind == wire.CANCEL:
                    self._cancel(frame.key)
                elif frame.kind == wire.GO_ON:
                    answering = self._open.get(frame.key)
                    if answering is not None and answering.room is not None:
                        answering.room.release()
                    del answering
                elif frame.kind == wire.IS_READY:
                    threading.Thread(
                        target=self._answer_readiness, args=(frame.key,), daemon=True
                    ).start()
                else:
                    self._work.put(frame)
                del frame
        except ChannelClosedError:
            _end()

    def _answer_readiness(self, key: int) -> None:
        writer = self._channel.writer()
        is_ready = False
        try:
            is_ready = self._runner is not None and self._runner.is_ready()
            writer.text("")
        except ModelError as error:
            writer.text(str(error))
        self._channel.send(wire.IS_READY, key, writer.payload(), int(is_ready))


def main(arguments: list[str]) -> None:
    """Serve the connection whose descriptors the server passed on.

    Args:
        arguments: descriptors of socket, region to write and region to read; the region's limit in
            bytes; and the folder of the environment that this is the interpreter of, or nothing.
    """
    connection, outgoing, incoming, limit = (int(argument) for argument in arguments[:4])
    # A person's Ctrl-C goes to all processes of the terminal, and what stops a service may end all
    # of its processes; the server decides what follows. Caught and not ignored, since programs that
    # the model starts would inherit that.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave_to_the_server)
    if arguments[4]:
        _activate(arguments[4])
    channel = Channel(socket.socket(fileno=connection), outgoing, incoming, limit)
    try:
        Process(channel).run()
    except ChannelClosedError:
        _end()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that the model has left behind must not keep the process.
    os._exit(0)


def _end() -> NoReturn:
    """The server is gone: whatever the model is doing, nobody wants it any more.

    Nor what it has forked, which nobody else is left to end.
    """
    # For the log, where there is a server all the same.
    with contextlib.suppress(OSError):
        os.write(2, b"the connection to the server has ended\n")
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _leave_to_the_server(_number: int, _frame: Any) -> None:
    """Nothing."""


def _activate(folder: str) -> None:
    """Let programs that the model starts find the environment, as its ``activate`` would."""
    environment = os.environ  # noqa: TID251 - of this process, not the server's
    programs = os.path.join(folder, "bin")
    environment["PATH"] = programs + os.pathsep + environment.get("PATH", os.defpath)
    environment["VIRTUAL_ENV"] = environment["CONDA_PREFIX"] = folder
