"""NVIDIA's own HTTP client, sync and asyncio, against ``naiad serve`` with Triton's test models."""

import asyncio
import json
import shutil
import socket
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from naiad.verify.server_process import ServerProcess

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).parent.parent / "conformance" / "recorded" / "repository"
MODELS = ("simple", "id_fp32", "id_fp16", "id_bytes", "fixed4", "labels", "dyn")
Array = npt.NDArray[Any]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    repository = tmp_path_factory.mktemp("repository")
    for model in MODELS:
        shutil.copytree(RECORDED / model, repository / model)
    with ServerProcess(repository) as server:
        yield server.address


@pytest.fixture
def client(address: str) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(address) as connected:
        yield connected


@pytest.fixture
def still_serves(client: triton.InferenceServerClient) -> Iterator[None]:
    """Whatever the test did, the server is alive and right afterwards."""
    yield
    assert client.is_server_live()
    assert client.is_server_ready()
    sent = np.array([[1.5, -2.0]], dtype=np.float32)
    answer = client.infer("id_fp32", [tensor("IN", sent)]).as_numpy("OUT")
    np.testing.assert_array_equal(answer, sent)


def tensor(
    name: str, data: Array, datatype: str = "FP32", *, binary: bool = True, library: Any = triton
) -> Any:
    made = library.InferInput(name, list(data.shape), datatype)
    return made.set_data_from_numpy(data, binary_data=binary)


def run_async(
    address: str, use: Callable[[triton_aio.InferenceServerClient], Coroutine[Any, Any, None]]
) -> None:
    async def main() -> None:
        async with triton_aio.InferenceServerClient(address) as client:
            await use(client)

    asyncio.run(main())


def addends() -> tuple[Array, Array]:
    first = np.arange(32, dtype=np.int32).reshape(2, 16)
    return first, np.full((2, 16), 3, dtype=np.int32)


# --- sync -----------------------------------------------------------------------------------


def test_health(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("simple")
    assert client.is_model_ready("simple", "1")
    assert not client.is_model_ready("nope")


def test_server_metadata(client: triton.InferenceServerClient) -> None:
    metadata = client.get_server_metadata()
    assert metadata["name"] == "triton"
    assert "binary_tensor_data" in metadata["extensions"]
    assert "statistics" in metadata["extensions"]


def test_model_metadata(client: triton.InferenceServerClient) -> None:
    metadata = client.get_model_metadata("simple")
    assert metadata["name"] == "simple"
    assert metadata["versions"] == ["1"]
    assert metadata["platform"] == "onnxruntime_onnx"
    assert metadata["inputs"] == [
        {"name": "INPUT0", "datatype": "INT32", "shape": [-1, 16]},
        {"name": "INPUT1", "datatype": "INT32", "shape": [-1, 16]},
    ]
    assert [output["name"] for output in metadata["outputs"]] == ["OUTPUT0", "OUTPUT1"]


def test_model_config(client: triton.InferenceServerClient) -> None:
    config = client.get_model_config("simple")
    assert config["max_batch_size"] == 8
    assert config["input"][0]["data_type"] == "TYPE_INT32"
    assert config["input"][0]["dims"] == [16]


def test_repository_index(client: triton.InferenceServerClient) -> None:
    index = client.get_model_repository_index()
    assert sorted(entry["name"] for entry in index) == sorted(MODELS)
    assert {entry["state"] for entry in index} == {"READY"}


@pytest.mark.parametrize("binary_input", [False, True])
@pytest.mark.parametrize("binary_output", [False, True])
def test_infer(
    client: triton.InferenceServerClient, binary_input: bool, binary_output: bool
) -> None:
    first, second = addends()
    result = client.infer(
        "simple",
        [
            tensor("INPUT0", first, "INT32", binary=binary_input),
            tensor("INPUT1", second, "INT32", binary=binary_input),
        ],
        outputs=[
            triton.InferRequestedOutput("OUTPUT0", binary_data=binary_output),
            triton.InferRequestedOutput("OUTPUT1", binary_data=binary_output),
        ],
        request_id="mine",
    )
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), first + second)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), first - second)
    response = result.get_response()
    assert response["id"] == "mine"
    assert response["model_name"] == "simple"
    assert response["model_version"] == "1"
    assert ("data" in result.get_output("OUTPUT0")) is not binary_output


def test_infer_without_named_outputs_answers_all(client: triton.InferenceServerClient) -> None:
    first, second = addends()
    inputs = [tensor("INPUT0", first, "INT32"), tensor("INPUT1", second, "INT32")]
    result = client.infer("simple", inputs)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), first + second)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), first - second)


def test_one_of_two_outputs(client: triton.InferenceServerClient) -> None:
    first, second = addends()
    inputs = [tensor("INPUT0", first, "INT32"), tensor("INPUT1", second, "INT32")]
    wanted = [triton.InferRequestedOutput("OUTPUT1")]
    result = client.infer("simple", inputs, outputs=wanted)
    assert result.as_numpy("OUTPUT0") is None
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), first - second)


def test_one_connection_serves_many_requests(client: triton.InferenceServerClient) -> None:
    for value in range(50):
        sent = np.full((1, 3), value, dtype=np.float32)
        answer = client.infer("id_fp32", [tensor("IN", sent, binary=value % 2 == 0)])
        np.testing.assert_array_equal(answer.as_numpy("OUT"), sent)


def test_inputs_are_reused_with_other_data(client: triton.InferenceServerClient) -> None:
    made = triton.InferInput("IN", [1, 2], "FP32")
    for value in (1.0, 2.0, 3.0):
        sent = np.full((1, 2), value, dtype=np.float32)
        made.set_data_from_numpy(sent)
        np.testing.assert_array_equal(client.infer("id_fp32", [made]).as_numpy("OUT"), sent)


def test_async_infer_keeps_each_answer_with_its_request(address: str) -> None:
    with triton.InferenceServerClient(address, concurrency=8) as client:
        sent = [np.full((1, 4), value, dtype=np.float32) for value in range(32)]
        requests = [client.async_infer("dyn", [tensor("IN", data)]) for data in sent]
        for data, request in zip(sent, requests, strict=True):
            np.testing.assert_array_equal(request.get_result().as_numpy("OUT"), data)


def test_half_floats_travel_as_bytes(client: triton.InferenceServerClient) -> None:
    sent = np.array([[0.5, 65504.0, -0.0]], dtype=np.float16)
    result = client.infer("id_fp16", [tensor("IN", sent, "FP16")])
    np.testing.assert_array_equal(result.as_numpy("OUT"), sent)


@pytest.mark.parametrize("binary", [False, True])
def test_text(client: triton.InferenceServerClient, binary: bool) -> None:
    sent = np.array([["cat", "Käse", ""]], dtype=np.object_)
    wanted = [triton.InferRequestedOutput("OUT", binary_data=binary)]
    result = client.infer("id_bytes", [tensor("IN", sent, "BYTES", binary=binary)], outputs=wanted)
    texts = [t.decode() if isinstance(t, bytes) else t for t in result.as_numpy("OUT").reshape(-1)]
    assert texts == ["cat", "Käse", ""]


def test_special_floats_survive_json(client: triton.InferenceServerClient) -> None:
    sent = np.array([[np.nan, np.inf, -np.inf, -0.0, 1e-45]], dtype=np.float32)
    wanted = [triton.InferRequestedOutput("OUT", binary_data=False)]
    result = client.infer("id_fp32", [tensor("IN", sent, binary=False)], outputs=wanted)
    answer = result.as_numpy("OUT")
    np.testing.assert_array_equal(answer, sent)
    assert np.signbit(answer[0, 3])


def test_classification_with_labels(client: triton.InferenceServerClient) -> None:
    sent = np.array([[0.0, 4.0, 1.0, 2.0]], dtype=np.float32)
    wanted = [triton.InferRequestedOutput("OUT", class_count=2)]
    result = client.infer("labels", [tensor("IN", sent)], outputs=wanted)
    shown = [bytes(entry).decode() for entry in result.as_numpy("OUT").reshape(-1)]
    # The model has three labels for its four classes.
    assert shown == ["4.000000:1:dog", "2.000000:3"]


def test_statistics_count_requests_and_rows(client: triton.InferenceServerClient) -> None:
    def counters() -> tuple[int, int]:
        (stats,) = client.get_inference_statistics("fixed4")["model_stats"]
        return int(stats["inference_count"]), int(stats["inference_stats"]["success"]["count"])

    rows_before, requests_before = counters()
    client.infer("fixed4", [tensor("IN", np.zeros((3, 4), dtype=np.float32))])
    assert counters() == (rows_before + 3, requests_before + 1)


ERRORS: dict[str, tuple[str, list[Any], str, str]] = {
    "unknown model": (
        "nope",
        [tensor("IN", np.zeros((1, 1), dtype=np.float32))],
        "404",
        "Request for unknown model: 'nope' is not found",
    ),
    "wrong name": (
        "id_fp32",
        [tensor("X", np.zeros((1, 1), dtype=np.float32))],
        "400",
        "unexpected inference input 'X' for model 'id_fp32'",
    ),
    "wrong datatype": (
        "id_fp32",
        [tensor("IN", np.zeros((1, 1), dtype=np.int32), "INT32")],
        "400",
        "inference input 'IN' data-type is 'INT32', but model 'id_fp32' expects 'FP32'",
    ),
    "wrong shape": (
        "fixed4",
        [tensor("IN", np.zeros((1, 5), dtype=np.float32))],
        "400",
        "unexpected shape for input 'IN' for model 'fixed4'. Expected [-1,4], got [1,5].",
    ),
    "batch too large": (
        "id_fp32",
        [tensor("IN", np.zeros((9, 1), dtype=np.float32))],
        "400",
        "inference request batch-size must be <= 8 for 'id_fp32'",
    ),
    "no inputs": ("id_fp32", [], "400", "expected 1 inputs but got 0 inputs for model 'id_fp32'"),
}


@pytest.mark.usefixtures("still_serves")
@pytest.mark.parametrize("kind", ERRORS)
def test_a_wrong_request_gets_triton_s_error(
    client: triton.InferenceServerClient, kind: str
) -> None:
    model, inputs, status, text = ERRORS[kind]
    with pytest.raises(InferenceServerException) as raised:
        client.infer(model, inputs)
    assert raised.value.status() == status
    assert text in raised.value.message()


@pytest.mark.usefixtures("still_serves")
def test_an_unknown_version(client: triton.InferenceServerClient) -> None:
    inputs = [tensor("IN", np.zeros((1, 1), dtype=np.float32))]
    with pytest.raises(InferenceServerException) as raised:
        client.infer("id_fp32", inputs, model_version="7")
    assert raised.value.status() == "404"
    assert "'id_fp32' version 7 is not found" in raised.value.message()


@pytest.mark.usefixtures("still_serves")
def test_an_unknown_output(client: triton.InferenceServerClient) -> None:
    inputs = [tensor("IN", np.zeros((1, 1), dtype=np.float32))]
    with pytest.raises(InferenceServerException) as raised:
        client.infer("id_fp32", inputs, outputs=[triton.InferRequestedOutput("NOPE")])
    assert raised.value.status() == "400"
    assert "unexpected inference output 'NOPE' for model 'id_fp32'" in raised.value.message()


# --- bytes that no client library would send ---------------------------------------------------


def exchange(address: str, request: bytes, *, half_close: bool = False) -> bytes:
    """Send bytes as they are; everything that comes back until the server closes."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=500) as connection:
        connection.sendall(request)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        pieces = []
        while piece := connection.recv(65536):
            pieces.append(piece)
    return b"".join(pieces)


def post(body: bytes, headers: str = "", length: int | None = None) -> bytes:
    announced = len(body) if length is None else length
    head = (
        "POST /v2/models/id_fp32/infer HTTP/1.1\r\nHost: test\r\nConnection: close\r\n"
        f"Content-Length: {announced}\r\n{headers}\r\n"
    )
    return head.encode() + body


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def error_of(answer: bytes) -> str:
    return str(json.loads(answer.partition(b"\r\n\r\n")[2])["error"])


def binary_request(tail: bytes, announced: int) -> bytes:
    entry = {
        "name": "IN", "shape": [1, 2], "datatype": "FP32",
        "parameters": {"binary_data_size": announced},
    }  # fmt: skip
    header = json.dumps({"inputs": [entry]}).encode()
    return post(header + tail, f"Inference-Header-Content-Length: {len(header)}\r\n")


@pytest.mark.usefixtures("still_serves")
def test_bad_json(address: str) -> None:
    answer = exchange(address, post(b"{nonsense"))
    # The recorded conformance cases say which status it is; a client needs the text.
    assert status_of(answer) in {400, 500}
    assert error_of(answer).startswith("failed to parse the request JSON buffer:")


@pytest.mark.usefixtures("still_serves")
def test_json_of_another_kind(address: str) -> None:
    answer = exchange(address, post(b"{}"))
    assert status_of(answer) in {400, 500}
    assert error_of(answer) == (
        "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"
    )


@pytest.mark.usefixtures("still_serves")
def test_a_binary_body_that_is_too_short(address: str) -> None:
    answer = exchange(address, binary_request(b"\0" * 4, announced=8))
    assert status_of(answer) == 400
    assert "unexpected size for input 'IN'" in error_of(answer)


@pytest.mark.usefixtures("still_serves")
def test_a_binary_body_that_is_too_long(address: str) -> None:
    answer = exchange(address, binary_request(b"\0" * 12, announced=8))
    assert status_of(answer) == 400
    assert "unexpected additional input data for model 'id_fp32'" in error_of(answer)


@pytest.mark.usefixtures("still_serves")
def test_a_binary_size_that_is_not_the_shape_s(address: str) -> None:
    answer = exchange(address, binary_request(b"\0" * 12, announced=12))
    assert status_of(answer) == 400
    assert "input byte size mismatch for input 'IN'" in error_of(answer)


@pytest.mark.usefixtures("still_serves")
@pytest.mark.parametrize("value", ["x", "-1", "99999999999999999999"])
def test_a_header_length_that_is_no_length(address: str, value: str) -> None:
    answer = exchange(address, post(b"{}", f"Inference-Header-Content-Length: {value}\r\n"))
    assert status_of(answer) == 400


@pytest.mark.usefixtures("still_serves")
def test_a_client_that_gives_up_in_the_middle_of_its_body(address: str) -> None:
    # No answer is owed to half a request; what counts is that the next client gets one.
    exchange(address, post(b'{"inputs": [', length=5000), half_close=True)


@pytest.mark.usefixtures("still_serves")
def test_what_is_not_http(address: str) -> None:
    answer = exchange(address, b"\x16\x03\x01\x02\x00nonsense\r\n\r\n", half_close=True)
    assert answer == b"" or status_of(answer) == 400


# --- asyncio ------------------------------------------------------------------------------------


def test_aio_health_metadata_config_statistics(address: str) -> None:
    async def use(client: triton_aio.InferenceServerClient) -> None:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("simple")
        assert (await client.get_server_metadata())["name"] == "triton"
        assert (await client.get_model_metadata("simple"))["versions"] == ["1"]
        assert (await client.get_model_config("simple"))["max_batch_size"] == 8
        stats = await client.get_inference_statistics("simple")
        assert stats["model_stats"][0]["name"] == "simple"

    run_async(address, use)


@pytest.mark.parametrize("binary", [False, True])
def test_aio_infer(address: str, binary: bool) -> None:
    first, second = addends()

    async def use(client: triton_aio.InferenceServerClient) -> None:
        result = await client.infer(
            "simple",
            [
                tensor("INPUT0", first, "INT32", binary=binary, library=triton_aio),
                tensor("INPUT1", second, "INT32", binary=binary, library=triton_aio),
            ],
            outputs=[triton_aio.InferRequestedOutput("OUTPUT0", binary_data=binary)],
        )
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), first + second)

    run_async(address, use)


def test_aio_keeps_each_answer_with_its_request(address: str) -> None:
    sent = [np.full((1, 4), value, dtype=np.float32) for value in range(32)]

    async def use(client: triton_aio.InferenceServerClient) -> None:
        calls = [client.infer("dyn", [tensor("IN", d, library=triton_aio)]) for d in sent]
        for data, result in zip(sent, await asyncio.gather(*calls), strict=True):
            np.testing.assert_array_equal(result.as_numpy("OUT"), data)

    run_async(address, use)


@pytest.mark.usefixtures("still_serves")
def test_aio_errors(address: str) -> None:
    async def use(client: triton_aio.InferenceServerClient) -> None:
        for model, inputs, status, text in ERRORS.values():
            with pytest.raises(InferenceServerException) as raised:
                await client.infer(model, inputs)
            assert raised.value.status() == status
            assert text in raised.value.message()

    run_async(address, use)
