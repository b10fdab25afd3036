"""The client reads what a real Triton answered: every recorded response of an infer request."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from naiad.errors import InternalError, NaiadError
from naiad.protocol.v2_client import decode_error, decode_infer_response

# Triton answers bytes that are not UTF-8 in JSON that is none; the client calls it broken.
NOT_JSON = "binary_types-027"
CASES = Path(__file__).parents[1] / "recorded" / "http_cases.jsonl"


def infer_responses() -> dict[str, dict[str, Any]]:
    responses = {}
    for line in CASES.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        path = case["request"].get("path", "").partition("?")[0]
        if path.endswith("/infer") and "status" in case["response"]:
            responses[case["id"]] = case["response"]
    return responses


RESPONSES = infer_responses()


def body_of(response: dict[str, Any]) -> bytes:
    if "body_base64" in response:
        return base64.b64decode(response["body_base64"])
    text: str = response["body_text"]
    return text.encode()


def has_outputs_elsewhere(response: dict[str, Any]) -> bool:
    """Outputs in shared memory, which this client doesn't ask for."""
    return b'"data"' not in body_of(response) and b"binary_data_size" not in body_of(response)


@pytest.mark.parametrize(
    "case_id",
    [
        case_id
        for case_id, response in RESPONSES.items()
        if response["status"] == 200 and case_id != NOT_JSON and not has_outputs_elsewhere(response)
    ],
)
def test_outputs_are_decoded(case_id: str) -> None:
    response = RESPONSES[case_id]
    body = body_of(response)
    length = response["headers"].get("Inference-Header-Content-Length")

    result = decode_infer_response(body, None if length is None else int(length))

    header = json.loads(body if length is None else body[: int(length)])
    assert result.model_name == header["model_name"]
    assert list(result.outputs) == [entry["name"] for entry in header["outputs"]]
    for entry in header["outputs"]:
        output = result.outputs[entry["name"]]
        assert list(output.data.shape) == entry["shape"]
        assert output.datatype.name == entry["datatype"]


def test_text_that_is_no_json_is_an_internal_error() -> None:
    with pytest.raises(InternalError, match="not one of the v2 inference protocol"):
        decode_infer_response(body_of(RESPONSES[NOT_JSON]))


@pytest.mark.parametrize("case_id", [c for c, r in RESPONSES.items() if r["status"] != 200])
def test_errors_carry_the_servers_text(case_id: str) -> None:
    response = RESPONSES[case_id]
    body = body_of(response)

    error = decode_error(response["status"], body)

    assert isinstance(error, NaiadError)
    try:
        expected = json.loads(body)["error"]
    except ValueError:
        expected = str(response["status"])
    assert expected in error.message
