"""The logging extension."""

from typing import Any

from naiad.access.restricted_apis import Api
from naiad.frontends.grpc.infer import SERVICE
from naiad.frontends.grpc.messages import answered_by
from naiad.frontends.grpc.methods import Method
from naiad.frontends.serving import ServingEngine
from naiad.protocol.pb.grpc_service import LogSettingsRequest, LogSettingsResponse
from naiad.protocol.v2_proto_settings import decode_log_settings_update, encode_log_settings


class LogSettingsHandlers:
    """Shows and changes how the server logs."""

    def __init__(self, engine: ServingEngine[Any]) -> None:
        self._settings = engine.log_settings

    def methods(self) -> list[Method]:
        """The methods of this noun."""
        handler = answered_by(LogSettingsRequest, self._set)
        return [Method(f"{SERVICE}LogSettings", Api.LOGGING, unary=handler)]

    def _set(self, request: LogSettingsRequest) -> LogSettingsResponse:
        return encode_log_settings(self._settings.update(decode_log_settings_update(request)))
