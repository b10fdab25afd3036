"""The gRPC server against gRPC's own client, on a real loop and real sockets."""

import asyncio
import logging
import re
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.support.fake_engine import FakeEngine, identity_model
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as pb_grpc

from naiad.access.restricted_apis import Api, RestrictedApis, RestrictedGroup
from naiad.errors import InvalidArgumentError
from naiad.frontends.byte_budget import ByteBudget
from naiad.frontends.grpc.options import GrpcOptions
from naiad.frontends.grpc.server import GrpcServer
from naiad.inference.response import InferResponse

UNLIMITED = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
)
Start = Callable[..., Awaitable[tuple[GrpcServer, Any]]]


def engine() -> FakeEngine:
    return FakeEngine(identity_model(), identity_model("BYTES"), identity_model("INT32"))


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts servers on engines, and connects stubs to them."""
    servers: list[GrpcServer] = []
    channels: list[aio.Channel] = []

    async def start_one(fake: FakeEngine, **options: Any) -> tuple[GrpcServer, Any]:
        budget = ByteBudget(options.pop("budget_bytes", 1 << 30))
        server = GrpcServer(
            fake, GrpcOptions(**{"address": "127.0.0.1", "port": 0, **options}), budget
        )
        await server.start()
        servers.append(server)
        target = (
            server.address if server.address.startswith("unix:") else f"127.0.0.1:{server.port}"
        )
        channel = aio.insecure_channel(target, UNLIMITED)
        channels.append(channel)
        return server, pb_grpc.GRPCInferenceServiceStub(channel)

    yield start_one
    for channel in channels:
        await channel.close()
    for server in servers:
        server.close()


def request(values: Any, request_id: str = "", model: str = "id_fp32") -> pb.ModelInferRequest:
    data = np.asarray(values, np.float32).reshape(1, -1)
    return pb.ModelInferRequest(
        model_name=model,
        id=request_id,
        inputs=[
            pb.ModelInferRequest.InferInputTensor(name="IN", datatype="FP32", shape=data.shape)
        ],
        raw_input_contents=[data.tobytes()],
    )


def values(response: pb.ModelInferResponse) -> list[float]:
    return [float(v) for v in np.frombuffer(response.raw_output_contents[0], np.float32)]


async def failure(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


# --- unary ---------------------------------------------------------------------------------------


async def test_empty_unary(start: Start) -> None:
    _, stub = await start(engine())
    assert (await stub.ServerLive(pb.ServerLiveRequest())).live is True
    assert (await stub.ServerReady(pb.ServerReadyRequest())).ready is True


async def test_infer(start: Start) -> None:
    _, stub = await start(engine())
    response = await stub.ModelInfer(request([1, 2, 3], "abc"))
    assert (response.model_name, response.model_version, response.id) == ("id_fp32", "1", "abc")
    assert [(o.name, o.datatype, list(o.shape)) for o in response.outputs] == [
        ("OUT", "FP32", [1, 3])
    ]
    assert values(response) == [1, 2, 3]


@pytest.mark.slow
async def test_large_unary(start: Start) -> None:
    """32 MiB in both directions, more than any window."""
    _, stub = await start(engine())
    sent = np.arange(8 << 20, dtype=np.float32)
    response = await stub.ModelInfer(request(sent))
    assert response.raw_output_contents[0] == sent.tobytes()


@pytest.mark.slow
async def test_many_large_calls_at_once(start: Start) -> None:
    _, stub = await start(engine())
    sent = [np.full(1 << 20, float(n), np.float32) for n in range(8)]
    responses = await asyncio.gather(*(stub.ModelInfer(request(array)) for array in sent))
    for array, response in zip(sent, responses, strict=True):
        assert response.raw_output_contents[0] == array.tobytes()


async def test_status_code_and_message_with_special_characters(start: Start) -> None:
    fake = engine()
    text = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈 and 100%\t\n"
    fake.refusal = InvalidArgumentError(text)
    _, stub = await start(fake)
    assert await failure(stub.ModelInfer(request([1]))) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        text,
    )


async def test_error_of_the_model(start: Start) -> None:
    fake = engine()
    fake.failure = InvalidArgumentError("the model does not like it")
    _, stub = await start(fake)
    assert await failure(stub.ModelInfer(request([1]))) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "the model does not like it",
    )


async def test_bytes_that_are_no_message(start: Start) -> None:
    server, _ = await start(engine())
    async with aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        assert await failure(call(b"\xff\xff\xff")) == (
            grpc.StatusCode.INTERNAL,
            "Unable to parse request",
        )


@pytest.mark.parametrize("path", ["/inference.GRPCInferenceService/Nope", "/no.Service/Nope"])
async def test_unimplemented_method_and_service(start: Start, path: str) -> None:
    server, _ = await start(engine())
    async with aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        code, message = await failure(channel.unary_unary(path)(b""))
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert path in message


# --- deadlines and cancellation ------------------------------------------------------------------


async def test_deadline_on_a_sleeping_server(start: Start) -> None:
    fake = engine()
    fake.holds = True
    _, stub = await start(fake)
    for timeout in (0.1, 1, 10):
        code, _ = await failure(stub.ModelInfer(request([1]), timeout=timeout))
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        if fake.requests:  # or its time was over on the way to the server
            break
    await asyncio.wait_for(fake.cancel_seen.wait(), 60)
    assert fake.cancelled == fake.requests


async def test_cancel_after_begin(start: Start) -> None:
    fake = engine()
    fake.holds = True
    _, stub = await start(fake)
    call = stub.ModelInfer(request([1]))
    await asyncio.wait_for(asyncio.wait({asyncio.ensure_future(fake.arrived.wait())}), 60)
    call.cancel()
    await asyncio.wait_for(fake.cancel_seen.wait(), 60)
    assert fake.cancelled == fake.requests
    fake.holds = False
    assert values(await stub.ModelInfer(request([2]))) == [2]


async def test_cancel_of_a_stream_after_its_first_response(start: Start) -> None:
    fake = engine()
    _, stub = await start(fake)
    stream = stub.ModelStreamInfer()
    await stream.write(request([1], "first"))
    assert (await stream.read()).infer_response.id == "first"
    fake.holds = True
    fake.arrived.clear()
    await stream.write(request([2], "second"))
    await asyncio.wait_for(fake.arrived.wait(), 60)
    stream.cancel()
    await asyncio.wait_for(fake.cancel_seen.wait(), 60)
    assert [r.request_id for r in fake.cancelled] == ["second"]


async def test_disconnect_cancels(start: Start) -> None:
    fake = engine()
    fake.holds = True
    server, _ = await start(fake)
    channel = aio.insecure_channel(f"127.0.0.1:{server.port}")
    call = pb_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request([1]))
    waiting = asyncio.ensure_future(failure(call))
    await asyncio.wait_for(fake.arrived.wait(), 60)
    await channel.close(None)
    await asyncio.wait_for(fake.cancel_seen.wait(), 60)
    await asyncio.wait({waiting})
    assert fake.cancelled == fake.requests


# --- streams -------------------------------------------------------------------------------------


async def test_ping_pong(start: Start) -> None:
    _, stub = await start(engine())
    stream = stub.ModelStreamInfer()
    for size in (31415, 9, 2653, 58979):
        sent = np.arange(size, dtype=np.float32)
        await stream.write(request(sent, str(size)))
        response = await stream.read()
        assert response.error_message == ""
        assert response.infer_response.id == str(size)
        assert response.infer_response.parameters["triton_final_response"].bool_param is True
        assert response.infer_response.raw_output_contents[0] == sent.tobytes()
    await stream.done_writing()
    assert await stream.read() is aio.EOF
    assert await stream.code() is grpc.StatusCode.OK


async def test_empty_stream(start: Start) -> None:
    _, stub = await start(engine())
    stream = stub.ModelStreamInfer()
    await stream.done_writing()
    assert await stream.read() is aio.EOF
    assert await stream.code() is grpc.StatusCode.OK


async def test_errors_leave_a_stream_open_and_keep_the_order(start: Start) -> None:
    fake = engine()
    fake.holds = True
    _, stub = await start(fake)
    stream = stub.ModelStreamInfer()
    await stream.write(request([1], "a"))
    await asyncio.wait_for(fake.arrived.wait(), 60)
    await stream.write(request([2], "b", model="nope"))
    fake.arrived.clear()
    await stream.write(request([3], "c"))
    await asyncio.wait_for(fake.arrived.wait(), 60)
    await stream.done_writing()
    fake.release()
    responses = [response async for response in stream]
    assert [r.infer_response.id for r in responses] == ["a", "b", "c"]
    assert [r.error_message for r in responses] == [
        "",
        "Request for unknown model: 'nope' is not found",
        "",
    ]
    assert responses[1].infer_response == pb.ModelInferResponse(id="b")
    assert await stream.code() is grpc.StatusCode.OK


async def test_responses_come_in_the_order_of_the_requests(start: Start) -> None:
    fake = engine()
    fake.holds = True
    _, stub = await start(fake)
    stream = stub.ModelStreamInfer()
    for name in "abc":
        fake.arrived.clear()
        await stream.write(request([1], name))
        await asyncio.wait_for(fake.arrived.wait(), 60)
    fake.held.reverse()
    fake.release()
    await stream.done_writing()
    assert [r.infer_response.id async for r in stream] == ["a", "b", "c"]


async def test_model_error_in_a_stream(start: Start) -> None:
    fake = engine()
    fake.failure = InvalidArgumentError("no")
    _, stub = await start(fake)
    stream = stub.ModelStreamInfer()
    await stream.write(request([1], "a"))
    response = await stream.read()
    assert response.error_message == "no"
    assert (response.infer_response.model_name, response.infer_response.id) == ("id_fp32", "a")
    assert response.infer_response.parameters["triton_final_response"].bool_param is True
    await stream.done_writing()
    assert await stream.code() is grpc.StatusCode.OK


async def test_a_stream_may_ask_for_grpc_errors(start: Start) -> None:
    _, stub = await start(engine())
    stream = stub.ModelStreamInfer(metadata=(("triton_grpc_error", "true"),))
    await stream.write(request([1], "a", model="nope"))
    assert await stream.code() is grpc.StatusCode.NOT_FOUND
    assert await stream.details() == "Request for unknown model: 'nope' is not found"


async def test_decoupled_responses(start: Start) -> None:
    fake = engine()
    model = fake.models["id_fp32", 1]
    model.signature.is_decoupled = True
    fake.holds = True
    _, stub = await start(fake)
    for wants_final, expected in ((False, [False, False]), (True, [False, False, True])):
        fake.arrived.clear()
        stream = stub.ModelStreamInfer()
        message = request([7], "d")
        if wants_final:
            message.parameters["triton_enable_empty_final_response"].bool_param = True
        await stream.write(message)
        await asyncio.wait_for(fake.arrived.wait(), 60)
        _, held = fake.held.pop()
        for is_final in (False, False, True):
            outputs = [] if is_final else model.compute(held.inputs)
            response = InferResponse("id_fp32", 1, "d", outputs)
            response.is_final = is_final
            held.on_response(response)
        await stream.done_writing()
        finals = [
            r.infer_response.parameters["triton_final_response"].bool_param async for r in stream
        ]
        assert finals == expected


async def test_decoupled_models_need_a_stream(start: Start) -> None:
    fake = engine()
    fake.models["id_fp32", 1].signature.is_decoupled = True
    _, stub = await start(fake)
    assert await failure(stub.ModelInfer(request([1]))) == (
        grpc.StatusCode.UNIMPLEMENTED,
        "ModelInfer RPC doesn't support models with decoupled transaction policy",
    )


@pytest.mark.slow
async def test_a_stream_that_is_not_read_is_not_read_further(start: Start) -> None:
    """Requests wait with the client, not with the server, while it takes no responses."""
    fake = engine()
    _, stub = await start(fake, max_stream_requests=4)
    stream = stub.ModelStreamInfer()
    sent = np.zeros(1 << 18, np.float32)  # 1 MiB
    count = 64

    async def write() -> None:
        for n in range(count):
            await stream.write(request(sent, str(n)))
        await stream.done_writing()

    writing = asyncio.ensure_future(write())
    ids = []
    async for response in stream:
        assert response.error_message == ""
        ids.append(response.infer_response.id)
        assert len(fake.requests) - len(ids) < 32
    await writing
    assert ids == [str(n) for n in range(count)]


def strings(count: int, request_id: str = "") -> pb.ModelInferRequest:
    return pb.ModelInferRequest(
        model_name="id_bytes",
        id=request_id,
        inputs=[
            pb.ModelInferRequest.InferInputTensor(name="IN", datatype="BYTES", shape=[1, count])
        ],
        raw_input_contents=[b"\1\0\0\0a" * count],
    )


@pytest.mark.slow
async def test_many_strings_let_others_through(start: Start) -> None:
    _, stub = await start(engine())
    large = asyncio.ensure_future(_wait(stub.ModelInfer(strings(300_000))))
    answered = 0
    while not large.done():
        await stub.ServerLive(pb.ServerLiveRequest())
        answered += 1
    assert (await large).raw_output_contents[0] == b"\1\0\0\0a" * 300_000
    assert answered > 5
    wrong = strings(300_000)
    wrong.inputs[0].shape[1] += 1
    code, message = await failure(stub.ModelInfer(wrong))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "expected 300001 string elements" in message


@pytest.mark.slow
async def test_many_strings_in_a_stream_keep_the_order(start: Start) -> None:
    fake = engine()
    _, stub = await start(fake)
    stream = stub.ModelStreamInfer()
    counts = [1, 100_000, 2, 50_000, 3]
    for count in counts:
        await stream.write(strings(count, str(count)))
    wrong = strings(100_000, "wrong")
    wrong.inputs[0].shape[1] += 1
    await stream.write(wrong)
    await stream.write(strings(4, "4"))
    await stream.done_writing()
    responses = [r async for r in stream]
    assert [r.infer_response.id for r in responses] == [*map(str, counts), "wrong", "4"]
    assert "expected 100001 string elements" in responses[-2].error_message
    assert [r.request_id for r in fake.requests] == [*map(str, counts), "4"]


@pytest.mark.slow
async def test_a_call_that_is_given_up_is_taken_apart_no_further(start: Start) -> None:
    fake = engine()
    _, stub = await start(fake)
    code, _ = await failure(stub.ModelInfer(strings(1_000_000), timeout=0.05))
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert values(await stub.ModelInfer(request([1]))) == [1]


# --- metadata, compression, limits ---------------------------------------------------------------


async def test_headers_of_the_client_become_parameters(start: Start) -> None:
    fake = engine()
    _, stub = await start(fake, header_forward_pattern=re.compile("(?i)^my[-_].*"))
    metadata = (("my-header", "a"), ("my_other", "b"), ("your-header", "c"), ("my-x-bin", b"\0"))
    await stub.ModelInfer(request([1]), metadata=metadata)
    assert fake.requests[0].parameters == {"my-header": "a", "my_other": "b"}


async def test_reserved_headers_are_not_forwarded(start: Start) -> None:
    _, stub = await start(engine(), header_forward_pattern=re.compile(".*"))
    assert await failure(stub.ModelInfer(request([1]), metadata=(("priority", "1"),))) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "Header 'priority' is reserved for Triton usage and cannot be forwarded.",
    )


async def test_restricted_methods(start: Start) -> None:
    _, stub = await start(
        engine(),
        restrictions=RestrictedApis([RestrictedGroup((Api.METADATA,), "Admin-Key", "sesame")]),
    )
    code, message = await failure(stub.ServerMetadata(pb.ServerMetadataRequest()))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert message == (
        "This protocol is restricted, expecting header 'triton-grpc-protocol-admin-key'"
    )
    metadata = (("triton-grpc-protocol-admin-key", "sesame"),)
    response = await stub.ServerMetadata(pb.ServerMetadataRequest(), metadata=metadata)
    assert response.name == "triton"
    assert (await stub.ServerLive(pb.ServerLiveRequest())).live


@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
@pytest.mark.parametrize("size", [10, 100_000])
async def test_compressed_messages(start: Start, algorithm: grpc.Compression, size: int) -> None:
    _, stub = await start(engine(), compression_level=6)
    sent = np.zeros(size, np.float32)
    response = await stub.ModelInfer(request(sent), compression=algorithm)
    assert response.raw_output_contents[0] == sent.tobytes()


async def test_compressed_stream(start: Start) -> None:
    _, stub = await start(engine(), compression_level=1)
    stream = stub.ModelStreamInfer(compression=grpc.Compression.Gzip)
    sizes = [5, 100_000, 5, 100_000, 7]
    for size in sizes:
        await stream.write(request(np.zeros(size, np.float32), str(size)))
    await stream.done_writing()
    responses = [r async for r in stream]
    assert [len(r.infer_response.raw_output_contents[0]) // 4 for r in responses] == sizes


async def test_messages_larger_than_the_limit(start: Start) -> None:
    _, stub = await start(engine(), max_receive_message_bytes=1000)
    assert values(await stub.ModelInfer(request([1]))) == [1]
    code, message = await failure(stub.ModelInfer(request(np.zeros(1000))))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "--grpc-max-receive-message-size" in message
    # What is small and unpacks to much is refused as well.
    code, message = await failure(
        stub.ModelInfer(request(np.zeros(10_000)), compression=grpc.Compression.Gzip)
    )
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "--grpc-max-receive-message-size" in message


async def test_responses_larger_than_the_limit(start: Start) -> None:
    _, stub = await start(engine(), max_send_message_bytes=1000)
    code, message = await failure(stub.ModelInfer(request(np.zeros(1000))))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert message.startswith("Response has byte size")
    assert "--grpc-max-send-message-size" in message


async def test_requests_beyond_the_budget(start: Start) -> None:
    _, stub = await start(engine(), budget_bytes=100_000)
    code, message = await failure(stub.ModelInfer(request(np.zeros(100_000))))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "100000 bytes" in message
    for _ in range(50):
        assert values(await stub.ModelInfer(request([1]))) == [1]


def short_texts(*, is_raw: bool) -> pb.ModelInferRequest:
    """30,000 elements of BYTES in 180 or 120 KB; as Python objects they are 1.3 MB."""
    elements = [b"ab"] * 30_000
    tensor = pb.ModelInferRequest.InferInputTensor(
        name="IN", datatype="BYTES", shape=[1, len(elements)]
    )
    if not is_raw:
        tensor.contents.bytes_contents.extend(elements)
        return pb.ModelInferRequest(model_name="id_bytes", inputs=[tensor])
    raw = b"".join(len(element).to_bytes(4, "little") + element for element in elements)
    return pb.ModelInferRequest(model_name="id_bytes", inputs=[tensor], raw_input_contents=[raw])


@pytest.mark.parametrize("is_raw", [True, False])
async def test_the_budget_counts_the_elements_of_bytes(start: Start, *, is_raw: bool) -> None:
    asked = short_texts(is_raw=is_raw)
    _, stub = await start(engine(), budget_bytes=1_000_000)
    for call in (stub.ModelInfer(asked), stub.ModelStreamInfer(iter([asked])).read()):
        code, message = await failure(call)
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "1000000 bytes" in message
    _, stub = await start(engine(), budget_bytes=2_000_000)
    for _ in range(3):
        assert len((await stub.ModelInfer(asked)).raw_output_contents[0]) == 180_000
        stream = stub.ModelStreamInfer()
        for _ in range(2):
            await stream.write(asked)
            answer = await stream.read()
            assert len(answer.infer_response.raw_output_contents[0]) == 180_000
        await stream.done_writing()
        assert await stream.read() is aio.EOF


# --- addresses, shutdown -------------------------------------------------------------------------


async def test_unix_socket(start: Start, tmp_path: Path) -> None:
    _, stub = await start(engine(), address=f"unix:{tmp_path / 'grpc.sock'}")
    assert values(await stub.ModelInfer(request([5]))) == [5]


async def test_drain_lets_calls_end(start: Start) -> None:
    fake = engine()
    fake.holds = True
    server, stub = await start(fake)
    call = asyncio.ensure_future(_wait(stub.ModelInfer(request([1]))))
    await asyncio.wait_for(fake.arrived.wait(), 60)
    draining = asyncio.ensure_future(server.drain(60))
    await asyncio.sleep(0)
    fake.release()
    assert values(await call) == [1]
    assert await draining is True


async def test_drain_gives_up(start: Start) -> None:
    fake = engine()
    fake.holds = True
    server, stub = await start(fake)
    call = asyncio.ensure_future(failure(stub.ModelInfer(request([1]))))
    await asyncio.wait_for(fake.arrived.wait(), 60)
    assert await server.drain(0.05) is False
    server.close()
    assert (await call)[0] is grpc.StatusCode.UNAVAILABLE


async def _wait(call: Any) -> Any:
    return await call


# --- the other services --------------------------------------------------------------------------


async def test_health_check_and_watch(start: Start) -> None:
    fake = engine()
    server, _ = await start(fake)
    async with aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        statuses = health_pb2.HealthCheckResponse
        check = health_pb2.HealthCheckRequest(service="anything")
        assert (await stub.Check(check)).status == statuses.SERVING
        watch = stub.Watch(check)
        assert (await watch.read()).status == statuses.SERVING
        fake.ready = False
        assert (await watch.read()).status == statuses.NOT_SERVING
        assert (await stub.Check(check)).status == statuses.NOT_SERVING
        watch.cancel()


async def test_reflection(start: Start) -> None:
    server, _ = await start(engine())
    async with aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        stream = stub.ServerReflectionInfo()
        ask = reflection_pb2.ServerReflectionRequest
        await stream.write(ask(list_services=""))
        listed = (await stream.read()).list_services_response.service
        assert {s.name for s in listed} >= {
            "inference.GRPCInferenceService",
            "grpc.health.v1.Health",
        }
        await stream.write(ask(file_containing_symbol="inference.GRPCInferenceService"))
        files = (await stream.read()).file_descriptor_response.file_descriptor_proto
        assert len(files) == 2
        await stream.write(ask(file_by_filename="nope.proto"))
        assert (await stream.read()).error_response.error_code == 5
        await stream.done_writing()
        assert await stream.code() is grpc.StatusCode.OK


async def test_repository(start: Start) -> None:
    fake = engine()
    _, stub = await start(fake)
    index = await stub.RepositoryIndex(pb.RepositoryIndexRequest())
    assert [m.name for m in index.models] == ["id_fp32", "id_bytes", "id_int32", "sleeping"]
    load = pb.RepositoryModelLoadRequest(model_name="m")
    load.parameters["config"].string_param = "{}"
    load.parameters["file:1/a"].bytes_param = b"x"
    load.parameters["file:1/b"].bytes_param = bytes(300_000)
    await stub.RepositoryModelLoad(load)
    assert fake.loads == [("m", "{}", {"1/a": b"x", "1/b": bytes(300_000)})]
    unload = pb.RepositoryModelUnloadRequest(model_name="m")
    unload.parameters["unload_dependents"].bool_param = True
    await stub.RepositoryModelUnload(unload)
    assert fake.unloads == [("m", True)]
    load.repository_name = "r"
    assert await failure(stub.RepositoryModelLoad(load)) == (
        grpc.StatusCode.UNIMPLEMENTED,
        "'repository_name' specification is not supported",
    )


async def test_metadata_config_statistics(start: Start) -> None:
    fake = engine()
    fake.models["id_fp32", 1].statistics.inference_count = 3
    _, stub = await start(fake)
    metadata = await stub.ModelMetadata(pb.ModelMetadataRequest(name="id_fp32"))
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.inputs] == [
        ("IN", "FP32", [-1, -1])
    ]
    config = (await stub.ModelConfig(pb.ModelConfigRequest(name="id_fp32"))).config
    assert (config.name, config.max_batch_size) == ("id_fp32", 8)
    statistics = await stub.ModelStatistics(pb.ModelStatisticsRequest(name="id_fp32"))
    assert statistics.model_stats[0].inference_count == 3
    code, message = await failure(
        stub.ModelReady(pb.ModelReadyRequest(name="id_fp32", version="abc"))
    )
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "'abc'" in message


# --- what is no gRPC -----------------------------------------------------------------------------


async def raw_answer(server: GrpcServer, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(data)
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return answer


@pytest.mark.parametrize("line", ["GET /v2/health/ready", "POST /v2/models/m/infer", "HEAD /"])
async def test_http_1_is_answered_with_the_right_port(
    start: Start, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    server, _ = await start(engine(), http_port=8123)
    with caplog.at_level(logging.INFO, "naiad.frontends.grpc"):
        data = await raw_answer(server, f"{line} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, text = data.partition(b"\r\n\r\n")
    assert head.splitlines()[0] == b"HTTP/1.1 400 Bad Request"
    assert f"Content-Length: {len(text)}".encode() in head.splitlines()
    assert text == b"This port speaks gRPC, which is HTTP/2; HTTP is at port 8123.\n"
    assert caplog.messages == [
        "connection ended: an HTTP/1 request came to the gRPC port; HTTP is at port 8123"
    ]


async def test_http_1_is_answered_where_no_port_speaks_it(start: Start) -> None:
    server, _ = await start(engine())
    data = await raw_answer(server, b"GET / HTTP/1.0\r\n\r\n")
    assert data.endswith(b"This port speaks gRPC, which is HTTP/2.\n")


async def test_bytes_of_no_protocol_are_refused_by_http_2(start: Start) -> None:
    server, _ = await start(engine())
    data = await raw_answer(server, b"\x16\x03\x01 no preface")
    # GOAWAY with PROTOCOL_ERROR.
    assert data.endswith(struct.pack(">LL", 0, 1))
