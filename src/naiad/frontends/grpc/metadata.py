"""What the server and its models say about themselves."""

from typing import Any

from naiad.access.restricted_apis import Api
from naiad.frontends.grpc.infer import SERVICE
from naiad.frontends.grpc.messages import answered_by
from naiad.frontends.grpc.methods import Method
from naiad.frontends.serving import ServingEngine
from naiad.protocol.pb.grpc_service import (
    ModelConfigRequest,
    ModelConfigResponse,
    ModelMetadataRequest,
    ModelMetadataResponse,
    ModelStatisticsRequest,
    ModelStatisticsResponse,
    ServerMetadataRequest,
    ServerMetadataResponse,
)
from naiad.protocol.v2_proto import parse_version
from naiad.protocol.v2_proto_metadata import (
    encode_model_config,
    encode_model_metadata,
    encode_statistics,
)


class MetadataHandlers:
    """Answers from what the engine knows of its models."""

    def __init__(self, engine: ServingEngine[Any]) -> None:
        self._engine = engine

    def methods(self) -> list[Method]:
        """The methods of this noun."""
        return [
            Method(
                f"{SERVICE}ServerMetadata",
                Api.METADATA,
                unary=answered_by(ServerMetadataRequest, self._server_metadata),
            ),
            Method(
                f"{SERVICE}ModelMetadata",
                Api.METADATA,
                unary=answered_by(ModelMetadataRequest, self._model_metadata),
            ),
            Method(
                f"{SERVICE}ModelConfig",
                Api.MODEL_CONFIG,
                unary=answered_by(ModelConfigRequest, self._model_config),
            ),
            Method(
                f"{SERVICE}ModelStatistics",
                Api.STATISTICS,
                unary=answered_by(ModelStatisticsRequest, self._statistics),
            ),
        ]

    def _server_metadata(self, request: ServerMetadataRequest) -> ServerMetadataResponse:
        engine = self._engine
        return ServerMetadataResponse(
            name=engine.server_id, version=engine.server_version, extensions=engine.extensions
        )

    def _model_metadata(self, request: ModelMetadataRequest) -> ModelMetadataResponse:
        version = parse_version(request.version)
        return encode_model_metadata(self._engine.model_metadata(request.name, version))

    def _model_config(self, request: ModelConfigRequest) -> ModelConfigResponse:
        version = parse_version(request.version)
        return encode_model_config(self._engine.model_config(request.name, version))

    def _statistics(self, request: ModelStatisticsRequest) -> ModelStatisticsResponse:
        version = parse_version(request.version)
        models = self._engine.statistics(request.name, version)
        return encode_statistics((m.name, m.version, m.statistics) for m in models)
