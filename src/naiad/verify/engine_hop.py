"""The model in the engine of this process: the server's scheduling and backends without a wire."""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from naiad.clock import SystemClock
from naiad.errors import NaiadError
from naiad.inference.comparison import Array, Outputs
from naiad.inference.datatypes import BY_NAME
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor
from naiad.repository.golden import GoldenCase
from naiad.server.build import build_application
from naiad.server.settings import make_settings
from naiad.verify.hops import HopFailedError

if TYPE_CHECKING:
    from naiad.engine.engine import Engine

ENGINE_HOP: Final = "in the engine"
ENGINE_MIXED_HOP: Final = "in the engine, mixed"


class EngineHop:
    """One model version in an engine of its own; a context manager.

    The engine's event loop runs in a thread, so that the caller needs none.
    """

    name: Final = ENGINE_HOP

    def __init__(
        self, repository: Path, model: str, version: int, datatypes: dict[str, str]
    ) -> None:
        """Start the engine with one model.

        Args:
            repository: the model repository.
            model: the only one that is loaded.
            version: to ask.
            datatypes: input name -> v2 datatype.

        Raises:
            HopFailedError: the model doesn't load.
        """
        settings = make_settings(
            {
                "model-repository": [str(repository)],
                "model-control-mode": ["explicit"],
                "load-model": [model],
            }
        )
        self._model, self._version, self._datatypes = model, version, datatypes
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._engine: Engine
        try:
            self._engine, self._application = self._run(_build(settings))
            failures = self._run(self._engine.start())
        except NaiadError as error:
            self._end_loop()
            raise HopFailedError(error.message) from error
        if failures:
            self.stop()
            raise HopFailedError(failures[model].message)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def refusal(self) -> str:
        """Nothing stands in the way."""
        return ""

    def run(self, case: GoldenCase) -> Outputs:
        """Ask the engine, and wait."""
        return self.run_together([case])[0]

    def run_together(self, cases: Sequence[GoldenCase]) -> list[Outputs]:
        """Ask everything in one turn of the loop, so that the scheduler may join it.

        Raises:
            HopFailedError: one of them was refused or failed.
        """
        found: list[Outputs] = self._run(self._ask(cases))
        return found

    def max_batch_size(self) -> int:
        """Of the config in force."""
        return self._engine.find(self._model, self._version).signature.max_batch_size

    def stop(self) -> None:
        """Unload the model and end the thread."""
        self._run(self._engine.stop())
        self._run(self._application.close())
        self._end_loop()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _ask(self, cases: Sequence[GoldenCase]) -> list[Outputs]:
        try:
            model = self._engine.find(self._model, self._version)
            waiting = []
            for case in cases:
                answer: asyncio.Future[InferResponse] = self._loop.create_future()
                request = InferRequest(
                    "", self._tensors(case), None, answer.set_result, self._engine.now_ns()
                )
                self._engine.infer(model, request)
                waiting.append(answer)
            responses = await asyncio.gather(*waiting)
        except NaiadError as error:
            raise HopFailedError(error.message) from error
        return [_outputs(response) for response in responses]

    def _tensors(self, case: GoldenCase) -> dict[str, Tensor]:
        return {
            name: Tensor(
                name,
                BY_NAME[self._datatypes[name]],
                array.shape,
                # Not ascontiguousarray, which turns a scalar into a vector.
                array if array.flags.c_contiguous else array.copy(order="C"),
            )
            for name, array in case.inputs.items()
        }


async def _build(settings: Any) -> Any:
    # The caches and locks of an engine belong to the loop that makes it.
    return build_application(settings, SystemClock(), lambda _values: None)


def _outputs(response: InferResponse) -> Outputs:
    if response.error is not None:
        raise HopFailedError(response.error.message)
    return {tensor.name: _own(tensor.data) for tensor in response.outputs}


def _own(data: Array) -> Array:
    # The engine may use the memory again.
    return np.array(data)
