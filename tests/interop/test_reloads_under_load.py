"""Reloads while NVIDIA's clients ask without a pause: no failed request, no answer out of time."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tests.support.python_models import write_model
from tests.support.repository_builder import RepositoryBuilder

from naiad.verify.server_process import ServerProcess

pytestmark = pytest.mark.slow

ENSEMBLE = """name: "ensemble" platform: "ensemble" max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step {
  model_name: "step" model_version: -1
  input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" }
} }"""
PYTHON = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor(
                "OUT", pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() + {amount}
            )])
            for request in requests
        ]
"""
# By the model that is asked, the one whose files change.
CHANGED = {"onnx": "onnx", "python": "python", "ensemble": "step"}
TIMEOUT_S = 300


class Client(Protocol):
    """What NVIDIA's two clients have in common."""

    def infer(self, model_name: str, inputs: list[Any]) -> Any: ...

    def load_model(self, model_name: str) -> None: ...


def write(repository: Path, amount: int) -> None:
    builder = RepositoryBuilder(repository)
    builder.add_sum("onnx", amount)
    builder.add_sum("step", amount)
    write_model(repository, "python", PYTHON.format(amount=amount), max_batch_size=8)
    for name in CHANGED.values():
        for file in (repository / name).rglob("*.*"):
            # Two writes within one tick of the file system's clock must still differ.
            os.utime(file, ns=(amount * 10**9, amount * 10**9))


class Asker:
    """Asks one model over one protocol; each answer must be of a version that served meanwhile."""

    def __init__(self, module: Any, address: str, model: str) -> None:
        self._module = module
        self._model = model
        self._address = address
        self._is_over = threading.Event()
        self._progress = threading.Event()
        self._thread = threading.Thread(target=self._run)
        # What the repository may say, and what surely serves.
        self.newest = self.oldest = 1
        self.faults: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def wait_for_an_answer(self) -> bool:
        """Whether another one comes, be it a fault."""
        self._progress.clear()
        return bool(self.faults) or self._progress.wait(TIMEOUT_S)

    def ask(self, client: Client) -> float:
        data = np.zeros((1, 1), np.float32)
        given = self._module.InferInput("IN", data.shape, "FP32")
        given.set_data_from_numpy(data)
        return float(client.infer(self._model, [given]).as_numpy("OUT")[0, 0])

    def _run(self) -> None:
        with self._module.InferenceServerClient(self._address) as client:
            while not self._is_over.is_set():
                oldest = self.oldest
                try:
                    answer = self.ask(client)
                except Exception as error:  # noqa: BLE001 - any failure is what is looked for
                    self.faults.append(str(error))
                    self._progress.set()
                    return
                if not oldest <= answer <= self.newest:
                    self.faults.append(f"{answer} is not in {oldest} to {self.newest}")
                self._progress.set()


@contextmanager
def asking(server: ServerProcess) -> Iterator[list[Asker]]:
    askers = [
        Asker(module, address, model)
        for module, address in (
            (tritonclient.http, server.address),
            (tritonclient.grpc, server.grpc_address),
        )
        for model in CHANGED
    ]
    try:
        for asker in askers:
            asker.__enter__()
        yield askers
    finally:
        for asker in askers:
            asker.__exit__()


def reload_by_call(server: ServerProcess, amount: int) -> None:
    """By one protocol and the other in turn; returns when the new versions serve."""
    module, address = (
        (tritonclient.http, server.address),
        (tritonclient.grpc, server.grpc_address),
    )[amount % 2]
    with module.InferenceServerClient(address) as client:
        for name in CHANGED.values():
            client.load_model(name)


def reload_by_poll(server: ServerProcess, amount: int) -> None:
    """Wait until all new versions serve."""
    deadline = time.monotonic() + TIMEOUT_S  # noqa: TID251 - a test's own patience
    with tritonclient.http.InferenceServerClient(server.address) as client:
        for name in CHANGED:
            asker = Asker(tritonclient.http, server.address, name)
            while asker.ask(client) != amount:
                assert time.monotonic() < deadline  # noqa: TID251


@pytest.mark.parametrize(
    ("mode", "reload", "reloads"),
    [
        ("explicit", reload_by_call, 4),
        ("poll", reload_by_poll, 2),
        pytest.param("explicit", reload_by_call, 50, marks=pytest.mark.full),
        pytest.param("poll", reload_by_poll, 50, marks=pytest.mark.full),
    ],
)
@pytest.mark.timeout(900)
def test_a_reload_costs_no_request(
    tmp_path: Path, mode: str, reload: Callable[[ServerProcess, int], None], reloads: int
) -> None:
    write(tmp_path, 1)
    RepositoryBuilder(tmp_path).add_model("ensemble", ENSEMBLE)
    options = [f"--model-control-mode={mode}"]
    options += ["--load-model=*"] if mode == "explicit" else ["--repository-poll-secs=1"]
    with ServerProcess(tmp_path, options=options) as server, asking(server) as askers:
        for amount in range(2, reloads + 2):
            for asker in askers:
                asker.newest = amount
            write(tmp_path, amount)
            reload(server, amount)
            for asker in askers:
                asker.oldest = amount
                assert asker.wait_for_an_answer()
    assert [fault for asker in askers for fault in asker.faults] == []
