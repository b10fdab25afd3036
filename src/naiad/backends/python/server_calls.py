"""What a model asks of the server: other models, the repository, metrics."""

import contextlib
import json
import logging
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from naiad.backends.base import ModelServices, OutgoingRequest
from naiad.backends.custom_metrics import MetricHolder
from naiad.backends.python.errors import error_to_wire
from naiad.backends.python.messages import request_from_wire, response_to_wire
from naiad.backends.python.model_process import ModelProcess
from naiad.backends.python.stub.naiad_stub import wire
from naiad.backends.python.stub.naiad_stub.channel import ChannelClosedError, Frame
from naiad.backends.python.stub.naiad_stub.region import RegionFullError
from naiad.errors import InternalError, InvalidArgumentError, NaiadError
from naiad.inference.response import InferResponse

if TYPE_CHECKING:
    from naiad.inference.request import InferRequest

_log = logging.getLogger(__name__)

_Answer = tuple[ModelProcess, Callable[[ModelProcess], None]]


class ServerCalls:
    """The calls of one model instance.

    Args:
        services: the server.
        caller: the instance, by which the server knows who waits.
        find_request: the request with that key, where the instance has it still.
    """

    def __init__(
        self,
        services: ModelServices,
        caller: object,
        find_request: Callable[[int], "InferRequest | None"],
    ) -> None:
        self._services = services
        self._find_request = find_request
        self._caller = caller
        self._open: dict[tuple[ModelProcess, int], InferRequest] = {}
        self._metrics = MetricHolder(services.custom_metrics)
        # Answers may hold large tensors, which the loop must not copy; a thread does, once there
        # is something for it to do.
        self._outbox: queue.SimpleQueue[_Answer | None] = queue.SimpleQueue()
        self._writer: threading.Thread | None = None

    def take(self, process: ModelProcess, frame: Frame) -> None:
        """Begin what a frame asks for; called by the thread that reads."""
        if frame.kind == wire.INFER:
            self._infer(process, frame)
        elif frame.kind == wire.INFER_CANCEL:
            request = self._open.get((process, frame.key))
            if request is not None:
                self._services.cancel(request)
        elif frame.kind == wire.CALL:
            self._call(process, frame)
        elif frame.kind == wire.TELL:
            reader = process.channel.reader(frame)
            name, arguments = reader.text(), json.loads(reader.text())
            try:
                self._metrics.tell(name, arguments)
            except NaiadError as error:
                _log.warning("%s", error.message)

    def drop_all(self) -> None:
        """The process is gone: nobody waits for anything."""
        requests = list(self._open.values())
        self._open.clear()
        for request in requests:
            self._services.cancel(request)
        self._metrics.close()

    def close(self) -> None:
        """Nothing more is asked."""
        self.drop_all()
        self._outbox.put(None)

    def _infer(self, process: ModelProcess, frame: Frame) -> None:
        asked = process.channel.reader(frame).request()
        key = frame.key

        def on_response(response: InferResponse) -> None:
            if response.is_final:
                self._open.pop((process, key), None)
            self._put(process, lambda to: _send_response(to, key, response))

        try:
            request = request_from_wire(asked, on_response)
        except InvalidArgumentError as error:
            on_response(InferResponse(asked.model_name, asked.model_version, "", (), error))
            return
        self._open[process, key] = request
        self._services.infer(
            OutgoingRequest(
                asked.model_name,
                asked.model_version,
                request,
                takes_many=bool(frame.flags & wire.IS_DECOUPLED),
                waiting=self._caller if frame.flags & wire.IS_BLOCKING else None,
                parent=self._find_request(asked.parent_key),
            )
        )

    def _call(self, process: ModelProcess, frame: Frame) -> None:
        reader = process.channel.reader(frame)
        name, arguments = reader.text(), json.loads(reader.text())
        files = {}
        for _ in range(reader.u32()):
            path = reader.text()
            files[path.removeprefix("file:")] = reader.bytes(reader.u64())
        key = frame.key

        def done(value: Any) -> None:
            self._put(process, lambda to: _send_result(to, key, value))

        if name == "load":
            self._services.load_model(arguments["name"], arguments["config"] or None, files, done)
        elif name == "unload":
            self._services.unload_model(
                arguments["name"], unload_dependents=arguments["unload_dependents"], on_done=done
            )
        elif name == "is_ready":
            self._services.is_model_ready(arguments["name"], arguments["version"], done)
        else:
            try:
                value: Any = self._metrics.call(name, arguments)
            except NaiadError as error:
                value = error
            # From here, and not by the writer's thread: it is small, and somebody waits.
            _send_result(process, key, value)

    def _put(self, process: ModelProcess, send: Callable[[ModelProcess], None]) -> None:
        if self._writer is None:
            self._writer = threading.Thread(target=self._write, name="model-answers", daemon=True)
            self._writer.start()
        self._outbox.put((process, send))

    def _write(self) -> None:
        while (answer := self._outbox.get()) is not None:
            process, send = answer
            send(process)
            del answer, send


def _send_response(process: ModelProcess, key: int, response: InferResponse) -> None:
    flags = wire.IS_FINAL if response.is_final else 0
    try:
        writer = process.channel.writer()
        writer.response(response_to_wire(response))
    except RegionFullError as fault:
        writer.discard()
        writer = process.channel.writer()
        error = error_to_wire(InternalError(str(fault)))
        writer.response(wire.WireResponse((), error, ""))
    with contextlib.suppress(ChannelClosedError):  # then nobody waits
        process.channel.send(wire.INFER_RESPONSE, key, writer.payload(), flags)


def _send_result(process: ModelProcess, key: int, value: Any) -> None:
    writer = process.channel.writer()
    is_refused = isinstance(value, NaiadError)
    writer.text(value.message if is_refused else json.dumps(value))
    with contextlib.suppress(ChannelClosedError):  # then nobody waits
        process.channel.send(wire.RESULT, key, writer.payload(), int(is_refused))
