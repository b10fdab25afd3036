"""A model instance in the server's own process: no hop between them, and no wall either.

For light models that are trusted. What such a model does to its process it does to the server:
``os._exit`` ends it, a loop that holds the interpreter's lock holds the server up.
"""

import itertools
import logging
import queue
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from naiad.backends.base import (
    Answer,
    ModelResponse,
    ModelServices,
    OutgoingRequest,
    RequestBatch,
)
from naiad.backends.custom_metrics import MetricHolder
from naiad.backends.python.messages import (
    request_from_wire,
    request_to_wire,
    response_from_wire,
    response_to_wire,
    with_request_id,
)
from naiad.backends.python.stub.naiad_stub import pb_utils, wire
from naiad.backends.python.stub.naiad_stub.host import Host, HostError, binding
from naiad.backends.python.stub.naiad_stub.model_file import ModelError, ModelFile, failure_text
from naiad.errors import InternalError, InvalidArgumentError, NaiadError
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse

_log = logging.getLogger(__name__)

_LEVELS: Final = (logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)


class InProcessInstance:
    """Runs the model in the thread that brings its batches.

    Args:
        arguments: what ``initialize`` gets, and where the model lies.
        version: of the model.
        services: what the model may ask of the server.

    Raises:
        InternalError: the model did not start.
    """

    def __init__(self, arguments: Mapping[str, str], version: int, services: ModelServices) -> None:
        self._version = version
        self._host = _InProcessHost(arguments, services, self)
        self._file = ModelFile(
            arguments["model_file"],
            self._host.model_name,
            self._host.instance_name,
            is_shared=True,
        )
        self._keys = itertools.count(1)
        # Shared between the instance's thread, the model's own, and the loop.
        self._lock = threading.Lock()
        self._open: dict[int, tuple[RequestBatch, InferRequest]] = {}
        # Not held, so that a request that the model lets go of is noticed.
        self._answering: dict[InferRequest, weakref.ref[Any]] = {}
        self.is_ready = True
        self.is_lost = False
        self.failure = ""
        hidden = ("model_directory", "model_file", "is_decoupled")
        given = {key: value for key, value in arguments.items() if key not in hidden}
        binding.set_for_thread(self._host)
        try:
            self._file.load()
            self._file.initialize(given)
        except ModelError as error:
            self._host.close()
            _log.error("%s: %s", self._host.instance_name, error.details or error)
            raise InternalError(str(error)) from error
        self._host.can_infer = True

    def watch(self, on_change: Callable[[], None]) -> None:
        """Nothing changes: it lives as long as the server."""

    def execute_requests(self, batch: RequestBatch) -> None:
        """Run the model on a batch."""
        binding.set_for_thread(self._host)
        keys = self._register(batch)
        requests = [self._make_request(key, batch) for key in keys]
        self._host.begin()
        answers: list[Answer] = []
        rescheduled: list[InferRequest] = []
        try:
            for request, response in self._file.execute(
                requests, is_decoupled=self._host.is_decoupled
            ):
                answers += self._answer(request, response)
            known = map(self._pop, pb_utils.take_rescheduled(requests))
            rescheduled = [request for _, request in filter(None, known)]
        except ModelError as error:
            message = failure_text(self._host.instance_name, error)
            _log.error("%s\n%s", message, error.details)
            for request in requests:
                pb_utils.close_request(request)
            answers = self._fail(keys, message)
        finally:
            self._host.end()
        del requests
        batch.finish(answers, rescheduled)

    def cancel(self, request: InferRequest) -> None:
        """Tell the model that nobody waits for a request any more."""
        known = self._answering.get(request)
        answering = known() if known is not None else None
        if answering is not None:
            answering.is_cancelled = True

    def close(self) -> None:
        """Let the model clean up."""
        binding.set_for_thread(self._host)
        self.is_ready = False
        self._host.can_infer = False
        try:
            self._file.finalize()
        except ModelError as error:
            _log.error("model instance '%s': finalize: %s", self._host.instance_name, error)
        self._host.close()

    def respond(self, key: int, response: wire.WireResponse, *, is_final: bool) -> None:
        """A response sender has sent something."""
        known = self._pop(key) if is_final else self._open.get(key)
        if known is not None:
            batch, request = known
            if request.pace is not None and not is_final:
                request.pace.wait(self._room_of(request))
            batch.respond(request, _copy(response, is_final=is_final))

    def _room_of(self, request: InferRequest) -> Callable[[], None]:
        """What lets the sender of a request go on."""
        known = self._answering.get(request)
        answering = known() if known is not None else None
        return _nothing if answering is None else answering.room.release

    def find_request(self, key: int) -> InferRequest | None:
        """A request that the model has not answered."""
        known = self._open.get(key)
        return known[1] if known is not None else None

    def _pop(self, key: int) -> tuple[RequestBatch, InferRequest] | None:
        with self._lock:
            known = self._open.pop(key, None)
            if known is not None:
                self._answering.pop(known[1], None)
        return known

    def _register(self, batch: RequestBatch) -> list[int]:
        with self._lock:
            keys = []
            for request in batch.requests:
                key = next(self._keys)
                self._open[key] = (batch, request)
                keys.append(key)
        return keys

    def _make_request(self, key: int, batch: RequestBatch) -> pb_utils.InferenceRequest:
        _, request = self._open[key]
        asked = request_to_wire(key, request, batch, self._version)
        # Their memory is the connection's, which takes the next request into it.
        inputs = [tensor._replace(data=np.array(tensor.data)) for tensor in asked.inputs]
        made = pb_utils.make_request(self._host, asked._replace(inputs=inputs))
        self._answering[request] = weakref.ref(pb_utils.answering_of(made))
        if request.is_given_up:  # before it could be found
            self.cancel(request)
        return made

    def _answer(
        self, request: pb_utils.InferenceRequest, response: pb_utils.InferenceResponse
    ) -> list[Answer]:
        answering = pb_utils.answering_of(request)
        known = self._pop(answering.key)
        if known is None:
            return []
        sent = pb_utils.response_to_wire(response, answering.wanted)
        return [(known[1], _copy(sent, is_final=True))]

    def _fail(self, keys: list[int], message: str) -> list[Answer]:
        known = [self._pop(key) for key in keys]
        return [
            (request, ModelResponse(error=InternalError(with_request_id(message, request))))
            for _, request in filter(None, known)
        ]


class _InProcessHost(Host):
    """The server, by calls instead of messages."""

    def __init__(
        self, arguments: Mapping[str, str], services: ModelServices, instance: InProcessInstance
    ) -> None:
        self.model_name = arguments["model_name"]
        self.instance_name = arguments["model_instance_name"]
        self.model_directory = arguments["model_directory"]
        self.is_decoupled = arguments["is_decoupled"] == "1"
        self._services = services
        self._instance = instance
        self._metrics = MetricHolder(services.custom_metrics)
        self._keys = itertools.count(1)
        self._inferring: dict[int, InferRequest] = {}
        self._executing: int | None = None

    def begin(self) -> None:
        """``execute`` begins, in the calling thread."""
        self._executing = threading.get_ident()

    def end(self) -> None:
        """``execute`` has returned."""
        self._executing = None

    def close(self) -> None:
        """The model is gone."""
        for request in list(self._inferring.values()):
            self._services.cancel(request)
        self._metrics.close()

    def respond(self, key: int, response: wire.WireResponse, *, is_final: bool) -> None:
        """See `Host`."""
        self._instance.respond(key, response, is_final=is_final)

    def infer(
        self,
        request: wire.WireRequest,
        on_response: Callable[[wire.WireResponse, bool], None],
        *,
        is_decoupled: bool,
    ) -> int:
        """See `Host`."""
        key = next(self._keys)

        def answer(response: InferResponse) -> None:
            if response.is_final:
                self._inferring.pop(key, None)
            on_response(response_to_wire(response), response.is_final)

        try:
            asked = request_from_wire(request, answer)
        except InvalidArgumentError as error:
            raise pb_utils.TritonModelException(error.message) from error
        self._inferring[key] = asked
        is_blocking = self._executing is not None and (
            not self.is_decoupled or threading.get_ident() == self._executing
        )
        self._services.infer(
            OutgoingRequest(
                request.model_name,
                request.model_version,
                asked,
                takes_many=is_decoupled,
                waiting=self._instance if is_blocking else None,
                parent=self._instance.find_request(request.parent_key),
            )
        )
        return key

    def cancel_infer(self, key: int) -> None:
        """See `Host`."""
        request = self._inferring.get(key)
        if request is not None:
            self._services.cancel(request)

    def call(
        self, name: str, arguments: Mapping[str, Any], files: Mapping[str, bytes | memoryview]
    ) -> Any:
        """See `Host`."""
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        if name == "load":
            given = {path.removeprefix("file:"): bytes(data) for path, data in files.items()}
            config = arguments["config"] or None
            self._services.load_model(arguments["name"], config, given, answer.put)
        elif name == "unload":
            self._services.unload_model(
                arguments["name"],
                unload_dependents=arguments["unload_dependents"],
                on_done=answer.put,
            )
        elif name == "is_ready":
            self._services.is_model_ready(arguments["name"], arguments["version"], answer.put)
        else:
            try:
                return self._metrics.call(name, arguments)
            except NaiadError as error:
                raise HostError(error.message) from error
        value = answer.get()
        if isinstance(value, NaiadError):
            raise HostError(value.message)
        return value

    def tell(self, name: str, arguments: Mapping[str, Any]) -> None:
        """See `Host`."""
        try:
            self._metrics.tell(name, arguments)
        except NaiadError as error:
            _log.warning("%s", error.message)

    def log(self, level: int, text: str) -> None:
        """See `Host`."""
        _log.log(_LEVELS[level] if level < len(_LEVELS) else logging.INFO, "%s", text)


def _copy(response: wire.WireResponse, *, is_final: bool) -> ModelResponse:
    """A response whose tensors are the server's: the model may write on what it has sent."""
    outputs = [
        tensor if tensor.code == wire.BYTES else tensor._replace(data=np.array(tensor.data))
        for tensor in response.outputs
    ]
    return response_from_wire(response._replace(outputs=outputs), is_final=is_final)


def _nothing() -> None:
    """Nobody waits."""
