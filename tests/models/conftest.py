"""A server by explicit control, which tests give real models and ask over HTTP."""

import http.client
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pytest

from naiad.client.http import HttpClient
from naiad.inference.datatypes import from_dtype
from naiad.inference.tensor import Tensor
from naiad.verify.server_process import ServerProcess

Array = npt.NDArray[Any]


class ModelServer:
    """Our own command on a repository that tests fill; a context manager."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._process = ServerProcess(repository, options=("--model-control-mode=explicit",))
        self._client = HttpClient(self._process.address)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.close()
        self._process.stop()

    def load(self, name: str, source: Path, config: str = "", filename: str = "model.onnx") -> None:
        """Put a file into the repository, with a config or none, and load it."""
        version = self._repository / name / "1"
        version.mkdir(parents=True)
        shutil.copy(source, version / filename)
        if config:
            (version.parent / "config.pbtxt").write_text(config, encoding="utf-8")
        connection = http.client.HTTPConnection(self._process.address, timeout=500)
        connection.request("POST", f"/v2/repository/models/{name}/load")
        response = connection.getresponse()
        body = response.read()
        connection.close()
        assert response.status == http.client.OK, body.decode()

    def infer(self, name: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs of one request, by name."""
        tensors = []
        for key, array in inputs.items():
            datatype = from_dtype(array.dtype)
            assert datatype is not None
            tensors.append(Tensor(key, datatype, array.shape, np.require(array, None, "C")))
        result = self._client.infer(name, tensors)
        return {key: tensor.data for key, tensor in result.outputs.items()}

    def config(self, name: str) -> dict[str, Any]:
        """What the server made of the model's config."""
        completed: dict[str, Any] = json.loads(json.dumps(self._client.model_config(name)))
        return completed


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    with ModelServer(tmp_path_factory.mktemp("repository")) as running:
        yield running
