"""A case through a running server: load, infer over HTTP and gRPC, unload."""

import http.client
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import ml_dtypes
import numpy as np
import tritonclient.grpc as triton_grpc
from tests.conformance.onnx.suite import (
    Array,
    Case,
    DataSet,
    Value,
    explain_difference,
    read_data_sets,
)

from naiad.client.http import HttpClient
from naiad.inference import datatypes
from naiad.inference.datatypes import BY_NAME, Datatype
from naiad.inference.tensor import Tensor
from naiad.verify.server_process import ServerProcess

# The model folder holds nothing but this: tensors are the server's to find out.
_CONFIG = 'backend: "onnxruntime"\ninstance_group [ { count: 1 kind: KIND_CPU } ]\n'
_OPTIONS = (
    "--model-control-mode=explicit",
    # A model whose dims are all open is served as it is, so that requests have its own shapes.
    "--backend-config=onnxruntime,default-max-batch-size=0",
)
_REFUSAL = "only tensors of the protocol's datatypes can be served"


class LoadRefusedError(Exception):
    """The server's answer to a load."""


class SuiteServer:
    """A server for the cases of the suite; a context manager.

    Args:
        repository: an empty folder, where the cases become models.
    """

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._process = ServerProcess(repository, options=_OPTIONS)
        self._http = HttpClient(self._process.address)
        self._control = http.client.HTTPConnection(self._process.address, timeout=500)
        self._grpc = triton_grpc.InferenceServerClient(self._process.grpc_address)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._grpc.close()
        self._control.close()
        self._http.close()
        self._process.stop()

    def explain_failure(self, case: Case) -> str:
        """Why the case does not pass; empty if it does."""
        try:
            self._load(case)
        except LoadRefusedError as error:
            self._unload(case)
            return f"load: {error}"
        try:
            for data_set in read_data_sets(case):
                for protocol, infer in (("HTTP", self._infer_http), ("gRPC", self._infer_grpc)):
                    difference = _difference(case, data_set, infer(case.name, data_set))
                    if difference:
                        return f"{protocol}: {difference}"
        except Exception as error:  # noqa: BLE001 - the report says what it was
            return f"{type(error).__name__}: {error}"
        finally:
            self._unload(case)
        return ""

    def explain_acceptance(self, case: Case) -> str:
        """Why a case that can't be served was not refused clearly; empty if it was."""
        try:
            self._load(case)
        except LoadRefusedError as error:
            return "" if _REFUSAL in str(error) else f"refused without saying why: {error}"
        finally:
            self._unload(case)
        return "loaded, though no request can carry its values"

    def _load(self, case: Case) -> None:
        folder = self._repository / case.name
        version = folder / "1"
        version.mkdir(parents=True, exist_ok=True)
        (folder / "config.pbtxt").write_text(_CONFIG, encoding="utf-8")
        for file in case.folder.iterdir():
            # The model, and the data outside of it that it may have.
            if file.is_file():
                (version / file.name).write_bytes(file.read_bytes())
        status, body = self._ask(f"/v2/repository/models/{case.name}/load")
        if status != http.client.OK:
            raise LoadRefusedError(json.loads(body)["error"])

    def _unload(self, case: Case) -> None:
        self._ask(f"/v2/repository/models/{case.name}/unload")
        shutil.rmtree(self._repository / case.name)

    def _ask(self, path: str) -> tuple[int, bytes]:
        self._control.request("POST", path)
        response = self._control.getresponse()
        return response.status, response.read()

    def _infer_http(self, name: str, data_set: DataSet) -> dict[str, Value]:
        """Scalars travel as ``[]``."""
        inputs = [
            Tensor(key, value.datatype, value.array.shape, np.require(value.array, None, "C"))
            for key, value in data_set.inputs.items()
        ]
        result = self._http.infer(name, inputs, output_names=list(data_set.outputs))
        return {key: Value(tensor.datatype, tensor.data) for key, tensor in result.outputs.items()}

    def _infer_grpc(self, name: str, data_set: DataSet) -> dict[str, Value]:
        """Scalars travel as ``[1]``, and the client is NVIDIA's."""
        inputs = []
        for key, value in data_set.inputs.items():
            array = np.atleast_1d(value.array)
            item = triton_grpc.InferInput(key, array.shape, value.datatype.name)
            item.set_data_from_numpy(_to_client(value.datatype, array))
            inputs.append(item)
        outputs = [triton_grpc.InferRequestedOutput(key) for key in data_set.outputs]
        result = self._grpc.infer(name, inputs, outputs=outputs)
        return {
            output.name: Value(
                BY_NAME[output.datatype],
                _from_client(BY_NAME[output.datatype], result.as_numpy(output.name)),
            )
            for output in result.get_response().outputs
        }


def _to_client(datatype: Datatype, array: Array) -> Array:
    return array.view(ml_dtypes.bfloat16) if datatype is datatypes.BF16 else array


def _from_client(datatype: Datatype, array: Any) -> Array:
    result: Array = array.view(np.uint16) if datatype is datatypes.BF16 else array
    return result


def _difference(case: Case, data_set: DataSet, answer: Mapping[str, Value]) -> str:
    for name, wanted in data_set.outputs.items():
        got = answer.get(name)
        if got is None:
            return f"output '{name}' is missing"
        if not wanted.array.ndim and got.array.shape == (1,):
            # The config calls a scalar a vector of one.
            got = Value(got.datatype, got.array.reshape(()))
        difference = explain_difference(case, wanted, got)
        if difference:
            return f"output '{name}': {difference}"
    return ""
