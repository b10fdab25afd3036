"""A gRPC server of grpcio's asyncio half that does what ours does, for comparison.

    python benchmarks/grpc_aio_peer.py MODEL

serves ``ModelInfer`` on a free port, which it prints. ``mlp`` runs the ONNX file that is given;
anything else is echoed.
"""

import asyncio
import sys

import grpc
import numpy as np
import onnxruntime
import uvloop
from tritonclient.grpc import service_pb2, service_pb2_grpc

_UNLIMITED = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)


class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Answers one method, as a service author would write it."""

    def __init__(self, model: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )

    async def ModelInfer(  # noqa: N802 - the protocol's name
        self, request: service_pb2.ModelInferRequest, context: grpc.aio.ServicerContext
    ) -> service_pb2.ModelInferResponse:
        """Run the model, or echo."""
        entry = request.inputs[0]
        data = np.frombuffer(request.raw_input_contents[0], np.float32).reshape(entry.shape)
        if request.model_name == "mlp":
            (data,) = self._session.run(None, {"INPUT": data})
        response = service_pb2.ModelInferResponse(
            model_name=request.model_name, model_version="1", id=request.id
        )
        response.outputs.add(name="OUTPUT", datatype="FP32", shape=data.shape)
        response.raw_output_contents.append(data.tobytes())
        return response


async def main() -> None:
    server = grpc.aio.server(options=_UNLIMITED)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Servicer(sys.argv[1]), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(main())
