"""One suite over HTTP JSON, HTTP binary, gRPC and gRPC streams: the same answers, the same texts.

It asks the recorded models, so ``pytest tests/conformance --conformance-http HOST:PORT
--conformance-grpc HOST:PORT`` can point it at any server that serves them, NVIDIA's too.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conformance.carriers import Carrier, GrpcCarrier, HttpCarrier, Question, RefusedError

from naiad.verify.server_process import ServerProcess

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parent / "recorded/repository"
MODELS = (
    *(f"id_{kind}" for kind in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")),
    *("id_uint64", "id_fp16", "id_fp32", "id_fp64", "id_bool", "id_bytes"),
    *("simple", "addsub_fp32", "ver_all", "nb_fp32", "fixed4", "labels", "reshape_io"),
)
INTEGERS = [np.dtype(name) for name in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")]


@pytest.fixture(scope="module")
def addresses(pytestconfig: pytest.Config) -> Iterator[tuple[str, str]]:
    # A run of all tests does not know the options of this folder.
    http, grpc = (
        pytestconfig.getoption(f"--conformance-{kind}", default=None) for kind in ("http", "grpc")
    )
    if http and grpc:
        yield http, grpc
        return
    options = ["--model-control-mode=explicit", *(f"--load-model={name}" for name in MODELS)]
    with ServerProcess(REPOSITORY, options=options) as server:
        yield server.address, server.grpc_address


@pytest.fixture(params=["HTTP JSON", "HTTP binary", "gRPC", "gRPC stream"])
def carrier(request: pytest.FixtureRequest, addresses: tuple[str, str]) -> Carrier:
    http, grpc = addresses
    name: str = request.param
    if name.startswith("HTTP"):
        return HttpCarrier(http, is_binary=name == "HTTP binary")
    return GrpcCarrier(grpc, is_stream=name == "gRPC stream")


def refusal(carrier: Carrier, question: Question) -> str:
    with pytest.raises(RefusedError) as caught:
        carrier.ask(question)
    return str(caught.value)


def fp32(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_are_exact_to_their_bounds(carrier: Carrier, dtype: np.dtype[Any]) -> None:
    bounds = np.iinfo(dtype)
    data = np.array([[bounds.min, bounds.max, 1]], dtype)
    answer = carrier.ask(Question(f"id_{dtype.name}", {"IN": data}))
    np.testing.assert_array_equal(answer.outputs["OUT"], data)
    assert answer.outputs["OUT"].dtype == dtype


@pytest.mark.parametrize("kind", ["fp16", "fp32", "fp64"])
def test_floats_keep_their_bits(carrier: Carrier, kind: str) -> None:
    if kind == "fp16" and not carrier.can_carry_fp16:
        with pytest.raises(Exception, match="FP16"):  # the client itself knows that JSON can't
            carrier.ask(Question("id_fp16", {"IN": np.ones((1, 1), np.float16)}))
        return
    dtype = np.dtype(f"f{int(kind[2:]) // 8}")
    tiny = np.finfo(dtype).smallest_subnormal
    data = np.array([[0.1, -0.0, tiny, np.inf, -np.inf, np.nan]], dtype)
    answer = carrier.ask(Question(f"id_{kind}", {"IN": data}))
    assert answer.outputs["OUT"].tobytes() == data.tobytes()


def test_booleans(carrier: Carrier) -> None:
    data = np.array([[True, False]])
    answer = carrier.ask(Question("id_bool", {"IN": data}))
    np.testing.assert_array_equal(answer.outputs["OUT"], data)


def test_strings_empty_and_not_ascii(carrier: Carrier) -> None:
    data = np.array([[b"", "größer".encode(), b"a b"]], np.object_)
    answer = carrier.ask(Question("id_bytes", {"IN": data}))
    assert [
        item if isinstance(item, bytes) else item.encode()
        for item in answer.outputs["OUT"].ravel().tolist()
    ] == data.ravel().tolist()


@pytest.mark.parametrize("shape", [(1, 0), (3, 5)])
def test_shapes_come_back(carrier: Carrier, shape: tuple[int, ...]) -> None:
    data = fp32(*shape)
    answer = carrier.ask(Question("id_fp32", {"IN": data}))
    assert answer.outputs["OUT"].shape == shape


def test_a_model_without_a_batch_axis(carrier: Carrier) -> None:
    answer = carrier.ask(Question("nb_fp32", {"IN": fp32(4)}))
    np.testing.assert_array_equal(answer.outputs["OUT"], fp32(4))


def test_two_inputs_and_two_outputs(carrier: Carrier) -> None:
    a = np.arange(16, dtype=np.int32).reshape(1, 16)
    b = np.ones((1, 16), np.int32)
    answer = carrier.ask(Question("simple", {"INPUT0": a, "INPUT1": b}))
    np.testing.assert_array_equal(answer.outputs["OUTPUT0"], a + b)
    np.testing.assert_array_equal(answer.outputs["OUTPUT1"], a - b)


def test_only_the_outputs_that_are_asked_for(carrier: Carrier) -> None:
    data = np.ones((1, 16), np.int32)
    question = Question("simple", {"INPUT0": data, "INPUT1": data}, outputs=["OUTPUT1"])
    assert list(carrier.ask(question).outputs) == ["OUTPUT1"]


def test_reshape_is_invisible(carrier: Carrier) -> None:
    answer = carrier.ask(Question("reshape_io", {"IN": fp32(2, 4)}))
    assert answer.outputs["OUT"].shape == (2, 4)


def test_the_request_id_and_the_version_come_back(carrier: Carrier) -> None:
    question = Question("ver_all", {"IN": fp32(1, 2)}, version="1", request_id="mine")
    answer = carrier.ask(question)
    assert (answer.model_version, answer.request_id) == ("1", "mine")


def test_without_a_version_the_latest_answers(carrier: Carrier) -> None:
    assert carrier.ask(Question("ver_all", {"IN": fp32(1, 2)})).model_version == "2"


def test_parameters_of_ones_own_are_taken(carrier: Carrier) -> None:
    question = Question("id_fp32", {"IN": fp32(1, 1)}, parameters={"who": "me", "n": 3, "b": True})
    assert carrier.ask(question).outputs["OUT"].shape == (1, 1)


ID = "[request id: <id_unknown>] "
REFUSALS = {
    "unknown model": (
        Question("nope", {"IN": fp32(1, 1)}, outputs=["OUT"]),
        "Request for unknown model: 'nope' is not found",
    ),
    "unknown version": (
        Question("id_fp32", {"IN": fp32(1, 1)}, outputs=["OUT"], version="9"),
        "Request for unknown model: 'id_fp32' version 9 is not found",
    ),
    "unknown input": (
        Question("id_fp32", {"XX": fp32(1, 1)}),
        "unexpected inference input 'XX' for model 'id_fp32'",
    ),
    "unknown output": (
        Question("id_fp32", {"IN": fp32(1, 1)}, outputs=["NOPE"]),
        "unexpected inference output 'NOPE' for model 'id_fp32'",
    ),
    "missing input": (
        Question("addsub_fp32", {"INPUT0": fp32(1, 2)}),
        f"{ID}expected 2 inputs but got 1 inputs for model 'addsub_fp32'. Got input(s) "
        "['INPUT0'], but missing required input(s) ['INPUT1']. Please provide all required "
        "input(s).",
    ),
    "wrong datatype": (
        Question("id_int64", {"IN": np.ones((1, 1), np.int32)}),
        f"{ID}inference input 'IN' data-type is 'INT32', but model 'id_int64' expects 'INT64'",
    ),
    "batch too large": (
        Question("id_fp32", {"IN": fp32(9, 1)}),
        f"{ID}inference request batch-size must be <= 8 for 'id_fp32'",
    ),
    "unequal batches": (
        Question("addsub_fp32", {"INPUT0": fp32(1, 1), "INPUT1": fp32(2, 1)}),
        f"{ID}input 'INPUT0' batch size does not match other inputs for 'addsub_fp32'",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_has_the_same_text_everywhere(carrier: Carrier, case: str) -> None:
    question, text = REFUSALS[case]
    assert refusal(carrier, question).startswith(text)


def test_a_wrong_shape_says_what_is_expected(carrier: Carrier) -> None:
    text = refusal(carrier, Question("fixed4", {"IN": fp32(1, 5)}, request_id="7"))
    assert text.startswith(
        "[request id: 7] unexpected shape for input 'IN' for model 'fixed4'. Expected [-1,4], got "
        "[1,5]. NOTE: Setting a non-zero max_batch_size"
    )


def test_a_refusal_leaves_the_connection_and_the_server_alone(carrier: Carrier) -> None:
    refusal(carrier, REFUSALS["wrong datatype"][0])
    assert carrier.ask(Question("id_fp32", {"IN": fp32(1, 1)})).outputs["OUT"].shape == (1, 1)
