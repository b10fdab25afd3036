"""Server reflection, so that tools such as grpcurl know the services and their messages."""

from typing import TYPE_CHECKING, Final

from google.protobuf.descriptor import FileDescriptor

from naiad.errors import NaiadError
from naiad.frontends.grpc.messages import parse
from naiad.frontends.grpc.methods import Method
from naiad.frontends.grpc.status import StatusCode
from naiad.protocol.pb.descriptors import POOL
from naiad.protocol.pb.reflection import (
    ErrorResponse,
    ExtensionNumberResponse,
    FileDescriptorResponse,
    ListServiceResponse,
    ServerReflectionRequest,
    ServerReflectionResponse,
    ServiceResponse,
)

if TYPE_CHECKING:
    from naiad.frontends.grpc.call import Call

SERVICES: Final = (
    "inference.GRPCInferenceService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
)


class ReflectionHandlers:
    """Answers from the descriptors; both versions of the service have the same messages."""

    def methods(self) -> list[Method]:
        """The methods of this noun."""
        return [
            Method(
                f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                None,
                stream=Reflection,
            )
            for version in ("v1", "v1alpha")
        ]


class Reflection:
    """One call; each request has one response."""

    def __init__(self, call: "Call") -> None:
        self._call = call

    @property
    def is_idle(self) -> bool:
        """Every question is answered at once."""
        return True

    def on_message(self, data: bytes | memoryview, start: int) -> None:
        """Answer a question."""
        try:
            request = parse(ServerReflectionRequest, data, start)
        except NaiadError as error:
            self._call.fail_with(error)
            return
        response = answer(request).SerializeToString()
        self._call.release(len(data) - start)
        self._call.send((response,), len(response))
        if self._call.is_congested:
            self._call.hold()

    def on_half_close(self) -> None:
        """That was all."""
        self._call.finish()

    def on_writable(self) -> None:
        """Read on, if that waited for the client."""
        if self._call.is_held:
            self._call.resume()


def answer(request: ServerReflectionRequest) -> ServerReflectionResponse:
    """The response to one question."""
    response = ServerReflectionResponse(valid_host=request.host, original_request=request)
    kind = request.WhichOneof("message_request")
    try:
        if kind == "list_services":
            services = [ServiceResponse(name=name) for name in SERVICES]
            response.list_services_response.CopyFrom(ListServiceResponse(service=services))
        elif kind == "file_by_filename":
            _set_file(response, POOL.FindFileByName(request.file_by_filename))
        elif kind == "file_containing_symbol":
            _set_file(response, POOL.FindFileContainingSymbol(request.file_containing_symbol))
        elif kind == "all_extension_numbers_of_type":
            name = POOL.FindMessageTypeByName(request.all_extension_numbers_of_type).full_name
            response.all_extension_numbers_response.CopyFrom(
                ExtensionNumberResponse(base_type_name=name)
            )
        else:  # there are no extensions in proto3
            _set_error(response, StatusCode.NOT_FOUND, "no such extension")
    except KeyError as error:
        _set_error(response, StatusCode.NOT_FOUND, str(error.args[0]))
    return response


def _set_file(response: ServerReflectionResponse, file: FileDescriptor) -> None:
    files: dict[str, bytes] = {}
    _collect(file, files)
    response.file_descriptor_response.CopyFrom(
        FileDescriptorResponse(file_descriptor_proto=files.values())
    )


def _collect(file: FileDescriptor, files: dict[str, bytes]) -> None:
    """Add ``file`` and everything that it imports."""
    if file.name not in files:
        files[file.name] = file.serialized_pb
        for dependency in file.dependencies:
            _collect(dependency, files)


def _set_error(response: ServerReflectionResponse, code: StatusCode, message: str) -> None:
    response.error_response.CopyFrom(ErrorResponse(error_code=code, error_message=message))
