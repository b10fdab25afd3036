"""The shared memory extensions."""

from typing import Any

from naiad.access.restricted_apis import Api
from naiad.frontends.grpc.infer import SERVICE
from naiad.frontends.grpc.messages import answered_by
from naiad.frontends.grpc.methods import Method
from naiad.frontends.serving import ServingEngine
from naiad.protocol.pb import grpc_service as pb
from naiad.protocol.v2_proto_settings import encode_system_status


class SharedMemoryHandlers:
    """Registers, shows and forgets regions; without a name, all of them."""

    def __init__(self, engine: ServingEngine[Any]) -> None:
        self._regions = engine.shared_memory

    def methods(self) -> list[Method]:
        """The methods of this noun."""
        handlers = {
            "SystemSharedMemoryStatus": answered_by(
                pb.SystemSharedMemoryStatusRequest, self._system_status
            ),
            "SystemSharedMemoryRegister": answered_by(
                pb.SystemSharedMemoryRegisterRequest, self._register_system
            ),
            "SystemSharedMemoryUnregister": answered_by(
                pb.SystemSharedMemoryUnregisterRequest, self._unregister_system
            ),
            "CudaSharedMemoryStatus": answered_by(
                pb.CudaSharedMemoryStatusRequest, self._cuda_status
            ),
            "CudaSharedMemoryRegister": answered_by(
                pb.CudaSharedMemoryRegisterRequest, self._register_cuda
            ),
            "CudaSharedMemoryUnregister": answered_by(
                pb.CudaSharedMemoryUnregisterRequest, self._unregister_cuda
            ),
        }
        return [
            Method(f"{SERVICE}{name}", Api.SHARED_MEMORY, unary=handler)
            for name, handler in handlers.items()
        ]

    def _system_status(
        self, request: pb.SystemSharedMemoryStatusRequest
    ) -> pb.SystemSharedMemoryStatusResponse:
        return encode_system_status(self._regions.system_status(request.name))

    def _register_system(
        self, request: pb.SystemSharedMemoryRegisterRequest
    ) -> pb.SystemSharedMemoryRegisterResponse:
        self._regions.register_system(request.name, request.key, request.offset, request.byte_size)
        return pb.SystemSharedMemoryRegisterResponse()

    def _unregister_system(
        self, request: pb.SystemSharedMemoryUnregisterRequest
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        self._regions.unregister_system(request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    def _cuda_status(
        self, request: pb.CudaSharedMemoryStatusRequest
    ) -> pb.CudaSharedMemoryStatusResponse:
        self._regions.cuda_status(request.name)  # there are none; a name is an error
        return pb.CudaSharedMemoryStatusResponse()

    def _register_cuda(
        self, request: pb.CudaSharedMemoryRegisterRequest
    ) -> pb.CudaSharedMemoryRegisterResponse:
        self._regions.register_cuda(request.name)
        return pb.CudaSharedMemoryRegisterResponse()

    def _unregister_cuda(
        self, request: pb.CudaSharedMemoryUnregisterRequest
    ) -> pb.CudaSharedMemoryUnregisterResponse:
        self._regions.unregister_cuda(request.name)
        return pb.CudaSharedMemoryUnregisterResponse()
