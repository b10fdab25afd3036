"""Messages of the repository, log and trace extensions."""

import pytest

from naiad.errors import InvalidArgumentError, UnsupportedError
from naiad.inference.trace import TraceLevel
from naiad.protocol.log_settings import LogSettingsUpdate, LogSettingValues
from naiad.protocol.pb import grpc_service as pb
from naiad.protocol.trace_setting import Clear, TraceSettingUpdate, TraceSettingValues
from naiad.protocol.v2_proto_metadata import decode_load_parameters, decode_unload_parameters
from naiad.protocol.v2_proto_settings import (
    decode_log_settings_update,
    decode_trace_update,
    encode_log_settings,
    encode_trace_settings,
)

LogValue = pb.LogSettingsRequest.SettingValue
TraceValue = pb.TraceSettingRequest.SettingValue
Parameter = pb.ModelRepositoryParameter


def test_log_settings() -> None:
    request = pb.LogSettingsRequest(
        settings={
            "log_info": LogValue(bool_param=False),
            "log_verbose_level": LogValue(uint32_param=2),
            "log_format": LogValue(string_param="ISO8601"),
            "zzz": LogValue(bool_param=True),
        }
    )
    assert decode_log_settings_update(request) == LogSettingsUpdate(
        log_info=False, log_verbose_level=2, log_format="ISO8601"
    )
    answer = encode_log_settings(LogSettingValues(log_info=False)).settings
    assert answer["log_info"].HasField("bool_param")
    assert answer["log_verbose_level"].HasField("uint32_param")
    assert answer["log_file"].HasField("string_param")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("log_info", LogValue(string_param="true"), "expect boolean for 'log_info'"),
        ("log_verbose_level", LogValue(bool_param=True), "expect int32 for 'log_verbose_level'"),
        ("log_format", LogValue(bool_param=True), "expect string for 'log_format'"),
        ("log_format", LogValue(string_param="x"), "invalid argument for log_format, got: x"),
    ],
)
def test_wrong_log_settings(name: str, value: LogValue, expected: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        decode_log_settings_update(pb.LogSettingsRequest(settings={name: value}))
    assert caught.value.message == expected


def test_the_log_file_is_fixed() -> None:
    request = pb.LogSettingsRequest(settings={"log_file": LogValue(string_param="x")})
    with pytest.raises(UnsupportedError):
        decode_log_settings_update(request)


def test_trace_settings() -> None:
    request = pb.TraceSettingRequest(
        settings={
            "trace_rate": TraceValue(value=["7"]),
            "trace_count": TraceValue(),
            "trace_level": TraceValue(value=["TIMESTAMPS", "TENSORS"]),
        }
    )
    assert decode_trace_update(request) == TraceSettingUpdate(
        TraceLevel.TIMESTAMPS | TraceLevel.TENSORS, 7, Clear.CLEAR
    )
    answer = encode_trace_settings(TraceSettingValues(rate=7)).settings
    assert {name: list(value.value) for name, value in answer.items()} == {
        "trace_level": ["OFF"],
        "trace_rate": ["7"],
        "trace_count": ["-1"],
        "log_frequency": ["0"],
        "trace_file": [""],
        "trace_mode": ["triton"],
    }
    request.settings["trace_count"].value.append("-2")
    with pytest.raises(InvalidArgumentError, match=r"Expecting value >= -1, got: -2"):
        decode_trace_update(request)


def test_load_parameters() -> None:
    assert decode_load_parameters({}) == (None, {})
    assert decode_load_parameters(
        {"config": Parameter(string_param="{}"), "file:1/a": Parameter(bytes_param=b"x")}
    ) == ("{}", {"1/a": b"x"})


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("config", Parameter(bool_param=True),
         "invalid value type for load parameter 'config', expected string_param."),
        ("file:x", Parameter(string_param="a"),
         "invalid value type for load parameter 'file:x', expected bytes_param."),
        ("x", Parameter(string_param="a"), "unrecognized load parameter 'x'."),
    ],
)  # fmt: skip
def test_wrong_load_parameters(key: str, value: Parameter, expected: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        decode_load_parameters({key: value})
    assert caught.value.message == expected


def test_unload_parameters() -> None:
    assert decode_unload_parameters({}) is False
    assert decode_unload_parameters({"unload_dependents": Parameter(bool_param=True)}) is True
    assert decode_unload_parameters({"other": Parameter(bool_param=True)}) is False
    with pytest.raises(InvalidArgumentError, match="expected bool_param"):
        decode_unload_parameters({"unload_dependents": Parameter(string_param="true")})
