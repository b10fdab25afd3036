"""What a model imports as ``triton_python_backend_utils``.

Names, parameters and texts of errors are Triton's; source: python_backend's README and its
pb_stub.cc, response_sender.cc, pb_tensor.cc, metric_family.cc.
"""

from __future__ import annotations

import asyncio
import enum
import json
import queue
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from . import dlpack, wire
from .auto_complete import ModelConfig
from .errors import TritonModelException
from .host import Host, HostError, binding
from .metrics import Metric, MetricFamily, MetricKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "Metric",
    "MetricFamily",
    "MetricKind",
    "ModelConfig",
    "PreferredMemory",
    "ResponseIterator",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
TRITONSERVER_MEMORY_CPU = 0
TRITONSERVER_MEMORY_GPU = 2

TRITON_STRING_TO_NUMPY: dict[str, Any] = {
    "TYPE_BOOL": bool,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}
_host = binding.get
_NUMPY_TYPES = [
    None, np.bool_, np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.int32,
    np.int64, np.float16, np.float32, np.float64, np.object_,
]  # fmt: skip


class TritonError:
    """An error of one request.

    Args:
        message: for the client.
        code: one of the codes below.
    """

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        if not isinstance(message, str):
            raise TypeError(f"TritonError: message must be str, got {type(message)}")
        if code not in range(8):
            raise TypeError(f"TritonError: unknown code {code!r}")
        self._message = message
        self._code = code

    def code(self) -> int:
        """One of the codes."""
        return self._code

    def message(self) -> str:
        """What the client reads."""
        return self._message

    def __str__(self) -> str:
        return self._message


class PreferredMemory:
    """Where the outputs of a request to another model should lie; here that is the CPU's memory."""

    def __init__(self, preferred_memory_type: int, preferred_device_id: int = 0) -> None:
        self.preferred_memory_type = preferred_memory_type
        self.preferred_device_id = preferred_device_id


class InferenceTrace:
    """The trace of a request, to be passed on to requests to other models."""

    def __init__(self, context: str = "") -> None:
        self._context = context
        # By which the server knows the request.
        self._key = 0

    def get_context(self) -> str | None:
        """The context of OpenTelemetry as JSON, or None where there is none."""
        return self._context or None


# What a request has whose maker says nothing; an explicit None is refused, as Triton does.
_CPU_MEMORY = PreferredMemory(TRITONSERVER_MEMORY_CPU)
_NO_TRACE = InferenceTrace()


class Tensor:
    """A named array.

    Args:
        name: as in the model config.
        numpy_array: of a dtype that Triton has; copied if it is not C-contiguous. Objects and
            bytes become BYTES.
    """

    __slots__ = ("_array", "_code", "_name", "_raw", "_shape")

    def __init__(self, name: str, numpy_array: Any) -> None:
        if not isinstance(numpy_array, np.ndarray):
            raise TypeError(f"Tensor '{name}' needs a numpy array, got {type(numpy_array)}")
        _check_name(name)
        code = numpy_to_triton_type(numpy_array.dtype)
        if code is None:
            raise TritonModelException(
                f"NumPy dtype '{numpy_array.dtype}' of tensor '{name}' is not supported."
            )
        if not numpy_array.flags.c_contiguous:
            numpy_array = numpy_array.copy(order="C")
        self._name = name
        self._code = code
        self._shape: tuple[int, ...] = numpy_array.shape
        self._array: Any = numpy_array
        # Serialized elements of a BYTES tensor that nobody looked at yet.
        self._raw: Any = None

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        """A tensor on the memory of a DLPack capsule, or of an object that makes one."""
        _check_name(name)
        try:
            array, code = dlpack.from_dlpack(tensor)
        except dlpack.DlpackError as error:
            raise TritonModelException(str(error)) from error
        return _make_tensor(name, code, array.shape, array, None)

    def name(self) -> str:
        """As in the model config."""
        return self._name

    def as_numpy(self) -> Any:
        """The elements; BYTES are an object array of ``bytes``."""
        if self._code == wire.BF16:
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and "
                "from_dlpack() instead."
            )
        if self._array is None:
            self._array = wire.elements_array(wire.decode_elements(self._raw), self._shape)
        return self._array

    def triton_dtype(self) -> int:
        """The number of the datatype in Triton's ``model_config.proto``."""
        return self._code

    def shape(self) -> list[int]:
        """With the batch axis, where the model has one."""
        return list(self._shape)

    def is_cpu(self) -> bool:
        """Whether the elements are in the CPU's memory: always, here."""
        return True

    def to_dlpack(self) -> Any:
        """A capsule of the memory."""
        return self.__dlpack__()

    def __dlpack__(self, stream: Any = None, **_: Any) -> Any:
        if self._code == wire.BYTES:
            raise TritonModelException("DLPack does not have support for string tensors.")
        return dlpack.to_capsule(self._array, self._code)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CPU, 0)

    def _to_wire(self) -> wire.WireTensor:
        data = self._array
        if self._code == wire.BYTES:
            if self._raw is None or self._array is not None:
                encoded = wire.encode_elements(self._array.reshape(-1))
                data = np.frombuffer(encoded, np.uint8)
            else:
                data = self._raw
        return wire.WireTensor(self._name, self._code, self._shape, data)


def _make_tensor(name: str, code: int, shape: Sequence[int], array: Any, raw: Any) -> Tensor:
    made = object.__new__(Tensor)
    made._name = name
    made._code = code
    made._shape = tuple(shape)
    made._array = array
    made._raw = raw
    return made


def _from_wire(tensor: wire.WireTensor) -> Tensor:
    if tensor.code == wire.BYTES:
        return _make_tensor(tensor.name, tensor.code, tensor.shape, None, tensor.data)
    return _make_tensor(tensor.name, tensor.code, tensor.shape, tensor.data, None)


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(f"Tensor name must be str, got {type(name)}")
    if not name:
        raise TritonModelException("Tensor name cannot be an empty string.")


def _check_request_arguments(**arguments: tuple[Any, type]) -> None:
    for name, (value, kind) in arguments.items():
        if not isinstance(value, kind):
            raise TypeError(
                f"InferenceRequest(): {name} must be {kind.__name__}, got {type(value).__name__}"
            )


def _check_parameters(parameters: Any) -> dict[str, Any]:
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect parameters to be a dict, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(
                f"Expect parameters keys to have type str, found type {type(key)}"
            )
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(
                f"Expect parameters values to have type bool/int/str, found type {type(value)}"
            )
    return dict(parameters)


class InferenceResponse:
    """One response.

    Args:
        output_tensors: the outputs; those that the client did not ask for are left out.
        error: why there are none.
        parameters: for the client; values are booleans, integers and texts.
    """

    __slots__ = ("_error", "_outputs", "_parameters")

    def __init__(
        self,
        output_tensors: Iterable[Tensor] = (),
        error: TritonError | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        self._outputs = list(output_tensors)
        for tensor in self._outputs:
            if tensor is None:
                raise TritonModelException(
                    "Output tensor for inference response should not be empty."
                )
            if not isinstance(tensor, Tensor):
                raise TypeError(f"output_tensors must hold Tensor objects, got {type(tensor)}")
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"error must be a TritonError, got {type(error)}")
        self._error = error
        self._parameters = json.dumps(_check_parameters(parameters))

    def output_tensors(self) -> list[Tensor]:
        """The outputs."""
        return self._outputs

    def has_error(self) -> bool:
        """Whether it is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """The error, or None."""
        return self._error

    def parameters(self) -> str:
        """The parameters as JSON."""
        return self._parameters

    def _to_wire(self, wanted: Sequence[str]) -> wire.WireResponse:
        error = self._error
        if error is not None:
            return wire.WireResponse((), wire.WireError(error.code(), error.message()), "")
        outputs = [tensor._to_wire() for tensor in self._outputs if tensor.name() in wanted]
        return wire.WireResponse(
            outputs, None, "" if self._parameters == "{}" else self._parameters
        )


def _response_from_wire(response: wire.WireResponse) -> InferenceResponse:
    made = InferenceResponse([_from_wire(tensor) for tensor in response.outputs])
    if response.error is not None:
        made._error = TritonError(response.error.message, response.error.code)
    made._parameters = response.parameters or "{}"
    return made


class _Answering:
    """How far a request of the server is answered; its request and sender share it."""

    __slots__ = (
        "__weakref__",
        "count",
        "host",
        "is_cancelled",
        "is_closed",
        "key",
        "lock",
        "room",
        "wanted",
    )

    def __init__(
        self, host: Host, key: int, wanted: Sequence[str], *, is_paced: bool = False
    ) -> None:
        self.host = host
        self.key = key
        self.wanted = wanted
        # Released when the server has room for the next response; None where it always has.
        self.room = threading.Semaphore(0) if is_paced else None
        self.is_cancelled = False
        self.is_closed = False
        self.count = 0
        self.lock = threading.Lock()

    def note(self, response: InferenceResponse | None, flags: int) -> None:
        """Count a response that is about to be sent."""
        with self.lock:
            if not self.host.is_decoupled:
                if response is not None and self.count > 0:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send more than one "
                        "response."
                    )
                if response is None and flags and self.count == 0:
                    raise TritonModelException(
                        "Unable to send response. Non-decoupled model cannot send complete final "
                        "before sending a response."
                    )
            if self.is_closed:
                raise TritonModelException(
                    "Unable to send response. Response sender has been closed."
                )
            self.is_closed = bool(flags)
            self.count += 1

    def __del__(self) -> None:
        # Nobody can answer any more, and the client would wait for ever.
        if self.is_closed:
            return
        self.is_closed = True
        error = None
        if not self.host.is_decoupled:
            if self.count:
                return
            error = wire.WireError(
                TritonError.INTERNAL,
                f"model instance '{self.host.instance_name}' let go of the request without "
                "answering it",
            )
        response = wire.WireResponse((), error, "", is_empty=error is None)
        try:
            self.host.respond(self.key, response, is_final=True)
        except Exception:  # noqa: BLE001 - the server is gone, or Python ends
            return


class InferenceResponseSender:
    """Answers one request, from any thread, also after ``execute`` has returned."""

    __slots__ = ("_answering",)

    def __init__(self, answering: _Answering) -> None:
        self._answering = answering

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response; ``TRITONSERVER_RESPONSE_COMPLETE_FINAL`` says that it is the last.

        In an ensemble with ``max_inflight_requests`` it waits until there is room for another.

        Raises:
            TritonModelException: it can't be sent now; the text says why.
        """
        if flags not in {0, TRITONSERVER_RESPONSE_COMPLETE_FINAL}:
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if flags == 0 and response is None:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"send() takes an InferenceResponse, got {type(response)}")
        answering = self._answering
        answering.note(response, flags)
        is_final = bool(flags)
        if not answering.host.is_decoupled:
            if response is None:
                return  # the one response has gone, and was the last
            is_final = True
        sent = (
            wire.WireResponse((), None, "", is_empty=True)
            if response is None
            else response._to_wire(answering.wanted)
        )
        answering.host.respond(answering.key, sent, is_final=is_final)
        if answering.room is not None and not is_final:
            answering.room.acquire()

    def is_cancelled(self) -> bool:
        """Whether the client has gone away or given up."""
        return self._answering.is_cancelled


class InferenceRequest:
    """A request: one that the server brings, or one that a model makes to ask another model.

    Args:
        request_id: the client's label.
        correlation_id: of the sequence, a number or a text.
        inputs: the tensors.
        requested_output_names: the outputs to compute.
        model_name: who is asked.
        model_version: -1 for the latest.
        flags: of the sequence.
        timeout: in the queue, in microseconds.
        preferred_memory: where the outputs should lie.
        trace: of the request on whose behalf this is made.
        parameters: for the model; values are booleans, integers and texts.
    """

    __slots__ = (
        "_answering",
        "_correlation_id",
        "_flags",
        "_inputs",
        "_model_name",
        "_model_version",
        "_output_names",
        "_parameters",
        "_preferred_memory",
        "_release_flags",
        "_request_id",
        "_timeout",
        "_trace",
    )

    def __init__(  # noqa: PLR0913, PLR0917 - Triton's signature
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Iterable[Tensor] | None = None,
        requested_output_names: Iterable[str] | None = None,
        model_name: str | None = None,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory = _CPU_MEMORY,
        trace: InferenceTrace = _NO_TRACE,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        if inputs is None or requested_output_names is None or model_name is None:
            raise TypeError(
                "InferenceRequest() needs inputs, requested_output_names and model_name"
            )
        _check_request_arguments(
            request_id=(request_id, str),
            model_name=(model_name, str),
            model_version=(model_version, int),
            flags=(flags, int),
            timeout=(timeout, int),
            preferred_memory=(preferred_memory, PreferredMemory),
            trace=(trace, InferenceTrace),
        )
        if correlation_id is None:
            raise TypeError("InferenceRequest(): correlation_id can't be None")
        if not isinstance(correlation_id, (int, str)):
            raise TritonModelException("Correlation ID must be integer or string")
        self._request_id = request_id
        self._correlation_id = correlation_id
        self._inputs = list(inputs)
        self._output_names = list(dict.fromkeys(requested_output_names))
        self._model_name = model_name
        self._model_version = model_version
        self._flags = flags
        self._timeout = timeout
        self._preferred_memory = preferred_memory
        self._trace = trace
        self._parameters = json.dumps(_check_parameters(parameters))
        self._release_flags = TRITONSERVER_REQUEST_RELEASE_ALL
        self._answering: _Answering | None = None
        where = f"with id '{request_id}' and model name '{model_name}' should not be empty."
        if any(tensor is None for tensor in self._inputs):
            raise TritonModelException(f"Input tensor for request {where}")
        if not all(isinstance(name, str) for name in self._output_names):
            raise TypeError("requested_output_names must hold texts")
        if any(not name for name in self._output_names):
            raise TritonModelException(f"Requested output name for request {where}")

    def inputs(self) -> list[Tensor]:
        """The tensors."""
        return self._inputs

    def request_id(self) -> str:
        """The client's label; empty where there is none."""
        return self._request_id

    def correlation_id(self) -> int | str:
        """Of the sequence; 0 where there is none."""
        return self._correlation_id

    def flags(self) -> int:
        """Of the sequence."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Of the sequence."""
        self._flags = flags

    def timeout(self) -> int:
        """In the queue, in microseconds; 0 where none was set."""
        return self._timeout

    def parameters(self) -> str:
        """The parameters as JSON."""
        return self._parameters

    def requested_output_names(self) -> list[str]:
        """The outputs that the client wants."""
        return self._output_names

    def preferred_memory(self) -> PreferredMemory:
        """Where the outputs should lie."""
        return self._preferred_memory

    def trace(self) -> InferenceTrace:
        """Of the request."""
        return self._trace

    def is_cancelled(self) -> bool:
        """Whether the client has gone away or given up."""
        return self._answering is not None and self._answering.is_cancelled

    def get_response_sender(self) -> InferenceResponseSender:
        """What answers the request besides the list that ``execute`` returns."""
        if self._answering is None:
            raise TritonModelException(
                "Unable to send response. Response sender has no reference to the decoupled state "
                "of the model."
            )
        return InferenceResponseSender(self._answering)

    def set_release_flags(self, flags: int) -> None:
        """Whether the request is done with when ``execute`` returns, or comes again."""
        self._release_flags = flags

    def exec(self, decoupled: bool = False) -> InferenceResponse | ResponseIterator:  # noqa: FBT001, FBT002
        """Ask the model and wait for its answer.

        Args:
            decoupled: take any number of responses; returns an iterator over them.
        """
        calls = _Responses()
        calls.key = self._ask(calls.put, is_decoupled=decoupled)
        if decoupled:
            return ResponseIterator(calls)
        return calls.only()

    def async_exec(self, decoupled: bool = False) -> asyncio.Future[Any]:  # noqa: FBT001, FBT002
        """The same as an awaitable, in a running event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        calls = _Responses()

        def finish(value: Any) -> None:
            if not future.done():
                future.set_result(value)

        def put(response: wire.WireResponse, is_final: bool) -> None:  # noqa: FBT001
            calls.put(response, is_final)
            if decoupled:
                # With the first response, so that whoever goes through them has not to wait for it.
                if not future.done():
                    loop.call_soon_threadsafe(finish, iterator)
            elif is_final:
                loop.call_soon_threadsafe(lambda: finish(calls.only()))

        iterator = ResponseIterator(calls) if decoupled else None
        calls.key = self._ask(put, is_decoupled=decoupled)
        return future

    def _ask(
        self, on_response: Callable[[wire.WireResponse, bool], None], *, is_decoupled: bool
    ) -> int:
        host = _host()
        if not host.can_infer:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        return host.infer(self._to_wire(), on_response, is_decoupled=is_decoupled)

    def _to_wire(self) -> wire.WireRequest:
        return wire.WireRequest(
            0,
            self._request_id,
            self._correlation_id,
            self._flags,
            self._timeout,
            self._parameters,
            self._model_name or "",
            self._model_version,
            self._output_names,
            [tensor._to_wire() for tensor in self._inputs],
            self._trace._key,
        )


def answering_of(request: InferenceRequest) -> Any:
    """How far a request that the server brought is answered."""
    return request._answering


def inputs_to_wire(request: InferenceRequest) -> list[wire.WireTensor]:
    """The inputs of a request as they crossed."""
    return [tensor._to_wire() for tensor in request._inputs]


def response_from_outputs(outputs: Iterable[wire.WireTensor]) -> InferenceResponse:
    """A response whose outputs are as they cross."""
    return InferenceResponse([_from_wire(tensor) for tensor in outputs])


def close_request(request: InferenceRequest) -> None:
    """The request is answered by the server, since its batch has failed."""
    answering = request._answering
    if answering is not None:
        answering.is_closed = True
        if answering.room is not None:
            # Whoever is about to send must not wait for room: nobody takes it.
            answering.room.release()


def response_to_wire(response: InferenceResponse, wanted: Sequence[str]) -> wire.WireResponse:
    """A response as it crosses, without the outputs that nobody wants."""
    return response._to_wire(wanted)


def take_rescheduled(requests: Iterable[InferenceRequest]) -> list[int]:
    """The keys of the requests that are to come again; what comes then is a new object.

    A request that was answered to the end does not come again.
    """
    keys = []
    for request in requests:
        answering = request._answering
        if (
            request._release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
            and answering is not None
            and not answering.is_closed
        ):
            answering.is_closed = True
            keys.append(answering.key)
    return keys


def make_request(host: Host, request: wire.WireRequest) -> InferenceRequest:
    """A request that the server brings."""
    made = object.__new__(InferenceRequest)
    made._request_id = request.request_id
    made._correlation_id = request.correlation_id
    made._inputs = [_from_wire(tensor) for tensor in request.inputs]
    made._output_names = list(request.output_names)
    made._model_name = host.model_name
    made._model_version = request.model_version
    made._flags = request.flags & ~(wire.IS_PACED | wire.IS_GIVEN_UP)
    made._timeout = request.timeout_us
    made._preferred_memory = _CPU_MEMORY
    made._trace = InferenceTrace()
    made._trace._key = request.key
    made._parameters = request.parameters or "{}"
    made._release_flags = TRITONSERVER_REQUEST_RELEASE_ALL
    made._answering = _Answering(
        host, request.key, made._output_names, is_paced=bool(request.flags & wire.IS_PACED)
    )
    made._answering.is_cancelled = bool(request.flags & wire.IS_GIVEN_UP)
    return made


class _Responses:
    """The responses of one request to another model, as they come."""

    def __init__(self) -> None:
        self.key = 0
        self._queue: queue.SimpleQueue[tuple[wire.WireResponse, bool]] = queue.SimpleQueue()

    def put(self, response: wire.WireResponse, is_final: bool) -> None:  # noqa: FBT001
        """One came."""
        self._queue.put((response, is_final))

    def next(self) -> tuple[InferenceResponse, bool, bool]:
        """The next one, whether it is the last, and whether it only says so; waits for it."""
        response, is_final = self._queue.get()
        return _response_from_wire(response), is_final, response.is_empty

    def only(self) -> InferenceResponse:
        """The one response of a model that gives one."""
        found: InferenceResponse | None = None
        is_final = False
        while not is_final:
            response, is_final, is_empty = self.next()
            if not is_empty:
                found = response
        return found if found is not None else InferenceResponse()


class ResponseIterator:
    """The responses of a decoupled model; the last one may have no outputs."""

    def __init__(self, responses: _Responses) -> None:
        self._responses = responses
        self._seen: list[InferenceResponse] = []
        self._at = 0
        self._is_finished = False

    def __iter__(self) -> Iterator[InferenceResponse]:
        if self._is_finished and self._at >= len(self._seen):
            self._at = 0
        return self

    def __next__(self) -> InferenceResponse:
        if self._is_finished:
            if self._at >= len(self._seen):
                raise StopIteration
            self._at += 1
            return self._seen[self._at - 1]
        response, self._is_finished, _ = self._responses.next()
        self._seen.append(response)
        if self._is_finished:
            self._at = len(self._seen)
        return response

    def cancel(self) -> None:
        """Tell the model that its answers are not wanted any more."""
        if not self._is_finished:
            _host().cancel_infer(self._responses.key)

    def __del__(self) -> None:
        try:
            self.cancel()
        except Exception:  # noqa: BLE001 - the server is gone, or Python ends
            return


class LogLevel(enum.IntEnum):
    """How grave a line of the log is."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


class Logger:
    """Writes to the server's log."""

    LogLevel = LogLevel
    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    @staticmethod
    def log(message: str, level: int = LogLevel.INFO) -> None:
        """A line of any level."""
        _log(level, message)

    @staticmethod
    def log_info(message: str) -> None:
        """A line for information."""
        _log(LogLevel.INFO, message)

    @staticmethod
    def log_warn(message: str) -> None:
        """A warning."""
        _log(LogLevel.WARNING, message)

    @staticmethod
    def log_error(message: str) -> None:
        """An error."""
        _log(LogLevel.ERROR, message)

    @staticmethod
    def log_verbose(message: str) -> None:
        """A line that is written only where the server is told to be verbose."""
        _log(LogLevel.VERBOSE, message)


def _log(level: int, message: str) -> None:
    if not isinstance(message, str):
        raise TypeError(f"a line of the log must be str, got {type(message)}")
    if not isinstance(level, LogLevel):
        raise TypeError(f"a level of the log must be one of LogLevel, got {level!r}")
    frame = sys._getframe(2)
    name = frame.f_code.co_filename.rpartition("/")[2]
    _host().log(level, f"{name}:{frame.f_lineno}] {message}")


def load_model(model_name: str, config: str = "", files: dict[str, bytes] | None = None) -> None:
    """Load a model or load it anew; returns when it serves.

    Args:
        model_name: of the model.
        config: its config as JSON, instead of the repository's.
        files: content by ``file:<path>``, instead of the repository's.

    Raises:
        TritonModelException: it did not load.
    """
    if files is not None and not isinstance(files, dict):
        raise TritonModelException(
            f"failed to load model '{model_name}', files should be a dictionary of file paths and "
            "file contents"
        )
    _call("load", "load model", {"name": model_name, "config": config}, files or {})


def unload_model(model_name: str, unload_dependents: bool = False) -> None:  # noqa: FBT001, FBT002
    """Unload a model.

    Raises:
        TritonModelException: that is not allowed.
    """
    arguments = {"name": model_name, "unload_dependents": bool(unload_dependents)}
    _call("unload", "unload model", arguments)


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Whether a model serves.

    Raises:
        TritonModelException: the version is no number.
    """
    version = -1
    if model_version:
        try:
            version = int(model_version)
        except ValueError as error:
            raise TritonModelException(
                "failed to get model version from specified version string "
                f"'{model_version}' (details: {error}), version should be an integral value > 0"
            ) from error
        if version < 0:
            raise TritonModelException(
                "failed to get model version from specified version string "
                f"'{model_version}', version should be an integral value > 0"
            )
    arguments = {"name": model_name, "version": version}
    return bool(_call("is_ready", "check model readiness", arguments))


def get_model_dir() -> str:
    """The folder of the model's version."""
    return _host().model_directory


def _call(
    name: str, what: str, arguments: dict[str, Any], files: dict[str, bytes] | None = None
) -> Any:
    try:
        return _host().call(name, arguments, files or {})
    except HostError as error:
        raise TritonModelException(f"Failed to {what}: {error}") from error


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """The input of that name, or None."""
    return _find(inference_request.inputs(), name)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """The output of that name, or None."""
    return _find(inference_response.output_tensors(), name)


def _find(tensors: Iterable[Tensor], name: str) -> Tensor | None:
    for tensor in tensors:
        if tensor._name == name:
            return tensor
    return None


def get_input_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The input of that name in a model config, or None."""
    return _find_config(model_config.get("input", ()), name)


def get_output_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The output of that name in a model config, or None."""
    return _find_config(model_config.get("output", ()), name)


def _find_config(tensors: Iterable[dict[str, Any]], name: str) -> dict[str, Any] | None:
    for tensor in tensors:
        if tensor["name"] == name:
            return tensor
    return None


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    """Whether a model config says that a request may have any number of responses."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def triton_to_numpy_type(data_type: int) -> Any:
    """The numpy type for the number of a datatype; None for one that numpy lacks."""
    return _NUMPY_TYPES[data_type] if 0 < data_type < len(_NUMPY_TYPES) else None


def numpy_to_triton_type(data_type: Any) -> int | None:
    """The number of the datatype for one of numpy's; None for one that Triton lacks."""
    dtype = np.dtype(data_type)
    if dtype.kind in "OS":
        return wire.BYTES
    for code in range(1, wire.BYTES):
        if wire.DTYPES[code] == dtype:
            return code
    return None


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """The numpy type for a name such as ``TYPE_FP32``."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def serialize_byte_tensor(input_tensor: Any) -> Any:
    """The elements of an object array one after the other, each behind its length in 4 bytes."""
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype.kind not in "OS":
        return None
    return wire.encode_elements(input_tensor.reshape(-1))


def deserialize_bytes_tensor(encoded_tensor: bytes) -> Any:
    """The flat object array that `serialize_byte_tensor` wrote."""
    elements = wire.decode_elements(encoded_tensor)
    return wire.elements_array(elements, (len(elements),))
