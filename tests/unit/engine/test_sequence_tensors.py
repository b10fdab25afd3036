import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.requests import make_request, tensor

from naiad.engine.sequence_tensors import SequenceTensors
from naiad.errors import InternalError, InvalidArgumentError
from naiad.inference.datatypes import FP32
from naiad.inference.sequence import SequenceRow, SequenceState
from naiad.inference.tensor import Tensor
from naiad.model_config.text_format import parse_config

CONTROLS = """
  control_input {
    name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }
  }
  control_input { name: "END" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [ -1, 2.5 ] } }
  control_input {
    name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] }
  }
"""


def make(
    tmp_path: Path, batching: str = "", *, batch: int = 4, states: str = ""
) -> SequenceTensors:
    text = f"max_batch_size: {batch} sequence_batching {{ {batching} {states} }}"
    made = SequenceTensors.from_config(parse_config(text, "text"), tmp_path)
    assert made is not None
    return made


def state(dims: str = "[ 2 ]", kind: str = "TYPE_INT32", initial: str = "", name: str = "S") -> str:
    return (
        f'state {{ input_name: "{name}_IN" output_name: "{name}_OUT" data_type: {kind} '
        f"dims: {dims} {initial} }}"
    )


def initial(data: str, dims: str = "[ 2 ]", kind: str = "TYPE_INT32") -> str:
    return f'initial_state {{ name: "first" data_type: {kind} dims: {dims} {data} }}'


def row(key: int | str = 1, flags: str = "", kept: SequenceState | None = None) -> SequenceRow:
    request = make_request()
    request.correlation_id = key
    request.sequence_start = "s" in flags
    request.sequence_end = "e" in flags
    return SequenceRow(request, kept or SequenceState())


def place() -> SequenceRow:
    return SequenceRow(None, None)


def inputs_of(tensors: SequenceTensors, rows: Sequence[SequenceRow]) -> dict[str, Any]:
    inputs: dict[str, Any] = {}
    tensors.add_inputs(inputs, rows)
    return inputs


def test_a_model_without_sequences_has_none(tmp_path: Path) -> None:
    assert SequenceTensors.from_config(parse_config("max_batch_size: 4", "text"), tmp_path) is None


def test_flags_become_the_values_that_the_config_gives(tmp_path: Path) -> None:
    inputs = inputs_of(make(tmp_path, CONTROLS), [row(flags="s"), place(), row(flags="se"), row()])

    assert inputs["START"].tolist() == [[1], [0], [1], [0]]
    assert inputs["END"].tolist() == [[-1], [-1], [2.5], [-1]]
    assert inputs["READY"].tolist() == [[True], [False], [True], [True]]
    assert [inputs[name].dtype for name in ("START", "END", "READY")] == [
        np.int32,
        np.float32,
        np.bool_,
    ]


def test_without_a_batch_axis_a_control_is_a_vector_of_one(tmp_path: Path) -> None:
    inputs = inputs_of(make(tmp_path, CONTROLS, batch=0, states=state()), [row(flags="s")])
    assert inputs["START"].tolist() == [1]
    assert inputs["S_IN"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        # The low bytes, as Triton copies them; of a text, its length and its beginning.
        ("UINT64", [2**64 - 1, 0, 5, 3 + (ord("a") << 32) + (ord("b") << 40) + (ord("c") << 48)]),
        ("INT64", [-1, 0, 5, 3 + (ord("a") << 32) + (ord("b") << 40) + (ord("c") << 48)]),
        ("UINT32", [2**32 - 1, 0, 5, 3]),
        ("INT32", [-1, 0, 5, 3]),
        ("STRING", [b"18446744073709551615", b"", b"5", b"abc"]),
    ],
)
def test_the_correlation_id_comes_in_every_datatype(
    tmp_path: Path, kind: str, values: list[Any]
) -> None:
    control = f"control {{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_{kind} }}"
    tensors = make(tmp_path, f'control_input {{ name: "ID" {control} }}')
    ids = inputs_of(tensors, [row(2**64 - 1), place(), row(5), row("abc")])["ID"]
    assert ids.tolist() == [[value] for value in values]
    assert ids.dtype == (np.object_ if kind == "STRING" else np.dtype(kind.lower()))


def test_what_a_warm_up_brings_itself_stays(tmp_path: Path) -> None:
    given = {"START": np.array([[7]], np.int32)}
    make(tmp_path, CONTROLS).add_inputs(given, [row(flags="s")])
    assert given["START"].tolist() == [[7]]
    assert given["READY"].tolist() == [[True]]


def test_the_state_that_comes_out_goes_in_again(tmp_path: Path) -> None:
    tensors = make(tmp_path, states=state())
    first, second = SequenceState(), SequenceState()
    rows = [row(1, "s", first), place(), row(2, "s", second)]
    assert inputs_of(tensors, rows)["S_IN"].tolist() == [[0, 0]] * 3
    assert tensors.output_names(["OUT"]) == ["OUT", "S_OUT"]
    out = np.arange(6, dtype=np.int32).reshape(3, 2)
    tensors.keep_states([tensor("S_OUT", out)], rows)
    # What a model gives may be its own again.
    out[:] = -1

    after = inputs_of(tensors, [row(2, "", second), row(1, "", first)])["S_IN"]
    assert after.tolist() == [[4, 5], [0, 1]]
    assert inputs_of(tensors, [row(3, "s")])["S_IN"].tolist() == [[0, 0]]


def test_a_single_state_is_not_copied(tmp_path: Path) -> None:
    tensors = make(tmp_path, states=state())
    kept = SequenceState()
    out = np.ones((1, 2), np.int32)
    tensors.keep_states([tensor("S_OUT", out)], [row(1, "s", kept)])
    assert kept.tensors is not None
    assert kept.tensors["S_IN"] is out
    assert inputs_of(tensors, [row(1, "", kept)])["S_IN"] is out


def test_the_end_keeps_nothing(tmp_path: Path) -> None:
    kept = SequenceState()
    tensors = make(tmp_path, states=state())
    tensors.keep_states([tensor("S_OUT", np.ones((1, 2), np.int32))], [row(1, "se", kept)])
    assert kept.tensors is None


def test_a_state_that_is_an_output_too_is_computed_once(tmp_path: Path) -> None:
    tensors = make(tmp_path, states=state())
    assert tensors.output_names(["S_OUT", "OUT"]) == ["S_OUT", "OUT"]


def test_states_of_other_dims_than_at_first_are_told_apart(tmp_path: Path) -> None:
    tensors = make(tmp_path, states=state("[ -1 ]"))
    kept = SequenceState()
    assert inputs_of(tensors, [row(1, "s", kept)])["S_IN"].tolist() == [[0]]
    tensors.keep_states([tensor("S_OUT", np.ones((1, 1), np.int32))], [row(1, "", kept)])
    assert kept.key is None
    tensors.keep_states([tensor("S_OUT", np.ones((1, 3), np.int32))], [row(1, "", kept)])
    assert kept.key == ((1, 3),)
    blank = inputs_of(tensors, [place(), row(1, "", kept)])["S_IN"]
    assert blank.tolist() == [[0, 0, 0], [1, 1, 1]]


@pytest.mark.parametrize(
    ("kind", "data", "values"),
    [
        ("TYPE_INT32", struct.pack("<2i", 5, -5), [5, -5]),
        ("TYPE_FP16", np.array([0.5, 2], np.float16).tobytes() + b"more", [0.5, 2]),
        ("TYPE_BOOL", b"\x00\x07", [False, True]),
        ("TYPE_STRING", b"\x02\x00\x00\x00ab\x00\x00\x00\x00", [b"ab", b""]),
    ],
)
def test_the_first_state_may_be_read_from_a_file(
    tmp_path: Path, kind: str, data: bytes, values: list[Any]
) -> None:
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state" / "first.bin").write_bytes(data)
    made = make(
        tmp_path, states=state(kind=kind, initial=initial('data_file: "first.bin"', kind=kind))
    )
    array = inputs_of(made, [row(1, "s")])["S_IN"]
    assert array.tolist() == [values]
    assert not array.flags.writeable


def test_states_begin_with_nothing_in_them(tmp_path: Path) -> None:
    made = make(
        tmp_path,
        states=state(kind="TYPE_STRING")
        + state("[ -1, 2 ]", initial=initial("zero_data: true", "[ 3, 2 ]"), name="T"),
    )
    inputs = inputs_of(made, [row(1, "s")])
    assert inputs["S_IN"].tolist() == [[b"", b""]]
    assert inputs["T_IN"].shape == (1, 3, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            state(initial=initial("zero_data: true", kind="TYPE_FP32")),
            "The data type used for 'initial_state' field of state 'S_IN' does not match the state "
            "data type.",
        ),
        (
            state(initial="initial_state { data_type: TYPE_INT32 dims: [ 2 ] zero_data: true }"),
            "Field 'name' must be set when using initial_state for state input 'S_IN'.",
        ),
        (
            state(initial=initial("zero_data: true", "[ 2, 2 ]")),
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions "
            "for state input 'S_IN'. 2 != 1",
        ),
        (
            state("[ -1 ]", initial=initial("zero_data: true", "[ -1 ]")),
            "'initial_state' field for state input name 'S_IN' contains variable dimensions.",
        ),
        (
            state(initial=initial("zero_data: true", "[ 3 ]")),
            "'initial_state' dim for input name 'S_IN' doesn't match 'state' dim description. "
            "3 != 2",
        ),
        (
            state(initial=initial("")),
            "initial_state setting expects state'S_IN' to have state_data set",
        ),
        (
            state(initial=initial("zero_data: true") * 2),
            "initial_state field for state input 'S_IN' must contain exactly one or zero element. "
            "Found '2' elements.",
        ),
        (
            state(initial=initial('data_file: "short"')),
            "initial_state setting expects 8 bytes, but the data provided from short only has 1 "
            "bytes.",
        ),
        (
            state(kind="TYPE_STRING", initial=initial('data_file: "one"', kind="TYPE_STRING")),
            "initial_state setting expects 2 string elements, but the data provided from one has 1",
        ),
        (state(kind="TYPE_INVALID"), "state 'S_IN' must specify 'data_type'"),
        (
            state("[ 1000000, 1000000 ]"),
            "the initial state 'S_IN' has more than 2147483648 bytes",
        ),
    ],
)
def test_a_state_that_cannot_be_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state" / "short").write_bytes(b"1")
    (tmp_path / "initial_state" / "one").write_bytes(b"\x01\x00\x00\x00a")
    with pytest.raises(InvalidArgumentError) as refusal:
        make(tmp_path, states=text)
    assert refusal.value.message == message


def test_a_file_outside_of_its_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"12345678")
    with pytest.raises(InvalidArgumentError):
        make(tmp_path, states=state(initial=initial('data_file: "../secret"')))
    with pytest.raises(InternalError, match="failed to open text file for read"):
        make(tmp_path, states=state(initial=initial('data_file: "missing"')))


def test_a_state_of_another_kind_than_the_config_says_changes_nothing(tmp_path: Path) -> None:
    tensors = make(tmp_path, states=state() + state(name="T"))
    kept = SequenceState()
    good = tensor("S_OUT", np.ones((1, 2), np.int32))
    wrong = Tensor("T_OUT", FP32, (1, 2), np.ones((1, 2), np.float32))
    with pytest.raises(InternalError, match="state 'T_OUT' is of datatype FP32"):
        tensors.keep_states([good, wrong], [row(1, "s", kept)])
    with pytest.raises(InternalError, match="batch of 1 rows"):
        tensors.keep_states([good, tensor("T_OUT", np.ones((2, 2), np.int32))], [row(1, "s", kept)])
    assert kept.tensors is None
