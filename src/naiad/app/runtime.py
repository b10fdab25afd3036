"""What runs an application's model in its process: the class that the Python backend looks for."""

import asyncio
import contextlib
import importlib
import inspect
import json
import sys
import threading
import traceback
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from naiad.app.definition import PARAMETERS, ServedModel
from naiad.app.repository import load_models

_Array = npt.NDArray[Any]


def make_model(path: str, name: str) -> type:
    """The class ``TritonPythonModel`` of one model of an application file."""
    # The backend's own process has it under this name, and no other does.
    pb_utils = importlib.import_module("triton_python_backend_utils")
    sys.path.insert(0, str(Path(path).parent))
    served = load_models(Path(path))[name]

    class TritonPythonModel:
        """Calls what was decorated."""

        def initialize(self, _arguments: Mapping[str, str]) -> None:
            """Make the class's object, where it is a class."""
            made = served.target() if inspect.isclass(served.target) else served.target
            self._runner = _Runner(served, made, pb_utils)
            self._workers = _Workers(served.concurrency, is_async=served.is_async)

        def execute(self, requests: Sequence[Any]) -> list[Any] | None:
            """Answer a batch of requests."""
            if served.is_streaming or served.concurrency > 1:
                for request in requests:
                    self._workers.start(self._runner.answer(request))
                return None
            if served.max_batch_size:
                return self._runner.run_joined(requests)
            return [self._runner.run_one(request) for request in requests]

        def finalize(self) -> None:
            """Let what was begun end."""
            self._workers.close()

    return TritonPythonModel


class _Workers:
    """Run so many answers at once, and take no more before one is over.

    Args:
        count: at once.
        is_async: as tasks of one event loop, instead of threads.
    """

    def __init__(self, count: int, *, is_async: bool) -> None:
        self._count = count
        self._free = threading.Semaphore(count)
        self._loop = asyncio.new_event_loop() if is_async else None
        self._threads = ThreadPoolExecutor(1 if is_async else count)
        if self._loop is not None:
            self._threads.submit(self._loop.run_forever)

    def start(self, answer: Coroutine[Any, Any, None]) -> None:
        """Begin an answer; waits for a free place, so that what follows waits in the server."""
        self._free.acquire()
        work: Future[None]
        if self._loop is not None:
            work = asyncio.run_coroutine_threadsafe(answer, self._loop)
        else:
            work = self._threads.submit(_run_to_the_end, answer)
        work.add_done_callback(lambda _: self._free.release())

    def close(self) -> None:
        """Return when nothing is left to do."""
        for _ in range(self._count):
            self._free.acquire()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._threads.shutdown()


def _run_to_the_end(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that awaits nothing of an event loop's, without one."""
    with contextlib.suppress(StopIteration):
        coroutine.send(None)


class _Runner:
    """One object of a model, and its calls."""

    def __init__(self, served: ServedModel, target: Any, pb_utils: Any) -> None:
        self._served = served
        self._target = target
        self._pb_utils = pb_utils

    def run_one(self, request: Any) -> Any:
        """The response to a request that is a call of its own."""
        return self._respond(self._outputs(self._call(self._arguments(request))))

    def _call(self, arguments: dict[str, Any]) -> Any:
        answer = self._target(**arguments)
        return asyncio.run(_wait_for(answer)) if inspect.isawaitable(answer) else answer

    def run_joined(self, requests: Sequence[Any]) -> list[Any]:
        """The responses to requests that share a call."""
        given = [self._arguments(request) for request in requests]
        joined = given[0]
        if len(given) > 1:
            joined = {key: np.concatenate([part[key] for part in given]) for key in joined}
        rows = [len(next(iter(part.values()))) for part in given]
        outputs = self._outputs(self._call(joined))
        for name, array in outputs.items():
            if array.shape[:1] != (sum(rows),):
                raise ValueError(
                    f"output '{name}' has shape {array.shape} for {sum(rows)} rows of input"
                )
        ends = np.cumsum(rows)[:-1]
        pieces = {name: np.split(array, ends) for name, array in outputs.items()}
        return [
            self._respond({name: parts[index] for name, parts in pieces.items()})
            for index in range(len(requests))
        ]

    async def answer(self, request: Any) -> None:
        """Send what the function returns, or yields until it ends or the client goes."""
        sender = request.get_response_sender()
        final = self._pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        try:
            if not self._served.is_streaming:
                sender.send(await self._respond_once(request), flags=final)
                return
            await self._send_all(request, sender)
        except Exception as error:  # noqa: BLE001 - an application may raise anything
            traceback.print_exc()
            failure = self._pb_utils.TritonError(f"{type(error).__name__}: {error}")
            sender.send(self._pb_utils.InferenceResponse(error=failure), flags=final)
            return
        sender.send(flags=final)

    async def _respond_once(self, request: Any) -> Any:
        answer = self._target(**self._arguments(request))
        return self._respond(self._outputs(await answer if inspect.isawaitable(answer) else answer))

    async def _send_all(self, request: Any, sender: Any) -> None:
        answers = self._target(**self._arguments(request))
        if inspect.isasyncgen(answers):
            async with contextlib.aclosing(answers):
                async for answer in answers:
                    if sender.is_cancelled():
                        return
                    sender.send(self._respond(self._outputs(answer)))
            return
        with contextlib.closing(answers):
            for answer in answers:
                if sender.is_cancelled():
                    return
                sender.send(self._respond(self._outputs(answer)))

    def _arguments(self, request: Any) -> dict[str, Any]:
        arguments = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if self._served.takes_parameters:
            arguments[PARAMETERS] = json.loads(request.parameters())
        return arguments

    def _outputs(self, answer: Any) -> dict[str, _Array]:
        """What was returned, by name and in the declared datatypes."""
        outputs = self._served.outputs
        if not isinstance(answer, dict):
            values = answer if isinstance(answer, tuple) else (answer,)
            if len(values) != len(outputs):
                raise ValueError(f"{len(values)} outputs were returned, {len(outputs)} declared")
            answer = {output.name: value for output, value in zip(outputs, values, strict=True)}
        missing = [output.name for output in outputs if output.name not in answer]
        if missing:
            raise ValueError(f"output '{missing[0]}' was declared and not returned")
        return {
            output.name: np.asarray(answer[output.name], output.datatype.dtype)
            for output in outputs
        }

    def _respond(self, outputs: Mapping[str, _Array]) -> Any:
        pb_utils = self._pb_utils
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, np.atleast_1d(array)) for name, array in outputs.items()]
        )


async def _wait_for(answer: Awaitable[Any]) -> Any:
    return await answer
