"""Large tensors over gRPC: 602 KB in and out, beside a grpcio asyncio server that echoes the same.

    python benchmarks/grpc_bulk_tensors.py [--json FILE]

One blocking grpcio client, one call at a time; both servers in the same run, in turns. Figures of
different machines don't compare; the ratio inside one run does.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from conditions import conditions
from grpc_small_requests import METHOD, peer_server
from make_models import IMAGE_SHAPE, write_repository

from naiad.protocol.pb.grpc_service import ModelInferRequest, ModelInferResponse
from naiad.verify.server_process import ServerProcess

ROUNDS = 5
# Our time over the peer's; the run fails beyond it.
MAX_RATIO = 0.6
UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
CONFIG = """\
name: "echo"
backend: "identity"
max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""


def infer_request(elements: int) -> ModelInferRequest:
    """One image's worth of zeros."""
    data = np.zeros((1, elements), np.float32)
    entry = ModelInferRequest.InferInputTensor(name="INPUT", datatype="FP32", shape=data.shape)
    return ModelInferRequest(model_name="echo", inputs=[entry], raw_input_contents=[data.tobytes()])


def measure(address: str, request: ModelInferRequest, calls: int) -> float:
    """Milliseconds a call, the median of many."""
    with grpc.insecure_channel(address, UNLIMITED) as channel:
        call = channel.unary_unary(
            METHOD, ModelInferRequest.SerializeToString, ModelInferResponse.FromString
        )
        for _ in range(20):
            response = call(request)
        assert response.raw_output_contents[0] == request.raw_input_contents[0]
        times_ms = []
        for _ in range(calls):
            start_s = time.perf_counter()
            call(request)
            times_ms.append((time.perf_counter() - start_s) * 1e3)
    return statistics.median(times_ms)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=200, help="in each of the rounds")
    parser.add_argument("--json", type=Path, help="write figures and conditions to this file")
    options = parser.parse_args()
    request = infer_request(int(np.prod(IMAGE_SHAPE)))
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "models"
        write_repository(repository)
        (repository / "echo" / "1").mkdir(parents=True)
        (repository / "echo" / "config.pbtxt").write_text(CONFIG)
        model = repository / "mlp" / "1" / "model.onnx"
        with ServerProcess(repository) as server, peer_server(model) as (peer, _):
            rounds = [
                (
                    measure(server.grpc_address, request, options.calls),
                    measure(peer, request, options.calls),
                )
                for _ in range(ROUNDS)
            ]
    ours_ms = statistics.median(ours for ours, _ in rounds)
    theirs_ms = statistics.median(theirs for _, theirs in rounds)
    ratio = ours_ms / theirs_ms
    print(f"602 KB in and out: {ours_ms:.2f} ms a call, grpcio asyncio {theirs_ms:.2f} ms: "
          f"ratio {ratio:.2f}")  # fmt: skip
    if options.json:
        results: dict[str, Any] = {"benchmark": "grpc_bulk_tensors", **conditions(),
                                   "ours_ms": ours_ms, "grpcio_aio_ms": theirs_ms}  # fmt: skip
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0 if ratio <= MAX_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
