"""The messages of the shared memory, trace and logging extensions.

Sources: Triton's extension_shared_memory.md, extension_trace.md and extension_logging.md; texts of
its grpc_server.cc.
"""

from collections.abc import Iterable

from naiad.errors import InvalidArgumentError
from naiad.protocol.log_settings import (
    LOG_FORMATS,
    LogSettingsUpdate,
    LogSettingValues,
    log_file_is_fixed,
)
from naiad.protocol.pb import grpc_service as pb
from naiad.protocol.shared_memory import RegionDescription
from naiad.protocol.trace_setting import (
    TraceSettingUpdate,
    TraceSettingValues,
    format_trace_settings,
    parse_trace_update,
)

_CHOICE = "parameter_choice"


def encode_system_status(
    regions: Iterable[RegionDescription],
) -> pb.SystemSharedMemoryStatusResponse:
    """The answer to ``SystemSharedMemoryStatus``."""
    status = pb.SystemSharedMemoryStatusResponse.RegionStatus
    return pb.SystemSharedMemoryStatusResponse(
        regions={
            region.name: status(
                name=region.name, key=region.key, offset=region.offset, byte_size=region.byte_size
            )
            for region in regions
        }
    )


def decode_trace_update(request: pb.TraceSettingRequest) -> TraceSettingUpdate:
    """What ``TraceSetting`` is to change.

    Raises:
        InvalidArgumentError: a value is no number, or out of range.
        UnsupportedError: the trace file is to be changed.
    """
    return parse_trace_update(
        {name: list(request.settings[name].value) for name in request.settings}
    )


def encode_trace_settings(values: TraceSettingValues) -> pb.TraceSettingResponse:
    """The answer to ``TraceSetting``."""
    return pb.TraceSettingResponse(
        settings={
            name: pb.TraceSettingResponse.SettingValue(value=texts)
            for name, texts in format_trace_settings(values).items()
        }
    )


def decode_log_settings_update(request: pb.LogSettingsRequest) -> LogSettingsUpdate:
    """What ``LogSettings`` is to change. Settings that do not exist are ignored, as by Triton.

    Raises:
        InvalidArgumentError: a value is of the wrong type, or there is no such format.
        UnsupportedError: the log file is to be changed.
    """
    if "log_file" in request.settings:
        raise log_file_is_fixed()
    log_format: str | None = None
    if "log_format" in request.settings:
        _check_kind(request, "log_format", "string_param", "string")
        log_format = request.settings["log_format"].string_param
        if log_format not in LOG_FORMATS:
            raise InvalidArgumentError(f"invalid argument for log_format, got: {log_format}")
    verbose_level: int | None = None
    if "log_verbose_level" in request.settings:
        _check_kind(request, "log_verbose_level", "uint32_param", "int32")
        verbose_level = request.settings["log_verbose_level"].uint32_param
    return LogSettingsUpdate(
        _boolean(request, "log_info"),
        _boolean(request, "log_warning"),
        _boolean(request, "log_error"),
        verbose_level,
        log_format,
    )


def encode_log_settings(values: LogSettingValues) -> pb.LogSettingsResponse:
    """The answer to ``LogSettings``."""
    value = pb.LogSettingsResponse.SettingValue
    return pb.LogSettingsResponse(
        settings={
            "log_file": value(string_param=values.log_file),
            "log_info": value(bool_param=values.log_info),
            "log_warning": value(bool_param=values.log_warning),
            "log_error": value(bool_param=values.log_error),
            "log_verbose_level": value(uint32_param=values.log_verbose_level),
            "log_format": value(string_param=values.log_format),
        }
    )


def _boolean(request: pb.LogSettingsRequest, name: str) -> bool | None:
    if name not in request.settings:
        return None
    _check_kind(request, name, "bool_param", "boolean")
    return request.settings[name].bool_param


def _check_kind(request: pb.LogSettingsRequest, name: str, choice: str, expected: str) -> None:
    if request.settings[name].WhichOneof(_CHOICE) != choice:
        raise InvalidArgumentError(f"expect {expected} for '{name}'")
