"""The trace extension."""

from typing import Any

from naiad.access.restricted_apis import Api
from naiad.frontends.grpc.infer import SERVICE
from naiad.frontends.grpc.messages import answered_by
from naiad.frontends.grpc.methods import Method
from naiad.frontends.serving import ServingEngine
from naiad.protocol.pb.grpc_service import TraceSettingRequest, TraceSettingResponse
from naiad.protocol.v2_proto_settings import decode_trace_update, encode_trace_settings


class TraceSettingHandlers:
    """Shows and changes what is traced, of one model or of all."""

    def __init__(self, engine: ServingEngine[Any]) -> None:
        self._traces = engine.traces

    def methods(self) -> list[Method]:
        """The methods of this noun."""
        handler = answered_by(TraceSettingRequest, self._set)
        return [Method(f"{SERVICE}TraceSetting", Api.TRACE, unary=handler)]

    def _set(self, request: TraceSettingRequest) -> TraceSettingResponse:
        values = self._traces.query(request.model_name)  # an unknown model is the first fault
        if request.settings:
            values = self._traces.update(request.model_name, decode_trace_update(request))
        return encode_trace_settings(values)
