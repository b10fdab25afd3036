"""Calls, streams, cancellations and lost connections at once: nothing sticks, nothing is lost."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from grpc import aio
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as pb_grpc

from naiad.verify.server_process import ServerProcess

pytestmark = pytest.mark.slow

WORKERS = 12
CONFIG = """
name: "echo"
backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
dynamic_batching { }
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "execute_delay_ms" value { string_value: "2" } }
"""


def request(size: int, request_id: str) -> pb.ModelInferRequest:
    data = np.arange(size, dtype=np.float32)
    return pb.ModelInferRequest(
        model_name="echo",
        id=request_id,
        inputs=[
            pb.ModelInferRequest.InferInputTensor(name="INPUT0", datatype="FP32", shape=[1, size])
        ],
        raw_input_contents=[data.tobytes()],
    )


class Load:
    """Workers that do at random what clients do, and count what came of it."""

    def __init__(self, address: str, seed: int) -> None:
        self.address = address
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()

    async def work(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            async with aio.insecure_channel(self.address) as channel:
                stub = pb_grpc.GRPCInferenceServiceStub(channel)
                for _ in range(self.random.randint(1, 60)):
                    await self.one(stub)
                if self.random.random() < 0.3:
                    # Calls that lose their connection.
                    lost = [stub.ModelInfer(self.message()) for _ in range(3)]
                    await asyncio.sleep(self.random.random() * 0.003)
                    await channel.close(None)
                    await asyncio.gather(*map(self.outcome, lost))

    async def one(self, stub: pb_grpc.GRPCInferenceServiceStub) -> None:
        kind = self.random.random()
        if kind < 0.6:
            await self.outcome(stub.ModelInfer(self.message()))
        elif kind < 0.75:
            call = stub.ModelInfer(self.message())
            await asyncio.sleep(self.random.random() * 0.005)
            call.cancel()
            await self.outcome(call)
        elif kind < 0.85:
            await self.outcome(stub.ModelInfer(self.message(), timeout=0.003))
        else:
            await self.stream(stub)

    def message(self) -> pb.ModelInferRequest:
        self.counts["sent"] += 1
        size = self.random.choice([1, 10, 1000, 60_000])
        return request(size, str(self.counts["sent"]))

    async def outcome(self, call: aio.UnaryUnaryCall) -> None:
        try:
            await call
        except (aio.AioRpcError, asyncio.CancelledError):
            self.counts["failed"] += 1
        else:
            self.counts["answered"] += 1

    async def stream(self, stub: pb_grpc.GRPCInferenceServiceStub) -> None:
        stream = stub.ModelStreamInfer()
        count = self.random.randint(1, 8)
        for _ in range(count):
            await stream.write(self.message())
        if self.random.random() < 0.4:
            stream.cancel()
            self.counts["failed"] += count
            return
        await stream.done_writing()
        async for response in stream:
            assert response.error_message == ""
            self.counts["answered"] += 1
            count -= 1
        assert count == 0


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


async def drive(address: str, seed: int, seconds: float) -> Counter[str]:
    load = Load(address, seed)
    until = asyncio.get_running_loop().time() + seconds
    await asyncio.gather(*(load.work(until) for _ in range(WORKERS)))
    return load.counts


@pytest.mark.parametrize(
    "seconds",
    [6, pytest.param(600, marks=[pytest.mark.full, pytest.mark.timeout(800)])],
)
async def test_mixed_load(tmp_path: Path, seconds: float) -> None:
    (tmp_path / "echo" / "1").mkdir(parents=True)
    (tmp_path / "echo" / "config.pbtxt").write_text(CONFIG)
    with ServerProcess(tmp_path) as server:
        counts = await drive(server.grpc_address, 1, seconds / 2)
        before = resident_bytes(server.pid)
        counts += await drive(server.grpc_address, 2, seconds / 2)
        after = resident_bytes(server.pid)
        async with aio.insecure_channel(server.grpc_address) as channel:
            stub = pb_grpc.GRPCInferenceServiceStub(channel)
            # Behind everything that may still wait.
            await stub.ModelInfer(request(1, "last"), timeout=60)
            statistics = (
                await stub.ModelStatistics(pb.ModelStatisticsRequest(name="echo"))
            ).model_stats[0]
        assert counts["answered"] + counts["failed"] == counts["sent"]
        assert counts["failed"] > 0
        success = statistics.inference_stats.success.count
        failed = statistics.inference_stats.fail.count
        # Some answers were made and not heard; some requests never arrived.
        assert counts["answered"] + 1 <= success
        assert success + failed <= counts["sent"] + 1
        assert statistics.inference_count == success
        assert sum(batch.compute_infer.count for batch in statistics.batch_stats) == (
            statistics.execution_count
        )
        assert after - before < 32 << 20
