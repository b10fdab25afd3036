"""The command stops in order while gRPC calls are under way."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from grpc import aio
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as pb_grpc

from naiad.verify.server_process import ServerProcess

pytestmark = pytest.mark.slow

CONFIG = """
name: "slow"
backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "execute_delay_ms" value { string_value: "700" } }
"""


async def test_a_signal_lets_calls_end(tmp_path: Path) -> None:
    (tmp_path / "slow" / "1").mkdir(parents=True)
    (tmp_path / "slow" / "config.pbtxt").write_text(CONFIG)
    request = pb.ModelInferRequest(
        model_name="slow",
        inputs=[
            pb.ModelInferRequest.InferInputTensor(name="INPUT0", datatype="FP32", shape=[1, 1])
        ],
        raw_input_contents=[np.float32(5).tobytes()],
    )
    with ServerProcess(tmp_path) as server:
        async with aio.insecure_channel(server.grpc_address) as channel:
            stub = pb_grpc.GRPCInferenceServiceStub(channel)
            call = stub.ModelInfer(request)
            stream = stub.ModelStreamInfer()
            await stream.write(request)
            await stream.done_writing()
            # The first is under way when this is answered, for it came before on the connection.
            await stub.ServerLive(pb.ServerLiveRequest())
            stopping = asyncio.ensure_future(asyncio.to_thread(server.stop))
            assert (await call).raw_output_contents[0] == np.float32(5).tobytes()
            response = await stream.read()
            assert response.error_message == ""
            assert response.infer_response.outputs[0].name == "OUTPUT0"
            assert await stopping == 0
