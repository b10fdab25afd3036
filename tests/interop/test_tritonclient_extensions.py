"""NVIDIA's HTTP client and its shared memory module: regions, traces and log settings."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from naiad.verify.server_process import ServerProcess

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).parent.parent / "conformance" / "recorded" / "repository"
KEY = ("admin-key", "sesame")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("extensions")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[triton.InferenceServerClient]:
    for model in ("simple", "id_bytes"):
        shutil.copytree(RECORDED / model, folder / "models" / model)
    options = (
        "--allow-client-shm=true",
        f"--trace-config=triton,file={folder / 'trace.json'}",
        f"--http-restricted-api=logging:{'='.join(KEY)}",
    )
    with (
        ServerProcess(folder / "models", options=options) as server,
        triton.InferenceServerClient(server.address) as connected,
    ):
        yield connected


@pytest.fixture
def memory(client: triton.InferenceServerClient, folder: Path) -> Iterator[Any]:
    """A region of two pages, registered as ``data``."""
    key = f"/naiad_{folder.name}"
    handle = shm.create_shared_memory_region("data", key, 8192)
    client.register_system_shared_memory("data", key, 8192)
    yield handle
    client.unregister_system_shared_memory("data")
    shm.destroy_shared_memory_region(handle)


def shared_input(name: str, shape: list[int], datatype: str, size: int, offset: int) -> Any:
    made = triton.InferInput(name, shape, datatype)
    made.set_shared_memory("data", size, offset)
    return made


def shared_output(name: str, size: int, offset: int) -> Any:
    made = triton.InferRequestedOutput(name)
    made.set_shared_memory("data", size, offset)
    return made


def test_tensors_stay_in_shared_memory(client: triton.InferenceServerClient, memory: Any) -> None:
    first = np.arange(16, dtype=np.int32).reshape(1, 16)
    second = np.full((1, 16), 3, np.int32)
    shm.set_shared_memory_region(memory, [first, second])
    result = client.infer(
        "simple",
        [
            shared_input("INPUT0", [1, 16], "INT32", 64, 0),
            shared_input("INPUT1", [1, 16], "INT32", 64, 64),
        ],
        outputs=[shared_output("OUTPUT0", 64, 4096), shared_output("OUTPUT1", 64, 4160)],
    )
    assert result.get_output("OUTPUT0") == {
        "name": "OUTPUT0",
        "datatype": "INT32",
        "shape": [1, 16],
    }
    total = shm.get_contents_as_numpy(memory, np.int32, [1, 16], offset=4096)
    difference = shm.get_contents_as_numpy(memory, np.int32, [1, 16], offset=4160)
    np.testing.assert_array_equal(total, first + second)
    np.testing.assert_array_equal(difference, first - second)


def test_strings_stay_in_shared_memory(client: triton.InferenceServerClient, memory: Any) -> None:
    texts = np.array([[b"one", "zwölf".encode()]], np.object_)
    serialized = serialize_byte_tensor(texts)
    size = len(serialized.item())
    shm.set_shared_memory_region(memory, [serialized])
    client.infer(
        "id_bytes",
        [shared_input("IN", [1, 2], "BYTES", size, 0)],
        outputs=[shared_output("OUT", size, 4096)],
    )
    got = shm.get_contents_as_numpy(memory, np.object_, [1, 2], offset=4096)
    np.testing.assert_array_equal(got, texts)


def test_regions_are_listed(client: triton.InferenceServerClient, memory: Any) -> None:
    assert memory is not None
    (region,) = client.get_system_shared_memory_status()
    assert (region["name"], region["byte_size"]) == ("data", 8192)
    assert client.get_cuda_shared_memory_status() == []
    with pytest.raises(InferenceServerException, match="already in manager"):
        client.register_system_shared_memory("data", region["key"], 8192)


def test_traces_are_switched_on_and_off(client: triton.InferenceServerClient) -> None:
    settings = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": "1"}
    changed = client.update_trace_settings("id_bytes", settings)
    assert (changed["trace_rate"], changed["trace_count"]) == ("1", "1")
    tensor = triton.InferInput("IN", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[b"x"]], np.object_))
    for _ in range(2):
        client.infer("id_bytes", [tensor], request_id="traced")
    assert client.get_trace_settings("id_bytes")["trace_count"] == "0"
    cleared = client.update_trace_settings("id_bytes", dict.fromkeys(settings))
    assert cleared["trace_level"] == ["OFF"]
    assert client.get_trace_settings() == cleared


def test_a_restricted_api_needs_its_header(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="expecting header 'admin-key'"):
        client.get_log_settings()
    headers = dict([KEY])
    assert client.get_log_settings(headers=headers)["log_info"]
    changed = client.update_log_settings({"log_verbose_level": 1}, headers=headers)
    assert changed["log_verbose_level"] == 1
