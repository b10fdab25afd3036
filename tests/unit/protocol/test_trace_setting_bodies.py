"""Bodies of the trace extension."""

import orjson
import pytest

from naiad.errors import InvalidArgumentError, NaiadError, UnsupportedError
from naiad.inference.trace import TraceLevel
from naiad.protocol.trace_setting import (
    Clear,
    TraceSettingUpdate,
    TraceSettingValues,
    decode_trace_update,
    encode_trace_settings,
    format_trace_settings,
    parse_trace_update,
)


def test_settings_are_encoded_in_tritons_order() -> None:
    assert encode_trace_settings(TraceSettingValues()) == (
        b'{"trace_level":["OFF"],"trace_rate":"1000","trace_count":"-1","log_frequency":"0",'
        b'"trace_file":"","trace_mode":"triton"}'
    )


def test_both_levels_are_shown() -> None:
    values = TraceSettingValues(
        TraceLevel.TENSORS | TraceLevel.TIMESTAMPS, trace_file="trace.json", rate=1
    )
    assert format_trace_settings(values) == {
        "trace_level": ["TIMESTAMPS", "TENSORS"],
        "trace_rate": ["1"],
        "trace_count": ["-1"],
        "log_frequency": ["0"],
        "trace_file": ["trace.json"],
        "trace_mode": ["triton"],
    }


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"zzz": "1", "trace_mode": "opentelemetry"}, TraceSettingUpdate()),
        ([], TraceSettingUpdate()),
        (
            {
                "trace_rate": "7",
                "trace_count": "5",
                "log_frequency": "10",
                "trace_level": ["TIMESTAMPS"],
            },
            TraceSettingUpdate(TraceLevel.TIMESTAMPS, 7, 5, 10),
        ),
        (
            {"trace_level": ["TIMESTAMPS", "TENSORS"]},
            TraceSettingUpdate(TraceLevel.TIMESTAMPS | TraceLevel.TENSORS),
        ),
        ({"trace_level": ["OFF"]}, TraceSettingUpdate(TraceLevel.OFF)),
        # What Triton does not know is not there, and nothing is left.
        ({"trace_level": ["NOPE"]}, TraceSettingUpdate(TraceLevel.OFF)),
        ({"trace_rate": "-1"}, TraceSettingUpdate(rate=4294967295)),
        ({"trace_rate": "4294967295"}, TraceSettingUpdate(rate=4294967295)),
        ({"trace_count": "-1"}, TraceSettingUpdate(count=-1)),
        (
            {
                "trace_rate": None,
                "trace_level": None,
                "trace_count": None,
                "log_frequency": None,
                "trace_file": None,
            },
            TraceSettingUpdate(Clear.CLEAR, Clear.CLEAR, Clear.CLEAR, Clear.CLEAR),
        ),
    ],
)
def test_an_update_is_decoded(document: object, expected: TraceSettingUpdate) -> None:
    assert decode_trace_update(orjson.dumps(document)) == expected


@pytest.mark.parametrize(
    ("body", "error", "text"),
    [
        (
            b"",
            InvalidArgumentError,
            "failed to parse the request JSON buffer: The document is empty. at 0",
        ),
        (b'{"trace_rate":"abc"}', InvalidArgumentError, "Unable to parse 'trace_rate', got: abc"),
        (b'{"trace_rate":""}', InvalidArgumentError, "Unable to parse 'trace_rate', got: "),
        (
            b'{"trace_rate":10}',
            InvalidArgumentError,
            "attempt to access JSON non-string as string: 'trace_rate'",
        ),
        *(
            (
                b'{"trace_rate":"%b"}' % digits,
                InvalidArgumentError,
                "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: "
                + digits.decode(),
            )
            for digits in (b"1" * 30, b"9" * 5000, b"4294967296")
        ),
        (
            b'{"trace_count":"-2"}',
            InvalidArgumentError,
            "Unable to parse 'trace_count'. Expecting value >= -1, got:-2",
        ),
        (
            b'{"trace_level":"TENSORS"}',
            InvalidArgumentError,
            "attempt to access JSON non-array as array: 'trace_level'",
        ),
        (
            b'{"trace_level":[1]}',
            InvalidArgumentError,
            "attempt to access JSON non-string as string: 'trace_level'",
        ),
        (
            b'{"trace_level":["OFF","TENSORS"]}',
            InvalidArgumentError,
            "Expect only one trace level 'OFF' is specified",
        ),
        (
            b'{"trace_file":"x.json"}',
            UnsupportedError,
            "trace file location can not be updated through network protocol",
        ),
    ],
)
def test_a_bad_update_is_refused(body: bytes, error: type[NaiadError], text: str) -> None:
    with pytest.raises(error) as caught:
        decode_trace_update(body)
    assert caught.value.message == text


def test_lists_of_texts_are_read_for_other_protocols() -> None:
    update = parse_trace_update({"trace_rate": ["7"], "trace_level": [], "zzz": ["1"]})
    assert update == TraceSettingUpdate(level=Clear.CLEAR, rate=7)
    with pytest.raises(InvalidArgumentError, match="expect only 1 value for 'trace_rate'"):
        parse_trace_update({"trace_rate": ["1", "2"]})
    with pytest.raises(InvalidArgumentError, match="Expecting value >= -1, got: -2"):
        parse_trace_update({"trace_count": ["-2"]})
