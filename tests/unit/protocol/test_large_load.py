"""Large load requests: what comes back from the other process is what was asked."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest

from naiad.errors import InvalidArgumentError
from naiad.protocol.large_load import join_load, split_load
from naiad.protocol.v2_metadata import decode_load_request


def load_body(**parameters: object) -> bytes:
    return json.dumps({"parameters": parameters}).encode()


def across(text: bytes) -> tuple[str | None, Mapping[str, bytes]]:
    split = split_load(memoryview(text))
    payload = bytearray(split.payload_bytes)
    for offset, data in split.pieces:
        payload[offset : offset + len(data)] = data
    config, files = join_load(split.head, memoryview(payload))
    return config, {path: bytes(content) for path, content in files.items()}


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"config": '{"name":"ä"}'},
        {"config": "", "file:1/a": base64.b64encode(b"content").decode(), "file:1/b": ""},
    ],
)
def test_like_the_direct_way(parameters: dict[str, Any]) -> None:
    body = load_body(**parameters)
    assert across(body) == decode_load_request(body)


def test_an_empty_body() -> None:
    assert across(b"") == (None, {})


@pytest.mark.parametrize(
    "body",
    [b"{", load_body(other=1), load_body(config=1), load_body(**{"file:1/a": "?"})],
)
def test_errors_like_the_direct_way(body: bytes) -> None:
    with pytest.raises(InvalidArgumentError) as directly:
        decode_load_request(body)
    with pytest.raises(InvalidArgumentError) as ours:
        across(body)
    assert ours.value.message == directly.value.message


def test_names_of_files_have_a_limit() -> None:
    files = {f"file:1/{number:0>1000}": "" for number in range(300)}
    with pytest.raises(InvalidArgumentError, match="besides its tensors or files, the limit is"):
        across(load_body(**files))
