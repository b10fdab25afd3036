"""Models of the Python backend for tests, and an engine that serves them."""

import asyncio
import textwrap
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.support.repository_builder import RepositoryBuilder
from tests.support.requests import make_request, tensor

from naiad.backends.registry import BackendRegistry
from naiad.clock import SystemClock
from naiad.engine.engine import Engine, EngineOptions, ModelControlMode
from naiad.engine.loader import Loader, LoaderOptions
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor

Array = npt.NDArray[Any]
# A process that has to start first takes its time on a machine that does other things meanwhile.
TIMEOUT_S = 200

# Answers with its first input.
ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())])
            for r in requests
        ]
"""

_HEAD = """\
import numpy as np
import triton_python_backend_utils as pb_utils

"""


def write_model(
    path: Path,
    name: str,
    source: str,
    *,
    extra: str = "",
    max_batch_size: int = 0,
    inputs: Sequence[str] = ("IN",),
    datatype: str = "TYPE_FP32",
    outputs: Sequence[str] = ("OUT",),
    output_datatype: str = "",
) -> None:
    """Write a model below a repository folder.

    Args:
        path: of the repository.
        name: of the model.
        source: of ``model.py``, below imports of numpy and pb_utils.
        extra: of the config.
        max_batch_size: of the config.
        inputs: names of tensors of one open dimension.
        datatype: of the inputs.
        outputs: names of tensors of one open dimension.
        output_datatype: of the outputs, if another.
    """

    def tensors(names: Sequence[str], kind: str) -> str:
        return ", ".join(f'{{ name: "{n}" data_type: {kind} dims: [ -1 ] }}' for n in names)

    config = (
        f'name: "{name}"\nbackend: "python"\nmax_batch_size: {max_batch_size}\n'
        f"input [ {tensors(inputs, datatype)} ]\n"
        f"output [ {tensors(outputs, output_datatype or datatype)} ]\n"
    )
    if "instance_group" not in extra:
        config += "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
    builder = RepositoryBuilder(path)
    text = _HEAD + textwrap.dedent(source)
    builder.add_model(name, config + extra, {"{version}/model.py": text})


@asynccontextmanager
async def serving(
    path: Path,
    mode: ModelControlMode = ModelControlMode.NONE,
    *,
    completes: bool = False,
    settings: Mapping[str, str] | None = None,
    policy_cores: Mapping[str, frozenset[int]] | None = None,
) -> AsyncIterator[Engine]:
    """An engine with all models of a repository loaded; the test fails where one doesn't load."""
    options = LoaderOptions(
        (path,),
        is_completion_disabled=not completes,
        backend_settings={"python": settings or {}},
        allow_file_override=True,
        policy_cores=policy_cores or {},
    )
    engine = Engine(
        EngineOptions("naiad", "1", mode), Loader(options, BackendRegistry()), SystemClock()
    )
    failures = await engine.start()
    try:
        assert not failures, failures
        yield engine
    finally:
        await engine.stop()


class Asked:
    """A request and what came back.

    Attributes:
        request: with the engine.
        responses: so far.
        is_over: set by the last one.
    """

    def __init__(self, engine: Engine, name: str, *tensors: Tensor, request_id: str = "") -> None:
        self.responses: list[InferResponse] = []
        self.is_over = asyncio.Event()
        self._progress = asyncio.Event()
        self._engine = engine
        self._model = engine.find(name)
        self.request: InferRequest = make_request(
            *tensors, request_id=request_id, on_response=self._take
        )

    def send(self) -> "Asked":
        """Give it to the engine."""
        self._engine.infer(self._model, self.request)
        return self

    def cancel(self) -> None:
        """Go away."""
        self._engine.cancel(self._model, self.request)

    async def until(self, count: int) -> None:
        """Return when there are so many responses."""
        while len(self.responses) < count:
            self._progress.clear()
            await asyncio.wait_for(self._progress.wait(), TIMEOUT_S)

    async def all(self) -> list[InferResponse]:
        """Every response, once the last one is there."""
        await asyncio.wait_for(self.is_over.wait(), TIMEOUT_S)
        return self.responses

    def _take(self, response: InferResponse) -> None:
        self.responses.append(response)
        self._progress.set()
        if response.is_final:
            self.is_over.set()


def floats(*values: float) -> Tensor:
    """The input of most of these models."""
    return tensor("IN", np.array(values, np.float32))


def texts(*values: str) -> Tensor:
    """The input of those that take BYTES."""
    return tensor("IN", np.array([value.encode() for value in values], np.object_))


async def ask(engine: Engine, name: str, *tensors: Tensor, request_id: str = "") -> InferResponse:
    """The one response to a request."""
    (response,) = await Asked(engine, name, *tensors, request_id=request_id).send().all()
    return response


async def value(engine: Engine, name: str, *tensors: Tensor) -> list[Any]:
    """The elements of the one output of the one response."""
    response = await ask(engine, name, *tensors)
    assert response.error is None, response.error
    return [
        item.decode() if isinstance(item, bytes) else item
        for item in response.outputs[0].data.ravel().tolist()
    ]


async def error(engine: Engine, name: str, *tensors: Tensor, request_id: str = "") -> str:
    """The text of the one response, which is an error."""
    response = await ask(engine, name, *tensors, request_id=request_id)
    assert response.error is not None
    return response.error.reason()
