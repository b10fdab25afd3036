"""One request, carried in four ways by NVIDIA's own client."""

import queue
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy.typing as npt
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Question:
    """What is asked of a model.

    Attributes:
        model: name of a recorded model.
        inputs: by name; shapes as given, the batch axis included.
        outputs: names in the order asked for; None for all.
        datatypes: of inputs whose datatype is to be another than numpy's.
    """

    model: str
    inputs: Mapping[str, Array]
    outputs: Sequence[str] | None = None
    version: str = ""
    request_id: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    datatypes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    outputs: Mapping[str, Array]
    model_version: str
    request_id: str


class RefusedError(Exception):
    """The server's text, without the status that each protocol puts before it."""


class Carrier(Protocol):
    name: str
    can_carry_fp16: bool

    def ask(self, question: Question) -> Answer: ...


def _datatype(question: Question, name: str, data: Array) -> str:
    return question.datatypes.get(name) or np_to_triton_dtype(data.dtype)


class HttpCarrier:
    def __init__(self, address: str, *, is_binary: bool) -> None:
        self.name = "HTTP binary" if is_binary else "HTTP JSON"
        self.can_carry_fp16 = is_binary
        self._is_binary = is_binary
        self._client = triton_http.InferenceServerClient(address)

    def ask(self, question: Question) -> Answer:
        inputs = []
        for name, data in question.inputs.items():
            given = triton_http.InferInput(name, data.shape, _datatype(question, name, data))
            given.set_data_from_numpy(data, binary_data=self._is_binary)
            inputs.append(given)
        names = question.outputs
        if names is None:
            metadata = self._client.get_model_metadata(question.model, question.version)
            names = [output["name"] for output in metadata["outputs"]]
        outputs = [
            triton_http.InferRequestedOutput(name, binary_data=self._is_binary) for name in names
        ]
        try:
            result = self._client.infer(
                question.model,
                inputs,
                outputs=outputs,
                model_version=question.version,
                request_id=question.request_id,
                parameters=dict(question.parameters) or None,
            )
        except InferenceServerException as error:
            raise RefusedError(error.message()) from error
        response = result.get_response()
        arrays = {output["name"]: result.as_numpy(output["name"]) for output in response["outputs"]}
        return Answer(arrays, response["model_version"], response.get("id", ""))


class GrpcCarrier:
    can_carry_fp16 = True

    def __init__(self, address: str, *, is_stream: bool) -> None:
        self.name = "gRPC stream" if is_stream else "gRPC"
        self._is_stream = is_stream
        self._client = triton_grpc.InferenceServerClient(address)

    def ask(self, question: Question) -> Answer:
        inputs = []
        for name, data in question.inputs.items():
            given = triton_grpc.InferInput(name, data.shape, _datatype(question, name, data))
            given.set_data_from_numpy(data)
            inputs.append(given)
        options: dict[str, Any] = {
            "outputs": question.outputs
            and [triton_grpc.InferRequestedOutput(name) for name in question.outputs],
            "model_version": question.version,
            "request_id": question.request_id,
            "parameters": dict(question.parameters) or None,
        }
        try:
            result = (
                self._stream(question.model, inputs, options)
                if self._is_stream
                else self._client.infer(question.model, inputs, **options)
            )
        except InferenceServerException as error:
            raise RefusedError(error.message()) from error
        response = result.get_response()
        arrays = {output.name: result.as_numpy(output.name) for output in response.outputs}
        return Answer(arrays, response.model_version, response.id)

    def _stream(self, model: str, inputs: list[Any], options: dict[str, Any]) -> Any:
        answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        self._client.start_stream(lambda result, error: answers.put((result, error)))
        try:
            self._client.async_stream_infer(model, inputs, **options)
            result, error = answers.get(timeout=500)
        finally:
            self._client.stop_stream()
        if error is not None:
            raise error
        return result
