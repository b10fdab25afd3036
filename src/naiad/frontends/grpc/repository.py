"""The model repository: index, load, unload."""

from collections.abc import Mapping
from typing import Any

from naiad.access.restricted_apis import Api
from naiad.errors import UnsupportedError
from naiad.frontends.grpc.infer import SERVICE
from naiad.frontends.grpc.messages import Tasks
from naiad.frontends.grpc.methods import Method
from naiad.frontends.serving import ServingEngine
from naiad.protocol.load_message import read_load_request
from naiad.protocol.pb.grpc_service import (
    RepositoryIndexRequest,
    RepositoryIndexResponse,
    RepositoryModelLoadRequest,
    RepositoryModelLoadResponse,
    RepositoryModelUnloadRequest,
    RepositoryModelUnloadResponse,
)
from naiad.protocol.v2_proto_metadata import (
    decode_load_parameters,
    decode_unload_parameters,
    encode_index,
)


class RepositoryHandlers:
    """Answers what is in the repository, and changes what serves."""

    def __init__(self, engine: ServingEngine[Any], tasks: Tasks) -> None:
        self._engine = engine
        self._tasks = tasks

    def methods(self) -> list[Method]:
        """The methods of this noun."""
        tasks = self._tasks
        return [
            Method(
                f"{SERVICE}RepositoryIndex",
                Api.MODEL_REPOSITORY,
                unary=tasks.answered_by(RepositoryIndexRequest, self._index),
            ),
            Method(
                f"{SERVICE}RepositoryModelLoad",
                Api.MODEL_REPOSITORY,
                unary=tasks.answered(
                    lambda data, start: self._load(*read_load_request(data, start))
                ),
            ),
            Method(
                f"{SERVICE}RepositoryModelUnload",
                Api.MODEL_REPOSITORY,
                unary=tasks.answered_by(RepositoryModelUnloadRequest, self._unload),
            ),
        ]

    async def _index(self, request: RepositoryIndexRequest) -> RepositoryIndexResponse:
        _check_repository(request.repository_name)
        return encode_index(await self._engine.index(ready_only=request.ready))

    async def _load(
        self, request: RepositoryModelLoadRequest, large: Mapping[str, memoryview]
    ) -> RepositoryModelLoadResponse:
        _check_repository(request.repository_name)
        config_json, files = decode_load_parameters(request.parameters, large)
        await self._engine.load_model(request.model_name, config_json, files)
        return RepositoryModelLoadResponse()

    async def _unload(self, request: RepositoryModelUnloadRequest) -> RepositoryModelUnloadResponse:
        _check_repository(request.repository_name)
        unload_dependents = decode_unload_parameters(request.parameters)
        await self._engine.unload_model(request.model_name, unload_dependents=unload_dependents)
        return RepositoryModelUnloadResponse()


def _check_repository(name: str) -> None:
    """Repositories have no names here, as in Triton."""
    if name:
        raise UnsupportedError("'repository_name' specification is not supported")
