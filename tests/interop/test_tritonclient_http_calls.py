"""Every call of NVIDIA's HTTP clients, the blocking one and the one for asyncio.

Each test runs with both. The last one holds that no call of either is left out.
"""

import asyncio
import base64
import http.client
import inspect
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from naiad.verify.server_process import ServerProcess

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).parent.parent / "conformance" / "recorded" / "repository"
MODELS = ("simple", "id_fp32", "labels")

TestT = TypeVar("TestT", bound=Callable[..., None])
COVERED: set[str] = set()


def covers(*names: str) -> Callable[[TestT], TestT]:
    """Says which calls of the client a test is about."""

    def note(test: TestT) -> TestT:
        COVERED.update(names)
        return test

    return note


class Blocking:
    """The client that blocks."""

    def __init__(self, address: str) -> None:
        self.client = triton.InferenceServerClient(address)

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.client, name)(*args, **kwargs)

    def close(self) -> None:
        self.client.close()


class Asyncio:
    """The client for asyncio, on a loop of its own."""

    def __init__(self, address: str) -> None:
        self._runner = asyncio.Runner()

        async def connect() -> triton_aio.InferenceServerClient:
            return triton_aio.InferenceServerClient(address)

        self.client = self._runner.run(connect())

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        async def run() -> Any:
            result = getattr(self.client, name)(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        return self._runner.run(run())

    def close(self) -> None:
        self.call("close")
        self._runner.close()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calls")
    for model in MODELS:
        shutil.copytree(RECORDED / model, folder / model)
    return folder


@pytest.fixture(scope="module")
def address(repository: Path) -> Iterator[str]:
    options = (
        "--allow-client-shm=true",
        "--model-control-mode=explicit",
        "--load-model=*",
        "--allow-file-override=true",
        "--http-header-forward-pattern=x-.*",
    )
    with ServerProcess(repository, options=options) as server:
        yield server.address


@pytest.fixture(params=[Blocking, Asyncio])
def client(request: pytest.FixtureRequest, address: str) -> Iterator[Blocking | Asyncio]:
    connected = request.param(address)
    yield connected
    connected.close()


def tensor(name: str, data: Any, datatype: str = "FP32", *, binary: bool = True) -> Any:
    made = triton.InferInput(name, list(data.shape), datatype)
    return made.set_data_from_numpy(data, binary_data=binary)


ROW = np.array([[1.5, -2.0, 3.25]], np.float32)


@covers("is_server_live", "is_server_ready", "is_model_ready")
def test_health(client: Blocking | Asyncio) -> None:
    assert client.call("is_server_live") is True
    assert client.call("is_server_ready") is True
    assert client.call("is_model_ready", "simple") is True
    assert client.call("is_model_ready", "simple", "1") is True
    assert client.call("is_model_ready", "simple", "2") is False
    assert client.call("is_server_live", query_params={"a": "b"}) is True


@covers("get_server_metadata", "get_model_metadata", "get_model_config")
def test_metadata(client: Blocking | Asyncio) -> None:
    assert client.call("get_server_metadata")["name"] == "triton"
    metadata = client.call("get_model_metadata", "simple", "1")
    assert metadata["inputs"][0] == {"name": "INPUT0", "datatype": "INT32", "shape": [-1, 16]}
    config = client.call("get_model_config", "simple")
    assert (config["name"], config["max_batch_size"]) == ("simple", 8)
    with pytest.raises(InferenceServerException, match="'nope' is not found"):
        client.call("get_model_metadata", "nope")


@covers("get_model_repository_index", "load_model", "unload_model")
def test_model_control(client: Blocking | Asyncio, repository: Path) -> None:
    client.call("unload_model", "id_fp32")
    index = {entry["name"]: entry for entry in client.call("get_model_repository_index")}
    assert index["id_fp32"]["state"] != "READY"
    assert index["simple"]["state"] == "READY"
    with pytest.raises(InferenceServerException, match="failed to load 'nope'"):
        client.call("load_model", "nope")
    client.call("load_model", "id_fp32")
    config = client.call("get_model_config", "id_fp32")
    config["max_batch_size"] = 3
    client.call("load_model", "id_fp32", config=json.dumps(config))
    assert client.call("get_model_config", "id_fp32")["max_batch_size"] == 3
    content = (repository / "id_fp32" / "1" / "model.onnx").read_bytes()
    client.call(
        "load_model", "id_fp32", config=json.dumps(config), files={"file:7/model.onnx": content}
    )
    assert client.call("get_model_metadata", "id_fp32")["versions"] == ["7"]
    client.call("unload_model", "id_fp32", unload_dependents=True)
    client.call("load_model", "id_fp32")
    assert client.call("get_model_metadata", "id_fp32")["versions"] == ["1"]


@covers("infer")
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary", [False, True])
def test_infer(client: Blocking | Asyncio, compression: str | None, binary: bool) -> None:
    rows = np.arange(3000, dtype=np.float32).reshape(1, 3000)
    result = client.call(
        "infer",
        "id_fp32",
        [tensor("IN", rows, binary=binary)],
        model_version="1",
        outputs=[triton.InferRequestedOutput("OUT", binary_data=binary)],
        request_id="r-1",
        priority=1,
        timeout=10_000_000,
        headers={"x-user": "someone"},
        query_params={"trace": "no"},
        request_compression_algorithm=compression,
        response_compression_algorithm=compression,
        parameters={"mine": "yes", "count": 2, "is_so": True},
    )
    np.testing.assert_array_equal(result.as_numpy("OUT"), rows)
    assert result.get_response()["id"] == "r-1"
    assert result.get_output("OUT")["shape"] == [1, 3000]


@covers("infer")
def test_infer_with_classes(client: Blocking | Asyncio) -> None:
    config = client.call("get_model_config", "labels")
    count = config["input"][0]["dims"][0]
    values = np.arange(count, dtype=np.float32).reshape(1, count)
    wanted = triton.InferRequestedOutput(config["output"][0]["name"], class_count=2)
    result = client.call(
        "infer", "labels", [tensor(config["input"][0]["name"], values)], outputs=[wanted]
    )
    best, second = result.as_numpy(config["output"][0]["name"])[0]
    assert best.decode().split(":")[:2] == [f"{count - 1:f}", str(count - 1)]
    assert second.decode().split(":")[1] == str(count - 2)


@covers("async_infer")
def test_async_infer(address: str) -> None:
    with triton.InferenceServerClient(address, concurrency=4) as blocking:
        rows = [np.full((1, 3), value, np.float32) for value in range(8)]
        pending = [blocking.async_infer("id_fp32", [tensor("IN", row)]) for row in rows]
        for row, request in zip(rows, pending, strict=True):
            np.testing.assert_array_equal(request.get_result(timeout=500).as_numpy("OUT"), row)
        failed = blocking.async_infer("nope", [tensor("IN", ROW)])
        with pytest.raises(InferenceServerException, match="'nope' is not found"):
            failed.get_result(timeout=500)


@covers("generate_request_body", "parse_response_body")
def test_bodies_by_hand(client: Blocking | Asyncio, address: str) -> None:
    body, header_length = client.call(
        "generate_request_body", [tensor("IN", ROW)], request_id="by hand"
    )
    connection = http.client.HTTPConnection(address, timeout=500)
    connection.request(
        "POST",
        "/v2/models/id_fp32/infer",
        bytes(body),
        {"Inference-Header-Content-Length": str(header_length)},
    )
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    length = answer.headers["Inference-Header-Content-Length"]
    result = client.call("parse_response_body", content, header_length=int(length))
    np.testing.assert_array_equal(result.as_numpy("OUT"), ROW)
    assert result.get_response()["id"] == "by hand"


@covers("get_inference_statistics")
def test_statistics(client: Blocking | Asyncio) -> None:
    client.call("infer", "id_fp32", [tensor("IN", ROW)])
    (model,) = client.call("get_inference_statistics", "id_fp32", "1")["model_stats"]
    assert model["inference_stats"]["success"]["count"] >= 1
    names = [m["name"] for m in client.call("get_inference_statistics")["model_stats"]]
    assert names == sorted(MODELS)


@covers("get_trace_settings", "update_trace_settings")
def test_trace_settings(client: Blocking | Asyncio) -> None:
    before = client.call("get_trace_settings")
    changed = client.call("update_trace_settings", settings={"trace_rate": "17"})
    assert changed == {**before, "trace_rate": "17"}
    own = client.call("update_trace_settings", "simple", {"trace_rate": "3"})
    assert client.call("get_trace_settings", "simple") == own
    assert own["trace_rate"] == "3"
    client.call("update_trace_settings", "simple", {"trace_rate": None})
    client.call("update_trace_settings", settings={"trace_rate": before["trace_rate"]})
    assert client.call("get_trace_settings", "simple") == before
    with pytest.raises(InferenceServerException, match="can not be updated"):
        client.call("update_trace_settings", settings={"trace_file": "/tmp/elsewhere"})


@covers("get_log_settings", "update_log_settings")
def test_log_settings(client: Blocking | Asyncio) -> None:
    before = client.call("get_log_settings")
    changed = client.call("update_log_settings", {"log_verbose_level": 2, "log_info": False})
    assert changed == {**before, "log_verbose_level": 2, "log_info": False}
    assert client.call("get_log_settings") == changed
    assert client.call("update_log_settings", before | {"log_file": None}) == before


@covers(
    "register_system_shared_memory",
    "get_system_shared_memory_status",
    "unregister_system_shared_memory",
)
def test_system_shared_memory(client: Blocking | Asyncio) -> None:
    key = f"/naiad_calls_{os.getpid()}"
    region = shm.create_shared_memory_region("r", key, 64)
    try:
        shm.set_shared_memory_region(region, [ROW])
        client.call("register_system_shared_memory", "r", key, 64)
        (known,) = client.call("get_system_shared_memory_status", "r")
        assert known == {"name": "r", "key": key, "offset": 0, "byte_size": 64}
        given = triton.InferInput("IN", [1, 3], "FP32")
        given.set_shared_memory("r", ROW.nbytes)
        wanted = triton.InferRequestedOutput("OUT")
        wanted.set_shared_memory("r", ROW.nbytes, offset=32)
        client.call("infer", "id_fp32", [given], outputs=[wanted])
        got = shm.get_contents_as_numpy(region, np.float32, [1, 3], offset=32)
        np.testing.assert_array_equal(got, ROW)
        client.call("unregister_system_shared_memory", "r")
        client.call("unregister_system_shared_memory")
        assert client.call("get_system_shared_memory_status") == []
    finally:
        shm.destroy_shared_memory_region(region)


@covers(
    "register_cuda_shared_memory",
    "get_cuda_shared_memory_status",
    "unregister_cuda_shared_memory",
)
def test_cuda_shared_memory_is_refused_cleanly(client: Blocking | Asyncio) -> None:
    handle = base64.b64encode(bytes(64))
    with pytest.raises(InferenceServerException) as refused:
        client.call("register_cuda_shared_memory", "gpu", handle, 0, 64)
    assert refused.value.status() == "400"
    assert client.call("get_cuda_shared_memory_status") == []
    client.call("unregister_cuda_shared_memory")
    client.call("unregister_cuda_shared_memory", "gpu")


class Signing(triton.InferenceServerClientPlugin):  # type: ignore[misc]
    """Adds a header to every request, as the client's plug-in for authentication does."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, request: Any) -> None:
        self.count += 1
        request.headers["x-signature"] = "abc"


@covers("register_plugin", "plugin", "unregister_plugin")
def test_plugins(client: Blocking | Asyncio) -> None:
    plugin = Signing()
    client.call("register_plugin", plugin)
    assert client.call("plugin") is plugin
    result = client.call("infer", "id_fp32", [tensor("IN", ROW)])
    np.testing.assert_array_equal(result.as_numpy("OUT"), ROW)
    assert plugin.count == 1
    client.call("unregister_plugin")
    assert client.call("plugin") is None


@covers("close")
def test_close(client: Blocking | Asyncio) -> None:
    assert client.call("is_server_live")
    client.call("close")


def test_no_call_is_forgotten() -> None:
    offered = {
        name
        for kind in (triton.InferenceServerClient, triton_aio.InferenceServerClient)
        for name, _ in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }
    assert offered == COVERED
