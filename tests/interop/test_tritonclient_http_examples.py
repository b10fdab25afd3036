"""What NVIDIA's example programs for the HTTP client do, from connecting to reading the answer.

The programs are rewritten, not copied: each test goes the way of one of them.
"""

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
import tritonclient.utils.shared_memory as shm
from tritonclient.http.auth import BasicAuth
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from naiad.verify.server_process import ServerProcess

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).parent.parent / "conformance" / "recorded" / "repository"
MODELS = ("simple", "simple_string", "labels", "id_fp32")
SEQUENCE_MODEL = "seq_state_direct"
Array = npt.NDArray[Any]

FIRST = np.arange(16, dtype=np.int32).reshape(1, 16)
SECOND = np.ones((1, 16), dtype=np.int32)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("examples")
    for model in (*MODELS, SEQUENCE_MODEL):
        shutil.copytree(RECORDED / model, folder / model)
    loads = [f"--load-model={model}" for model in (*MODELS, SEQUENCE_MODEL)]
    options = ("--allow-client-shm=true", "--model-control-mode=explicit", *loads)
    with ServerProcess(folder, options=options) as server:
        yield server.address


@pytest.fixture
def client(address: str) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(address) as connected:
        yield connected


def numbers(binary: bool = True) -> list[Any]:
    inputs = [triton.InferInput(f"INPUT{index}", [1, 16], "INT32") for index in range(2)]
    inputs[0].set_data_from_numpy(FIRST, binary_data=binary)
    inputs[1].set_data_from_numpy(SECOND, binary_data=binary)
    return inputs


def wanted(**options: Any) -> list[Any]:
    return [triton.InferRequestedOutput(f"OUTPUT{index}", **options) for index in range(2)]


def check(result: Any) -> None:
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), FIRST + SECOND)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), FIRST - SECOND)


@contextmanager
def region(client: Any, name: str, byte_size: int) -> Iterator[Any]:
    key = f"/naiad_example_{os.getpid()}_{name}"
    handle = shm.create_shared_memory_region(name, key, byte_size)
    client.register_system_shared_memory(name, key, byte_size)
    try:
        yield handle
    finally:
        client.unregister_system_shared_memory(name)
        shm.destroy_shared_memory_region(handle)


# --- simple: two inputs, their sum and difference ------------------------------------------------


@pytest.mark.parametrize("request_compression", [None, "gzip", "deflate"])
@pytest.mark.parametrize("response_compression", [None, "gzip", "deflate"])
def test_simple_with_every_compression(
    client: triton.InferenceServerClient,
    request_compression: str | None,
    response_compression: str | None,
) -> None:
    inputs = numbers()
    inputs[1].set_data_from_numpy(SECOND, binary_data=False)  # one as JSON, one as bytes
    outputs = [
        triton.InferRequestedOutput("OUTPUT0", binary_data=True),
        triton.InferRequestedOutput("OUTPUT1", binary_data=False),
    ]
    result = client.infer(
        "simple",
        inputs,
        outputs=outputs,
        query_params={"test_1": 1, "test_2": 2},
        headers={"test": "1"},
        request_compression_algorithm=request_compression,
        response_compression_algorithm=response_compression,
    )
    check(result)
    assert "data" in result.get_output("OUTPUT1")
    assert "data" not in result.get_output("OUTPUT0")


def test_simple_without_naming_outputs(client: triton.InferenceServerClient) -> None:
    check(client.infer("simple", numbers()))
    check(client.infer("simple", numbers(binary=False)))


def test_simple_many_at_a_time(address: str) -> None:
    with triton.InferenceServerClient(address, concurrency=2) as client:
        pending = [client.async_infer("simple", numbers(), outputs=wanted()) for _ in range(6)]
        for request in pending:
            check(request.get_result(block=True, timeout=500))


def test_simple_with_asyncio(address: str) -> None:
    async def main() -> None:
        async with triton_aio.InferenceServerClient(address) as client:
            answers = (client.infer("simple", numbers(), outputs=wanted()) for _ in range(6))
            for result in await asyncio.gather(*answers):
                check(result)

    asyncio.run(main())


def test_custom_arguments(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Verbose, several connections, timeouts of its own, and a name and password for a proxy."""
    with triton.InferenceServerClient(
        address,
        verbose=True,
        concurrency=2,
        connection_timeout=30.0,
        network_timeout=30.0,
        max_greenlets=2,
    ) as client:
        client.register_plugin(BasicAuth("someone", "secret"))
        check(client.infer("simple", numbers(), headers={"Custom": "header"}, timeout=30_000_000))
    assert "POST /v2/models/simple/infer" in capsys.readouterr().out


# --- strings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("binary", [False, True])
def test_strings(client: triton.InferenceServerClient, binary: bool) -> None:
    inputs = []
    for index, values in enumerate((FIRST, SECOND)):
        texts = np.array([str(value).encode() for value in values.ravel()], np.object_)
        made = triton.InferInput(f"INPUT{index}", [1, 16], "BYTES")
        inputs.append(made.set_data_from_numpy(texts.reshape(1, 16), binary_data=binary))
    result = client.infer("simple_string", inputs, outputs=wanted(binary_data=binary))
    total = np.vectorize(int)(result.as_numpy("OUTPUT0"))
    np.testing.assert_array_equal(total, FIRST + SECOND)
    np.testing.assert_array_equal(np.vectorize(int)(result.as_numpy("OUTPUT1")), FIRST - SECOND)


# --- shared memory -------------------------------------------------------------------------------


def test_tensors_in_shared_memory(client: triton.InferenceServerClient) -> None:
    size = FIRST.nbytes
    client.unregister_system_shared_memory()
    with (
        region(client, "output_data", 2 * size) as output,
        region(client, "input_data", 2 * size) as given,
    ):
        shm.set_shared_memory_region(given, [FIRST])
        shm.set_shared_memory_region(given, [SECOND], offset=size)
        assert len(client.get_system_shared_memory_status()) == 2
        inputs = [triton.InferInput(f"INPUT{index}", [1, 16], "INT32") for index in range(2)]
        outputs = wanted(binary_data=True)
        for index in range(2):
            inputs[index].set_shared_memory("input_data", size, offset=index * size)
            outputs[index].set_shared_memory("output_data", size, offset=index * size)
        result = client.infer("simple", inputs, outputs=outputs)
        for index, expected in enumerate((FIRST + SECOND, FIRST - SECOND)):
            described = result.get_output(f"OUTPUT{index}")
            got = shm.get_contents_as_numpy(
                output, np.int32, described["shape"], offset=index * size
            )
            np.testing.assert_array_equal(got, expected)
    assert client.get_system_shared_memory_status() == []


def test_strings_in_shared_memory(client: triton.InferenceServerClient) -> None:
    texts = [
        serialize_byte_tensor(
            np.array([str(value).encode() for value in values.ravel()], np.object_)
        )
        for values in (FIRST, SECOND)
    ]
    sizes = [len(text.item()) for text in texts]
    with (
        region(client, "texts", sum(sizes)) as given,
        region(client, "answers", 512) as output,
    ):
        shm.set_shared_memory_region(given, [texts[0]])
        shm.set_shared_memory_region(given, [texts[1]], offset=sizes[0])
        inputs = [triton.InferInput(f"INPUT{index}", [1, 16], "BYTES") for index in range(2)]
        inputs[0].set_shared_memory("texts", sizes[0])
        inputs[1].set_shared_memory("texts", sizes[1], offset=sizes[0])
        outputs = wanted(binary_data=True)
        outputs[0].set_shared_memory("answers", 256)
        outputs[1].set_shared_memory("answers", 256, offset=256)
        client.infer("simple_string", inputs, outputs=outputs)
        total = shm.get_contents_as_numpy(output, np.object_, [1, 16])
        np.testing.assert_array_equal(np.vectorize(int)(total), FIRST + SECOND)


def test_objects_are_used_again_in_every_way(client: triton.InferenceServerClient) -> None:
    """The same inputs and outputs: in shared memory, as bytes, as JSON, and back."""
    inputs, outputs = numbers(), wanted(binary_data=True)
    size = FIRST.nbytes
    with region(client, "again", 4 * size) as memory:
        shm.set_shared_memory_region(memory, [FIRST, SECOND])
        for _ in range(2):
            for index in range(2):
                inputs[index].set_shared_memory("again", size, offset=index * size)
                outputs[index].set_shared_memory("again", size, offset=(2 + index) * size)
            client.infer("simple", inputs, outputs=outputs)
            got = shm.get_contents_as_numpy(memory, np.int32, [1, 16], offset=2 * size)
            np.testing.assert_array_equal(got, FIRST + SECOND)
            for binary in (True, False):
                inputs[0].set_data_from_numpy(FIRST, binary_data=binary)
                inputs[1].set_data_from_numpy(SECOND, binary_data=binary)
                for output in outputs:
                    output.unset_shared_memory()
                check(client.infer("simple", inputs, outputs=outputs))


# --- control, health, classes --------------------------------------------------------------------


def test_model_control(client: triton.InferenceServerClient) -> None:
    client.load_model("id_fp32")
    assert client.is_model_ready("id_fp32")
    client.unload_model("id_fp32")
    assert not client.is_model_ready("id_fp32")
    client.load_model("id_fp32")
    assert client.is_model_ready("id_fp32")
    with pytest.raises(InferenceServerException) as raised:
        client.load_model("wrong_model_name")
    assert raised.value.message().startswith("failed to load 'wrong_model_name'")


def test_health_and_metadata(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live(query_params={"test_1": 1, "test_2": 2})
    assert client.is_server_ready()
    assert client.is_model_ready("simple")
    assert client.get_server_metadata()["name"] == "triton"
    assert client.get_model_metadata("simple", headers={"test": "1"})["name"] == "simple"
    with pytest.raises(InferenceServerException) as raised:
        client.get_model_metadata("wrong_model_name")
    assert raised.value.status() == "404"
    assert raised.value.message() == "Request for unknown model: 'wrong_model_name' is not found"


def test_classification_as_the_image_client_does(client: triton.InferenceServerClient) -> None:
    metadata = client.get_model_metadata("labels")
    config = client.get_model_config("labels")
    assert config["max_batch_size"] > 0
    given = metadata["inputs"][0]
    shape = [2, *given["shape"][1:]]
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    values[1] = values[1, ::-1]
    made = triton.InferInput(given["name"], shape, given["datatype"])
    made.set_data_from_numpy(values)
    name = metadata["outputs"][0]["name"]
    outputs = [triton.InferRequestedOutput(name, class_count=1)]
    rows = client.infer("labels", [made], outputs=outputs).as_numpy(name)
    assert rows.shape == (2, 1)
    # The recorded file of labels has three, for four classes.
    assert [row[0].decode().split(":")[1:] for row in rows] == [["3"], ["0", "cat"]]


def test_sequences_keep_their_state_beside_each_other(client: triton.InferenceServerClient) -> None:
    def send(value: int, key: int | str, flags: str = "") -> int:
        given = triton.InferInput("INPUT", [1, 1], "INT32")
        given.set_data_from_numpy(np.array([[value]], np.int32))
        result = client.infer(
            SEQUENCE_MODEL,
            [given],
            outputs=[triton.InferRequestedOutput("OUTPUT")],
            sequence_id=key,
            sequence_start="s" in flags,
            sequence_end="e" in flags,
        )
        return int(result.as_numpy("OUTPUT")[0, 0])

    # The model adds up what it is sent, as the sequence examples of the client do.
    text = "a sequence of its own"
    assert [send(11, 1000, "s"), send(-11, 1001, "s"), send(1, text, "s")] == [11, -11, 1]
    assert [send(7, 1000), send(-7, 1001), send(2, text)] == [18, -18, 3]
    assert [send(5, 1000, "e"), send(-5, 1001, "e"), send(3, text, "e")] == [23, -23, 6]
    with pytest.raises(InferenceServerException) as raised:
        send(1, 1000)
    assert raised.value.message() == (
        f"inference request for sequence 1000 to model '{SEQUENCE_MODEL}' must specify the START "
        "flag on the first request of the sequence"
    )


def test_a_model_without_sequences_does_nothing_with_their_parameters(
    client: triton.InferenceServerClient,
) -> None:
    check(
        client.infer("simple", numbers(), sequence_id=1001, sequence_start=True, sequence_end=False)
    )
