"""Both callers of verify against a real server: tritonclient's, and verify's own encoder."""

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from naiad.inference.comparison import Array
from naiad.repository.golden import GoldenCase
from naiad.verify.grpc_wire import PlainGrpcCaller, TritonGrpcCaller, open_grpc_caller
from naiad.verify.hops import (
    ConcurrentHop,
    HopFailedError,
    ServedHop,
    Transport,
    read_executions,
    reload_model,
)
from naiad.verify.server_process import ServerProcess
from naiad.verify.wire import (
    Caller,
    CallFailedError,
    MissingError,
    PlainCaller,
    SilentError,
    Target,
    TritonClientCaller,
    get_json,
    open_caller,
)

pytestmark = pytest.mark.slow

WAIT_S = 300.0
RECORDED = Path(__file__).parent.parent / "conformance" / "recorded" / "repository"
DATA: dict[str, Any] = {
    "BOOL": np.array([[True, False]]),
    "INT8": np.array([[-128, 127]], dtype=np.int8),
    "UINT64": np.array([[0, 2**64 - 1]], dtype=np.uint64),
    "INT64": np.array([[-(2**63), 2**63 - 1]], dtype=np.int64),
    "FP16": np.array([[0.5, -65504.0]], dtype=np.float16),
    "FP32": np.array([[np.nan, -np.inf, -0.0, 1e-45, 0.1]], dtype=np.float32),
    "FP64": np.array([[0.1, 5e-324]]),
    "BYTES": np.array([[b"cat", "Käse".encode(), b""]], dtype=np.object_),
}
# The protocol has no JSON form for FP16.
CASES = [(d, b) for d in DATA for b in (False, True) if b or d != "FP16"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("repository")
    for datatype in DATA:
        name = f"id_{datatype.lower()}"
        shutil.copytree(RECORDED / name, repository / name)
    shutil.copytree(RECORDED / "dyn", repository / "dyn")
    options = ["--model-control-mode=explicit", "--load-model=*"]
    with ServerProcess(repository, options=options) as server:
        yield server


@pytest.fixture(scope="module")
def address(server: ServerProcess) -> str:
    return server.address


def target(address: str, datatype: str, model: str = "") -> Target:
    name = model or f"id_{datatype.lower()}"
    return Target(address, name, 1, {"IN": datatype}, {"OUT": datatype})


def same_bits(answer: Array, sent: Array) -> bool:
    if sent.dtype.hasobject or answer.dtype != sent.dtype:
        return bool(answer.tolist() == sent.tolist())
    same_nan = np.isnan(answer) & np.isnan(sent) if sent.dtype.kind == "f" else False
    bits = np.dtype(f"u{sent.dtype.itemsize}")
    return bool(np.all((answer.view(bits) == sent.view(bits)) | same_nan))


@pytest.mark.parametrize("make", [PlainCaller, TritonClientCaller])
@pytest.mark.parametrize(("datatype", "binary"), CASES)
def test_every_bit_comes_back(
    address: str, make: Callable[[Target], Caller], datatype: str, binary: bool
) -> None:
    caller = make(target(address, datatype))
    sent = DATA[datatype]
    try:
        answer = caller.infer({"IN": sent}, binary=binary)["OUT"]
    finally:
        caller.close()
    assert answer.dtype == sent.dtype
    assert answer.shape == sent.shape
    assert same_bits(answer, sent)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("make", [PlainGrpcCaller, TritonGrpcCaller])
def test_every_bit_comes_back_by_grpc(
    server: ServerProcess, make: Callable[..., Caller], is_stream: bool
) -> None:
    for datatype, sent in DATA.items():
        asked = replace(target(server.address, datatype), grpc_address=server.grpc_address)
        caller = make(asked, is_stream=is_stream)
        try:
            # Twice: a stream is one call for many requests.
            answers = [caller.infer({"IN": sent}, binary=True)["OUT"] for _ in range(2)]
        finally:
            caller.close()
        for answer in answers:
            assert answer.dtype == sent.dtype
            assert answer.shape == sent.shape
            assert same_bits(answer, sent)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("make", [PlainGrpcCaller, TritonGrpcCaller])
def test_a_refusal_by_grpc_is_passed_on(
    server: ServerProcess, make: Callable[..., Caller], is_stream: bool
) -> None:
    asked = replace(target(server.address, "FP32", "nope"), grpc_address=server.grpc_address)
    caller = make(asked, is_stream=is_stream)
    try:
        with pytest.raises(CallFailedError, match="unknown model: 'nope'"):
            caller.infer({"IN": DATA["FP32"]}, binary=True)
    finally:
        caller.close()


def test_more_than_a_window_of_data_goes_by_the_plain_grpc_caller(server: ServerProcess) -> None:
    # HTTP/2 starts with a window of 64 KiB in each direction.
    sent = np.arange(1 << 19, dtype=np.float32).reshape(1, -1)
    asked = replace(target(server.address, "FP32"), grpc_address=server.grpc_address)
    caller = PlainGrpcCaller(asked, is_stream=False)
    try:
        assert same_bits(caller.infer({"IN": sent}, binary=True)["OUT"], sent)
    finally:
        caller.close()


def test_the_more_independent_grpc_caller_is_chosen(server: ServerProcess) -> None:
    for datatype, kind in (("FP32", TritonGrpcCaller), ("BF16", PlainGrpcCaller)):
        asked = replace(target(server.address, datatype), grpc_address=server.grpc_address)
        caller = open_grpc_caller(asked, is_stream=False)
        assert isinstance(caller, kind)
        caller.close()


def test_no_grpc_server_is_a_failed_hop() -> None:
    nowhere = replace(target("127.0.0.1:1", "BF16"), grpc_address="127.0.0.1:1")
    with pytest.raises(HopFailedError, match=r"127\.0\.0\.1:1"):
        ServedHop(nowhere, Transport.GRPC)


def test_a_model_is_reloaded_and_serves_again(server: ServerProcess) -> None:
    asked = target(server.address, "INT8")
    reload_model(asked)
    hop = ServedHop(asked, Transport.BINARY)
    case = GoldenCase("c", 1, "fixed", {"IN": DATA["INT8"]}, {})
    np.testing.assert_array_equal(hop.run(case)["OUT"], DATA["INT8"])
    hop.close()
    with pytest.raises(HopFailedError, match="nope"):
        reload_model(target(server.address, "INT8", "nope"))


def test_the_more_independent_caller_is_chosen(address: str) -> None:
    for datatype, kind in (("FP32", TritonClientCaller), ("BF16", PlainCaller)):
        caller = open_caller(target(address, datatype))
        assert isinstance(caller, kind)
        caller.close()


@pytest.mark.parametrize("make", [PlainCaller, TritonClientCaller])
def test_the_server_s_refusal_is_passed_on(address: str, make: Callable[[Target], Caller]) -> None:
    caller = make(target(address, "FP32", "nope"))
    try:
        with pytest.raises(CallFailedError, match="unknown model: 'nope'"):
            caller.infer({"IN": DATA["FP32"]}, binary=True)
    finally:
        caller.close()


def test_a_hop_refuses_what_json_can_not_carry(address: str) -> None:
    for transport, refusal in (
        (Transport.JSON, "FP16 has no JSON form"),
        (Transport.BINARY, ""),
    ):
        hop = ServedHop(target(address, "FP16"), transport)
        assert hop.refusal() == refusal
        hop.close()


def test_requests_of_many_clients_are_mixed_and_counted(address: str) -> None:
    dyn = target(address, "FP32", "dyn")
    cases = [
        GoldenCase(f"case{i}", 1, "fixed", {"IN": np.full((1, 3), i, dtype=np.float32)}, {})
        for i in range(5)
    ]
    mixed = ConcurrentHop(dyn).run_mixed(cases, rounds=4)
    assert len(mixed.answers) == 64
    for case, outputs in mixed.answers:
        np.testing.assert_array_equal(outputs["OUT"], case.inputs["IN"])
    executions = mixed.executions
    assert executions is not None
    assert executions.requests == 64
    assert executions.executions == sum(executions.batch_sizes.values())
    assert sum(size * count for size, count in executions.batch_sizes.items()) == 64


def test_statistics_of_an_unknown_model_fail_the_hop(address: str) -> None:
    with pytest.raises(HopFailedError, match="no statistics"):
        read_executions(target(address, "FP32", "nope"))


@pytest.mark.parametrize("make", [TritonClientCaller, PlainCaller])
def test_a_server_that_goes_away_is_a_failed_call(make: Callable[[Target], Caller]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            connection, _ = listener.accept()
            connection.recv(1)
            connection.shutdown(socket.SHUT_RDWR)
            connection.close()

        server = threading.Thread(target=hang_up)
        server.start()
        caller = make(target(f"127.0.0.1:{listener.getsockname()[1]}", "FP32"))
        with pytest.raises(CallFailedError):
            caller.infer({"IN": np.zeros((1, 2), np.float32)}, binary=True)
        caller.close()
        server.join()


def test_no_server_is_a_failed_call() -> None:
    with pytest.raises(CallFailedError, match=r"127\.0\.0\.1:1"):
        get_json(target("127.0.0.1:1", "FP32"), "/v2")


@pytest.fixture
def plain_kserve() -> Iterator[str]:
    """The address of a server with the required half of KServe's protocol: no extensions."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b'{"name": "plain", "version": "1", "extensions": []}'
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Nothing to say."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("transport", list(Transport))
def test_extensions_of_triton_s_are_not_asked_of_a_server_without(
    plain_kserve: str, transport: Transport
) -> None:
    hop = ServedHop(replace(target(plain_kserve, "FP32"), grpc_address=plain_kserve), transport)
    named = {Transport.BINARY: "binary_tensor_data", Transport.GRPC_STREAM: "ModelStreamInfer"}
    refusal = hop.refusal()
    hop.close()
    assert refusal.startswith(named.get(transport, ""))
    assert bool(refusal) == (transport in named)


@pytest.mark.parametrize("make", [TritonGrpcCaller, PlainGrpcCaller])
def test_a_grpc_server_without_streams_has_no_such_hop(make: Any) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    asked = replace(target("127.0.0.1:1", "FP32"), grpc_address=f"127.0.0.1:{port}")
    caller = make(asked, is_stream=True)
    with pytest.raises(MissingError, match="this server has no ModelStreamInfer"):
        caller.infer({"IN": DATA["FP32"]})
    caller.close()
    caller = make(asked, is_stream=False)
    with pytest.raises(CallFailedError) as caught:
        caller.infer({"IN": DATA["FP32"]})
    assert not isinstance(caught.value, MissingError)
    caller.close()
    server.stop(None).wait()


def test_a_stream_that_ended_before_the_call_still_says_why() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    asked = replace(target("127.0.0.1:1", "FP32"), grpc_address=f"127.0.0.1:{port}")
    caller = TritonGrpcCaller(asked, is_stream=True)
    caller._answers.put(caller._answers.get(timeout=WAIT_S))  # the stream's end has been reported
    for _ in range(2):
        with pytest.raises(MissingError, match="this server has no ModelStreamInfer"):
            caller.infer({"IN": DATA["FP32"]})
    caller.close()
    server.stop(None).wait()


@pytest.mark.parametrize("make", [TritonClientCaller, PlainCaller])
def test_no_answer_in_time_is_told_from_a_refusal(
    make: Callable[[Target], Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("naiad.verify.wire.TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        caller = make(target(f"127.0.0.1:{listener.getsockname()[1]}", "FP32"))
        with pytest.raises(SilentError, match=r"no answer within 0\.2 s"):
            caller.infer({"IN": np.zeros((1, 2), np.float32)}, binary=True)
        caller.close()


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("make", [TritonGrpcCaller, PlainGrpcCaller])
def test_no_answer_by_grpc_is_told_from_a_refusal(
    make: Any, monkeypatch: pytest.MonkeyPatch, *, is_stream: bool
) -> None:
    monkeypatch.setattr("naiad.verify.grpc_wire.TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        caller = make(replace(target(address, "FP32"), grpc_address=address), is_stream=is_stream)
        with pytest.raises(SilentError, match=r"no answer within 0\.2 s"):
            caller.infer({"IN": np.zeros((1, 2), np.float32)})
        caller.close()
