"""The example models of the Python backend give the answers that they promise."""

import io
import json
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.support.served_repository import Server, running_server

from naiad.inference.datatypes import BY_NAME

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2] / "examples" / "python_models" / "repository"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server(REPOSITORY) as running:
        yield running


Input = tuple[str, list[int], list[Any]]


def ask(server: Server, model: str, **inputs: Input) -> dict[str, Any]:
    """The outputs' data by name, over HTTP."""
    tensors = [
        {"name": name, "datatype": datatype, "shape": shape, "data": data}
        for name, (datatype, shape, data) in inputs.items()
    ]
    answer = json.loads(server.post(f"/v2/models/{model}/infer", {"inputs": tensors}))
    return {output["name"]: output["data"] for output in answer["outputs"]}


def ask_grpc(server: Server, model: str, **inputs: Input) -> dict[str, Any]:
    """The same over gRPC."""
    grpcclient = pytest.importorskip("tritonclient.grpc")
    tensors = []
    for name, (datatype, shape, data) in inputs.items():
        tensor = grpcclient.InferInput(name, shape, datatype)
        dtype = BY_NAME[datatype].dtype
        elements = [item.encode() if isinstance(item, str) else item for item in data]
        tensor.set_data_from_numpy(np.array(elements, dtype).reshape(shape))
        tensors.append(tensor)
    with grpcclient.InferenceServerClient(server.grpc_address) as client:
        result = client.infer(model, tensors)
    found = {}
    for output in result.get_response().outputs:
        values = result.as_numpy(output.name).ravel().tolist()
        found[output.name] = [v.decode() if isinstance(v, bytes) else v for v in values]
    return found


BOTH_WAYS = pytest.mark.parametrize("asking", [ask, ask_grpc])


def events(server: Server, model: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    text = server.post(f"/v2/models/{model}/generate_stream", body)
    return [json.loads(event.removeprefix("data: ")) for event in text.split("\n\n") if event]


Asking = Callable[..., dict[str, Any]]
PAIR = {"INPUT0": ("FP32", [4], [1, 2, 3, 4]), "INPUT1": ("FP32", [4], [10, 20, 30, 40])}


@BOTH_WAYS
def test_add_sub(server: Server, asking: Asking) -> None:
    found = asking(server, "add_sub", **PAIR)
    assert found == {"OUTPUT0": [11, 22, 33, 44], "OUTPUT1": [-9, -18, -27, -36]}


@BOTH_WAYS
def test_bls(server: Server, asking: Asking) -> None:
    assert asking(server, "bls_sync", **PAIR) == {"SUM": [11, 22, 33, 44]}
    assert asking(server, "bls_async", **PAIR) == {
        "SUM": [11, 22, 33, 44],
        "DIFFERENCE": [-9, -18, -27, -36],
    }


def test_square(server: Server) -> None:
    assert [event["OUT"] for event in events(server, "square", {"IN": 3})] == [3, 3, 3]
    assert events(server, "square", {"IN": 0}) == []


def test_square_over_a_grpc_stream(server: Server) -> None:
    grpcclient = pytest.importorskip("tritonclient.grpc")
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with grpcclient.InferenceServerClient(server.grpc_address) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        tensor = grpcclient.InferInput("IN", [1], "INT32")
        tensor.set_data_from_numpy(np.array([4], np.int32))
        client.async_stream_infer("square", [tensor], enable_empty_final_response=True)
        numbers = []
        is_final = False
        while not is_final:
            result, error = answers.get(timeout=500)
            assert error is None
            is_final = result.get_response().parameters["triton_final_response"].bool_param
            if not is_final:
                numbers.append(int(result.as_numpy("OUT")[0]))
        client.stop_stream()
    assert numbers == [4, 4, 4, 4]


@BOTH_WAYS
def test_auto_complete(server: Server, asking: Asking) -> None:
    texts = ("BYTES", [2, 1], ["four", "\u00fcber"])
    assert asking(server, "auto_complete", TEXT=texts) == {"LENGTH": [4, 4]}
    config = json.loads(server.get("/v2/models/auto_complete/config"))
    assert config["max_batch_size"] == 8


@BOTH_WAYS
def test_instance_kinds(server: Server, asking: Asking) -> None:
    answer = asking(server, "instance_kinds", ASK=("BOOL", [1], [True]))
    assert answer["KIND"] == ["MODEL"]
    assert answer["INSTANCE"][0] in {"instance_kinds_0_0", "instance_kinds_0_1"}


def test_custom_metrics(server: Server) -> None:
    for count, asking in enumerate((ask, ask_grpc), 1):
        asking(server, "custom_metrics", IN=("FP32", [3], [1, 2, 3]))
        page = server.get("/metrics", "Metrics Service").splitlines()
        assert f'example_elements{{model="custom_metrics"}} {3 * count}' in page
        assert f'example_sizes_bucket{{le="10"}} {count}' in page


def test_image_preprocess(server: Server) -> None:
    encoded = io.BytesIO()
    Image.new("RGB", (64, 48), (255, 0, 51)).save(encoded, "PNG")
    content = encoded.getvalue()
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "IMAGE",
                    "datatype": "BYTES",
                    "shape": [1],
                    "parameters": {"binary_data_size": len(content) + 4},
                }
            ]
        }
    ).encode()
    answer = server.post_binary(
        "/v2/models/image_preprocess/infer",
        head + len(content).to_bytes(4, "little") + content,
        header_length=len(head),
    )
    pixels = np.array(json.loads(answer)["outputs"][0]["data"]).reshape(3, 32, 32)
    np.testing.assert_allclose(pixels.mean(axis=(1, 2)), [1, 0, 0.2], atol=1e-6)
    (output,) = ask_grpc(server, "image_preprocess", IMAGE=("BYTES", [1], [content])).values()
    np.testing.assert_array_equal(np.array(output).reshape(3, 32, 32), pixels)


def test_text_stream(server: Server) -> None:
    body = {"PROMPT": "the model", "max_tokens": 5, "seed": 1}
    tokens = [event["TOKEN"] for event in events(server, "text_stream", body)]
    assert len(tokens) == 5
    assert tokens[0] in {"reads", "has"}
    assert tokens == [event["TOKEN"] for event in events(server, "text_stream", body)]
    assert events(server, "text_stream", {"PROMPT": "nonsense"}) == []


@pytest.fixture(scope="module")
def application() -> Iterator[Server]:
    with running_server(REPOSITORY.parent / "app.py") as running:
        yield running


def test_functions_are_models(application: Server) -> None:
    answer = ask(application, "describe", x=("FP32", [2, 4], [1, 2, 3, 6, 0, 0, 0, 4]))
    assert answer == {"mean": [3, 1], "spread": [5, 4]}
    found = events(application, "words", {"text": "one two three", "max_words": 2})
    assert [event["word"] for event in found] == ["ONE", "TWO"]
    for total in (2, 4):
        assert ask(application, "Adder", x=("INT64", [1], [2])) == {"total": [total]}


def test_a_file_without_models_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text("x = 1\n")
    ended = subprocess.run(
        [sys.executable, "-m", "naiad", "serve", path],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"error: {path} defines no model")
