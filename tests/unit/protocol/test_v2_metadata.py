import json
from dataclasses import dataclass

import pytest

from naiad.errors import InvalidArgumentError
from naiad.inference.statistics import BatchStatistic, ModelStatistics
from naiad.protocol.v2_metadata import (
    decode_index_request,
    decode_load_request,
    decode_unload_request,
    encode_index,
    encode_model_metadata,
    encode_server_metadata,
    encode_statistics,
)


@dataclass(frozen=True)
class Described:
    name: str
    datatype: str = ""
    shape: tuple[int, ...] = ()
    versions: tuple[str, ...] = ()
    platform: str = ""
    inputs: tuple["Described", ...] = ()
    outputs: tuple["Described", ...] = ()


@dataclass(frozen=True)
class Line:
    name: str
    version: str = ""
    state: str | None = None
    reason: str = ""


def test_server_metadata() -> None:
    assert encode_server_metadata("triton", "1.2", ("a", "b")) == (
        b'{"name":"triton","version":"1.2","extensions":["a","b"]}'
    )


def test_model_metadata() -> None:
    tensor = Described("IN", "FP32", (-1, 4))
    model = Described("m", versions=("1", "3"), platform="p", inputs=(tensor,), outputs=())
    assert encode_model_metadata(model) == (
        b'{"name":"m","versions":["1","3"],"platform":"p","inputs":[{"name":"IN",'
        b'"datatype":"FP32","shape":[-1,4]}],"outputs":[]}'
    )


def test_the_index_leaves_out_what_is_empty() -> None:
    lines = [Line("a", "1", "READY"), Line("b", "2", "UNAVAILABLE", "unloaded"), Line("c")]
    assert json.loads(encode_index(lines)) == [
        {"name": "a", "version": "1", "state": "READY"},
        {"name": "b", "version": "2", "state": "UNAVAILABLE", "reason": "unloaded"},
        {"name": "c"},
    ]


def test_statistics_have_every_key() -> None:
    counted = ModelStatistics(last_inference_ms=5, inference_count=3, execution_count=2)
    counted.success.add(70, 2)
    counted.batches[2] = BatchStatistic()
    counted.batches[1] = BatchStatistic()
    counted.batches[1].compute_infer.add(9)
    (model,) = json.loads(encode_statistics([("m", 4, counted)]))["model_stats"]
    assert (model["name"], model["version"], model["last_inference"]) == ("m", "4", 5)
    assert (model["inference_count"], model["execution_count"]) == (3, 2)
    assert list(model["inference_stats"]) == [
        "success",
        "fail",
        "queue",
        "compute_input",
        "compute_infer",
        "compute_output",
        "cache_hit",
        "cache_miss",
    ]
    assert model["inference_stats"]["success"] == {"count": 2, "ns": 70}
    assert [batch["batch_size"] for batch in model["batch_stats"]] == [1, 2]
    assert model["batch_stats"][0]["compute_infer"] == {"count": 1, "ns": 9}
    assert (model["response_stats"], model["memory_usage"]) == ({}, [])


@pytest.mark.parametrize(
    ("body", "ready"),
    [(b"", False), (b"{}", False), (b'{"ready":true}', True), (b"[]", False)],
)
def test_index_requests(body: bytes, *, ready: bool) -> None:
    assert decode_index_request(body) is ready


@pytest.mark.parametrize(
    "body",
    [b'{"ready":"true"}', b'{"ready":1}', b'{"ready":' + b"[" * 250_000 + b"]" * 250_000 + b"}"],
    ids=["text", "number", "deep"],
)
def test_an_index_request_of_the_wrong_kind(body: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="Invalid value for 'ready': expected a boolean"):
        decode_index_request(body)


def test_load_requests() -> None:
    assert decode_load_request(b"") == (None, {})
    assert decode_load_request(b"{}") == (None, {})
    body = {"parameters": {"config": "{}", "file:1/model.onnx": "QUJD", "file:2/x": ""}}
    assert decode_load_request(json.dumps(body).encode()) == (
        "{}",
        {"1/model.onnx": b"ABC", "2/x": b""},
    )


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"hello", "failed to parse the request JSON buffer: Invalid value. at 0"),
        (b'{"parameters":{"zzz":"1"}}', "unexpected error on creating Triton parameter"),
        (b'{"parameters":{"config":{}}}', "attempt to access JSON non-string as string"),
        (b'{"parameters":{"file:1/a":5}}', "attempt to access JSON non-string as string"),
        (b'{"parameters":{"file:1/a":"!!!"}}', "load parameter 'file:1/a' is not base64"),
        (b'{"parameters":[]}', "Unable to parse 'parameters': attempt to access JSON non-object"),
    ],
)
def test_load_requests_of_the_wrong_kind(body: bytes, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        decode_load_request(body)
    assert caught.value.message.startswith(text)


def test_unload_requests() -> None:
    assert decode_unload_request(b"") is False
    assert decode_unload_request(b'{"parameters":{"unload_dependents":true}}') is True
    assert decode_unload_request(b'{"parameters":{"zzz":1}}') is False
    with pytest.raises(InvalidArgumentError, match="non-boolean as boolean"):
        decode_unload_request(b'{"parameters":{"unload_dependents":"true"}}')
