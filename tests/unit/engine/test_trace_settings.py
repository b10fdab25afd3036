"""Trace settings and sampling; what is written is in the integration tests."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.support.requests import tensor

from naiad.engine.trace import TraceSettings
from naiad.engine.trace_file import format_elements, trace_records
from naiad.errors import InvalidArgumentError
from naiad.inference.datatypes import (
    BF16,
    BOOL,
    BYTES,
    FP32,
    FP64,
    INT8,
    UINT64,
    Datatype,
)
from naiad.inference.tensor import Tensor
from naiad.inference.trace import MAX_TENSOR_BYTES, Trace, TraceLevel, TraceSubject
from naiad.protocol.trace_setting import Clear, TraceSettingUpdate, TraceSettingValues

ON = TraceSettingValues(TraceLevel.TIMESTAMPS, rate=1, trace_file="trace.json")


def make(values: TraceSettingValues, models: Iterable[str] = ("m", "n")) -> TraceSettings:
    return TraceSettings(values, set(models).__contains__)


def ids(settings: TraceSettings, count: int, model: str = "m") -> list[int | None]:
    traces = [settings.sample(model, 1, "") for _ in range(count)]
    return [trace.trace_id if trace is not None else None for trace in traces]


def test_it_is_inactive_until_something_can_be_sampled() -> None:
    settings = make(TraceSettingValues(trace_file="trace.json"))
    assert not settings.is_active
    assert settings.sample("m", 1, "") is None
    settings.update("m", TraceSettingUpdate(level=TraceLevel.TIMESTAMPS, rate=1))
    assert settings.is_active
    assert ids(settings, 1, "n") == [None]
    assert ids(settings, 1, "m") == [1]
    settings.update("m", TraceSettingUpdate(level=Clear.CLEAR))
    assert not settings.is_active


def test_one_in_rate_requests_is_sampled() -> None:
    settings = make(TraceSettingValues(TraceLevel.TIMESTAMPS, rate=3, trace_file="f"))
    assert ids(settings, 7) == [None, None, 1, None, None, 2, None]


def test_the_count_goes_down_and_ends_it() -> None:
    settings = make(TraceSettingValues(TraceLevel.TIMESTAMPS, rate=1, count=2, trace_file="f"))
    assert ids(settings, 1) == [1]
    assert settings.query().count == 1
    assert settings.query("m").count == 1
    assert ids(settings, 2) == [2, None]
    assert settings.query().count == 0
    assert not settings.is_active
    settings.update("", TraceSettingUpdate(count=1))
    assert settings.is_active
    assert ids(settings, 2) == [3, None]


def test_what_is_left_of_a_count_survives_other_updates() -> None:
    settings = make(ON)
    settings.update("", TraceSettingUpdate(count=5))
    ids(settings, 2)
    assert settings.update("", TraceSettingUpdate(rate=2)).count == 3
    assert settings.update("", TraceSettingUpdate(count=Clear.CLEAR)).count == -1


def test_a_model_follows_the_global_setting_in_what_it_does_not_set() -> None:
    settings = make(TraceSettingValues())
    assert settings.update("m", TraceSettingUpdate(rate=7)) == TraceSettingValues(rate=7)
    assert settings.query() == TraceSettingValues()
    assert settings.query("n") == TraceSettingValues()
    settings.update("", TraceSettingUpdate(rate=9, log_frequency=4))
    assert settings.query("m") == TraceSettingValues(rate=7, log_frequency=4)
    assert settings.update("m", TraceSettingUpdate(rate=Clear.CLEAR)).rate == 9
    settings.update("", TraceSettingUpdate(rate=Clear.CLEAR, log_frequency=Clear.CLEAR))
    assert settings.query() == settings.query("m") == TraceSettingValues()


def test_a_setting_that_could_not_be_followed_is_refused_whole() -> None:
    settings = make(TraceSettingValues())
    with pytest.raises(InvalidArgumentError) as caught:
        settings.update("", TraceSettingUpdate(level=TraceLevel.TIMESTAMPS, count=5))
    assert caught.value.message == (
        "Attempting to set invalid trace setting :trace file name is not given"
    )
    assert settings.query() == TraceSettingValues()


def test_a_global_update_may_not_break_a_model() -> None:
    settings = make(TraceSettingValues(trace_file="f"))
    settings.update("m", TraceSettingUpdate(level=TraceLevel.TENSORS))
    with pytest.raises(InvalidArgumentError, match="sample rate must be non-zero"):
        settings.update("", TraceSettingUpdate(rate=0))
    assert settings.query() == TraceSettingValues(trace_file="f")
    assert settings.query("m").rate == 1000


def test_the_setting_of_the_start_is_checked() -> None:
    with pytest.raises(InvalidArgumentError, match="sample rate must be non-zero"):
        make(TraceSettingValues(TraceLevel.TIMESTAMPS, rate=0, trace_file="f"))


def test_unknown_models_are_refused() -> None:
    settings = make(ON)
    with pytest.raises(InvalidArgumentError, match=r"Request for unknown model : nope$"):
        settings.query("nope")
    with pytest.raises(InvalidArgumentError, match=r"Request for unknown model : nope$"):
        settings.update("nope", TraceSettingUpdate(rate=1))


def make_trace(level: TraceLevel, finished: list[Trace]) -> Trace:
    return Trace(1, level, TraceSubject("m", 3, 'a"b'), finished.append)


def test_a_trace_is_finished_once() -> None:
    finished: list[Trace] = []
    trace = make_trace(TraceLevel.TIMESTAMPS, finished)
    trace.finish()
    trace.finish()
    assert finished == [trace]


def test_a_trace_holds_what_its_level_says() -> None:
    data = tensor("IN", np.array([[1.5, 2]], np.float32))
    stamps = make_trace(TraceLevel.TIMESTAMPS, [])
    tensors = make_trace(TraceLevel.TENSORS, [])
    for trace in (stamps, tensors):
        trace.stamp("REQUEST_START", 17)
        trace.add_tensor("TENSOR_QUEUE_INPUT", data)
    head = {"id": 1, "model_name": "m", "model_version": 3, "request_id": 'a"b'}
    assert list(trace_records(stamps)) == [
        head,
        {"id": 1, "timestamps": [{"name": "REQUEST_START", "ns": 17}]},
    ]
    assert list(trace_records(tensors)) == [
        head,
        {
            "id": 1,
            "activity": "TENSOR_QUEUE_INPUT",
            "tensor": {"name": "IN", "data": "1.5,2", "shape": "1,2", "dtype": "FP32"},
        },
    ]


def test_a_traced_tensor_is_a_copy() -> None:
    data = np.array([1], np.int32)
    trace = make_trace(TraceLevel.TENSORS, [])
    trace.add_tensor("TENSOR_QUEUE_INPUT", tensor("IN", data))
    data[0] = 9
    assert trace.tensors[0].data is not None
    assert trace.tensors[0].data.tolist() == [1]


@pytest.mark.parametrize(
    "large",
    [
        tensor("IN", np.zeros(MAX_TENSOR_BYTES + 1, np.uint8)),
        Tensor("IN", BYTES, (1,), np.array([bytes(MAX_TENSOR_BYTES + 1)], np.object_)),
    ],
)
def test_of_a_large_tensor_only_the_shape_is_kept(large: Tensor) -> None:
    trace = make_trace(TraceLevel.TENSORS, [])
    trace.add_tensor("TENSOR_QUEUE_INPUT", large)
    (record,) = list(trace_records(trace))[1:]
    assert record["tensor"]["data"] == ""
    assert record["tensor"]["shape"] == str(large.shape[0])


def test_children_name_their_parent() -> None:
    trace = make_trace(TraceLevel.TIMESTAMPS, [])
    child = trace.add_child(2, TraceSubject("step", 1, ""))
    grandchild = child.add_child(3, TraceSubject("deeper", 1, ""))
    grandchild.stamp("REQUEST_START", 5)
    assert list(trace_records(trace))[1:] == [
        {"id": 2, "model_name": "step", "model_version": 1, "parent_id": 1},
        {"id": 3, "model_name": "deeper", "model_version": 1, "parent_id": 2},
        {"id": 3, "timestamps": [{"name": "REQUEST_START", "ns": 5}]},
    ]


@pytest.mark.parametrize(
    ("datatype", "data", "text"),
    [
        (INT8, np.array([[-1, 2], [3, 4]], np.int8), "-1,2,3,4"),
        (UINT64, np.array([(1 << 64) - 1], np.uint64), "18446744073709551615"),
        (BOOL, np.array([True, False]), "1,0"),
        (
            FP32,
            np.array([0.1, 1, -2.5, np.nan, np.inf, 1e-30], np.float32),
            "0.1,1,-2.5,nan,inf,1e-30",
        ),
        (FP64, np.array([0.1, 100.0]), "0.1,100"),
        (BF16, np.array([0x3F80, 0xC020], np.uint16), "1,-2.5"),
        (
            BYTES,
            np.array([b'say "hi"', "é".encode(), b"\xff", b""], np.object_),
            '"say "hi"","é","\\xff",""',
        ),
        (FP32, np.zeros((0, 3), np.float32), ""),
    ],
)
def test_elements_as_text(datatype: Datatype, data: npt.NDArray[Any], text: str) -> None:
    assert format_elements(datatype, data) == text
