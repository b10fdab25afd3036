"""Our HTTP client against our server: every datatype that the recorded models take."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.client.http import HttpClient
from naiad.errors import InvalidArgumentError, NotFoundError
from naiad.inference.datatypes import BY_NAME, FP32
from naiad.inference.tensor import Tensor
from naiad.verify.server_process import ServerProcess

REPOSITORY = Path(__file__).parents[1] / "conformance" / "recorded" / "repository"
# The record has no model for BF16; the round trips in tests/properties cover it.
DATATYPES = sorted(name for name in BY_NAME if name != "BF16")
MODELS = [f"id_{name.lower()}" for name in DATATYPES]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client() -> Iterator[HttpClient]:
    options = ["--model-control-mode=explicit", *(f"--load-model={model}" for model in MODELS)]
    with ServerProcess(REPOSITORY, options=options) as server, HttpClient(server.address) as made:
        yield made


def values(datatype_name: str) -> Tensor:
    datatype = BY_NAME[datatype_name]
    if datatype.byte_size == 0:
        data: Any = np.array([[b"one", b"", "zwölf".encode()]], np.object_)
    else:
        data = np.array([[0, 1, 1]], datatype.dtype)
    return Tensor("IN", datatype, data.shape, data)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("datatype_name", DATATYPES)
def test_an_identity_gives_back_what_it_got(
    client: HttpClient, datatype_name: str, binary: bool
) -> None:
    sent = values(datatype_name)
    model = f"id_{datatype_name.lower()}"
    if datatype_name == "FP16" and not binary:
        with pytest.raises(InvalidArgumentError, match="sending FP16 data via JSON"):
            client.infer(model, [sent], binary=False)
        return

    result = client.infer(model, [sent], request_id="r", binary=binary)

    assert (result.model_name, result.model_version, result.request_id) == (model, "1", "r")
    (output,) = result.outputs.values()
    assert output.datatype is sent.datatype
    assert output.data.tolist() == sent.data.tolist()


def test_named_outputs_of_a_named_version(client: HttpClient) -> None:
    result = client.infer("id_fp32", [values("FP32")], version="1", output_names=["OUT"])

    assert list(result.outputs) == ["OUT"]


def test_non_finite_numbers_survive_json(client: HttpClient) -> None:
    data = np.array([[np.nan, np.inf, -np.inf, 1.5]], np.float32)

    result = client.infer("id_fp32", [Tensor("IN", FP32, data.shape, data)], binary=False)

    assert np.array_equal(result.outputs["OUT"].data, data, equal_nan=True)


def test_what_is_known_about_server_and_model(client: HttpClient) -> None:
    assert client.is_live()
    assert client.is_ready()
    assert client.is_model_ready("id_fp32")
    assert not client.is_model_ready("nope")
    assert "binary_tensor_data" in client.server_metadata()["extensions"]
    assert client.model_metadata("id_fp32")["inputs"][0]["datatype"] == "FP32"
    assert client.model_config("id_fp32", "1")["max_batch_size"] == 8
    (statistics,) = client.statistics("id_fp32")["model_stats"]
    assert statistics["name"] == "id_fp32"
    assert len(client.statistics()["model_stats"]) == len(MODELS)


def test_the_servers_refusals_are_raised_with_its_text(client: HttpClient) -> None:
    with pytest.raises(NotFoundError, match="unknown model: 'nope'"):
        client.infer("nope", [values("FP32")])
    with pytest.raises(InvalidArgumentError, match="id_fp32"):
        client.infer("id_fp32", [values("INT32")])
