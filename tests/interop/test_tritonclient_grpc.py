"""NVIDIA's gRPC client, sync, with callbacks, asyncio and streaming, against ``naiad serve``."""

import asyncio
import os
import queue
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
import tritonclient.utils.shared_memory as shm
from tests.support.certificates import make_certificate
from tritonclient.utils import InferenceServerException

from naiad.verify.server_process import ServerProcess

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).parent.parent / "conformance" / "recorded" / "repository"
MODELS = ("simple", "simple_string", "id_fp32", "id_fp16", "id_bytes", "fixed4", "labels", "dyn")
TIMEOUT_S = 300
Array = npt.NDArray[Any]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    for model in MODELS:
        shutil.copytree(RECORDED / model, folder / model)
    return folder


@pytest.fixture(scope="module")
def address(repository: Path) -> Iterator[str]:
    options = (
        "--model-control-mode=explicit",
        "--load-model=*",
        "--allow-client-shm=true",
        "--grpc-infer-response-compression-level=low",
    )
    with ServerProcess(repository, options=options) as server:
        yield server.grpc_address


@pytest.fixture
def client(address: str) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(address) as connected:
        yield connected
        assert connected.is_server_live()


def tensor(name: str, data: Array, datatype: str = "FP32") -> triton.InferInput:
    made = triton.InferInput(name, list(data.shape), datatype)
    made.set_data_from_numpy(data)
    return made


def addends() -> tuple[list[triton.InferInput], Array, Array]:
    first = np.arange(32, dtype=np.int32).reshape(2, 16)
    second = np.full((2, 16), 3, dtype=np.int32)
    inputs = [tensor("INPUT0", first, "INT32"), tensor("INPUT1", second, "INT32")]
    return inputs, first + second, first - second


def run_async(
    address: str, use: Callable[[triton_aio.InferenceServerClient], Coroutine[Any, Any, None]]
) -> None:
    async def main() -> None:
        async with triton_aio.InferenceServerClient(address) as connected:
            await use(connected)

    asyncio.run(main())


# --- management ----------------------------------------------------------------------------------


def test_health(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("simple")
    assert client.is_model_ready("simple", "1")
    assert not client.is_model_ready("nope")


def test_metadata_and_config(client: triton.InferenceServerClient) -> None:
    assert client.get_server_metadata().name == "triton"
    metadata = client.get_model_metadata("simple", as_json=True)
    assert metadata["platform"] == "onnxruntime_onnx"
    assert metadata["inputs"][0] == {"name": "INPUT0", "datatype": "INT32", "shape": ["-1", "16"]}
    config = client.get_model_config("simple").config
    assert (config.name, config.max_batch_size) == ("simple", 8)


def test_statistics(client: triton.InferenceServerClient) -> None:
    before = client.get_inference_statistics("simple").model_stats[0].inference_count
    client.infer("simple", addends()[0])
    after = client.get_inference_statistics("simple").model_stats[0]
    assert after.inference_count == before + 2
    assert after.inference_stats.success.count >= 1


def test_repository(client: triton.InferenceServerClient) -> None:
    index = client.get_model_repository_index().models
    assert sorted(model.name for model in index) == sorted(MODELS)
    client.unload_model("dyn")
    assert not client.is_model_ready("dyn")
    client.load_model("dyn")
    assert client.is_model_ready("dyn")
    with pytest.raises(InferenceServerException) as caught:
        client.load_model("nope")
    assert caught.value.status() == "StatusCode.INTERNAL"


def test_trace_and_log_settings(client: triton.InferenceServerClient) -> None:
    assert list(client.get_trace_settings().settings["trace_rate"].value) == ["1000"]
    updated = client.update_trace_settings("simple", {"trace_rate": "7"})
    assert list(updated.settings["trace_rate"].value) == ["7"]
    cleared = client.update_trace_settings("simple", {"trace_rate": None})
    assert list(cleared.settings["trace_rate"].value) == ["1000"]
    # Of two faults the model comes first, as in Triton's own suite.
    with pytest.raises(InferenceServerException, match="Request for unknown model : nope"):
        client.update_trace_settings("nope", {"trace_file": "x"})
    assert (
        client.update_log_settings({"log_verbose_level": 1})
        .settings["log_verbose_level"]
        .uint32_param
        == 1
    )
    client.update_log_settings({"log_verbose_level": 0})
    assert client.get_log_settings().settings["log_verbose_level"].uint32_param == 0


# --- inference -----------------------------------------------------------------------------------


def test_infer(client: triton.InferenceServerClient) -> None:
    inputs, added, subtracted = addends()
    result = client.infer("simple", inputs, request_id="mine", priority=1, timeout=1_000_000)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), added)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), subtracted)
    assert result.get_response().id == "mine"


def test_chosen_output_and_parameters(client: triton.InferenceServerClient) -> None:
    inputs, added, _ = addends()
    outputs = [triton.InferRequestedOutput("OUTPUT0")]
    result = client.infer(
        "simple", inputs, outputs=outputs, parameters={"mine": 1, "text": "a", "flag": True}
    )
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), added)
    assert result.as_numpy("OUTPUT1") is None


def test_strings_and_halves(client: triton.InferenceServerClient) -> None:
    words = np.array([[b"one", b"", "zwei \N{SNOWMAN}".encode()]], np.object_)
    np.testing.assert_array_equal(
        client.infer("id_bytes", [tensor("IN", words, "BYTES")]).as_numpy("OUT"), words
    )
    halves = np.array([[0.5, -1]], np.float16)
    np.testing.assert_array_equal(
        client.infer("id_fp16", [tensor("IN", halves, "FP16")]).as_numpy("OUT"), halves
    )


def test_classes(client: triton.InferenceServerClient) -> None:
    scores = np.array([[0.1, 0.9, 0.3, 0.2]], np.float32)
    outputs = [triton.InferRequestedOutput("OUT", class_count=1)]
    result = client.infer("labels", [tensor("IN", scores)], outputs=outputs).as_numpy("OUT")
    assert result.tolist() == [[b"0.900000:1:dog"]]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
@pytest.mark.parametrize("size", [16, 500_000])
def test_compression(client: triton.InferenceServerClient, algorithm: str, size: int) -> None:
    sent = np.zeros((1, size), np.float32)
    result = client.infer("id_fp32", [tensor("IN", sent)], compression_algorithm=algorithm)
    np.testing.assert_array_equal(result.as_numpy("OUT"), sent)


def test_errors(client: triton.InferenceServerClient) -> None:
    sent = np.zeros((1, 5), np.float32)
    with pytest.raises(InferenceServerException) as caught:
        client.infer("fixed4", [tensor("IN", sent)], request_id="r")
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert caught.value.message().startswith(
        "[request id: r] unexpected shape for input 'IN' for model 'fixed4'"
    )
    with pytest.raises(InferenceServerException) as caught:
        client.infer("nope", [tensor("IN", sent)])
    assert caught.value.status() == "StatusCode.NOT_FOUND"


def test_async_infer(client: triton.InferenceServerClient) -> None:
    inputs, added, _ = addends()
    results: queue.Queue[tuple[Any, Any]] = queue.Queue()
    for n in range(20):
        client.async_infer(
            "simple", inputs, lambda result, error: results.put((result, error)), request_id=str(n)
        )
    ids = set()
    for _ in range(20):
        result, error = results.get(timeout=TIMEOUT_S)
        assert error is None
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), added)
        ids.add(result.get_response().id)
    assert ids == {str(n) for n in range(20)}


def test_stream(client: triton.InferenceServerClient) -> None:
    inputs, added, _ = addends()
    results: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: results.put((result, error)))
    for n in range(20):
        client.async_stream_infer("nope" if n == 7 else "simple", inputs, request_id=str(n))
    for n in range(20):
        result, error = results.get(timeout=TIMEOUT_S)
        if n == 7:
            assert "Request for unknown model: 'nope' is not found" in str(error)
            continue
        assert error is None
        response = result.get_response()
        assert response.id == str(n)
        assert response.parameters["triton_final_response"].bool_param
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), added)
    client.stop_stream()


def test_shared_memory(client: triton.InferenceServerClient) -> None:
    sent = np.arange(4, dtype=np.float32).reshape(1, 4)
    key_in, key_out = (f"/naiad_grpc_{end}_{os.getpid()}" for end in ("in", "out"))
    region_in = shm.create_shared_memory_region("in", key_in, sent.nbytes)
    region_out = shm.create_shared_memory_region("out", key_out, sent.nbytes)
    try:
        shm.set_shared_memory_region(region_in, [sent])
        client.register_system_shared_memory("in", key_in, sent.nbytes)
        client.register_system_shared_memory("out", key_out, sent.nbytes)
        assert set(client.get_system_shared_memory_status().regions) == {"in", "out"}
        entry = triton.InferInput("IN", [1, 4], "FP32")
        entry.set_shared_memory("in", sent.nbytes)
        wanted = triton.InferRequestedOutput("OUT")
        wanted.set_shared_memory("out", sent.nbytes)
        client.infer("id_fp32", [entry], outputs=[wanted])
        answer = shm.get_contents_as_numpy(region_out, np.float32, [1, 4])
        np.testing.assert_array_equal(answer, sent)
        client.unregister_system_shared_memory()
        assert not client.get_system_shared_memory_status().regions
        assert not client.get_cuda_shared_memory_status().regions
    finally:
        shm.destroy_shared_memory_region(region_in)
        shm.destroy_shared_memory_region(region_out)


def test_typed_contents_of_a_plain_stub(address: str) -> None:
    request = triton.service_pb2.ModelInferRequest(model_name="id_fp32")
    entry = request.inputs.add(name="IN", datatype="FP32", shape=[1, 2])
    entry.contents.fp32_contents.extend([1, 2])
    with grpc.insecure_channel(address) as channel:
        stub = triton.service_pb2_grpc.GRPCInferenceServiceStub(channel)
        response = stub.ModelInfer(request, timeout=TIMEOUT_S)
    assert np.frombuffer(response.raw_output_contents[0], np.float32).tolist() == [1, 2]


# --- asyncio -------------------------------------------------------------------------------------


def test_aio(address: str) -> None:
    async def use(connected: triton_aio.InferenceServerClient) -> None:
        assert await connected.is_server_live()
        assert await connected.is_model_ready("simple")
        assert (await connected.get_model_metadata("simple")).name == "simple"
        inputs, added, _ = addends()
        results = await asyncio.gather(*(connected.infer("simple", inputs) for _ in range(20)))
        for result in results:
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), added)
        with pytest.raises(InferenceServerException, match="is not found"):
            await connected.infer("nope", inputs)

    run_async(address, use)


def test_aio_stream(address: str) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        inputs, _, _ = addends()
        for n in range(10):
            yield {"model_name": "simple", "inputs": inputs, "request_id": str(n)}

    async def use(connected: triton_aio.InferenceServerClient) -> None:
        ids = []
        async for result, error in connected.stream_infer(requests()):
            assert error is None
            ids.append(result.get_response().id)
        assert ids == [str(n) for n in range(10)]

    run_async(address, use)


# --- TLS -----------------------------------------------------------------------------------------


def test_tls(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "server", "localhost")
    client_certificate, client_key = make_certificate(tmp_path, "client", "someone")
    repository = tmp_path / "repository"
    shutil.copytree(RECORDED / "id_fp32", repository / "id_fp32")
    options = (
        "--grpc-use-ssl-mutual=true",
        f"--grpc-server-cert={certificate}",
        f"--grpc-server-key={key}",
        f"--grpc-root-cert={client_certificate}",
    )
    sent = np.ones((1, 100_000), np.float32)
    with ServerProcess(repository, options=options) as server:
        target = f"localhost:{server.grpc_address.rpartition(':')[2]}"
        with triton.InferenceServerClient(
            target,
            ssl=True,
            root_certificates=str(certificate),
            private_key=str(client_key),
            certificate_chain=str(client_certificate),
        ) as known:
            result = known.infer("id_fp32", [tensor("IN", sent)])
            np.testing.assert_array_equal(result.as_numpy("OUT"), sent)
        with (
            triton.InferenceServerClient(
                target, ssl=True, root_certificates=str(certificate)
            ) as unknown,
            pytest.raises(InferenceServerException),
        ):
            unknown.is_server_live()
        with triton.InferenceServerClient(target) as plain, pytest.raises(InferenceServerException):
            plain.is_server_live()
