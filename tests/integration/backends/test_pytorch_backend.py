"""The PyTorch backend on models that the test scripts, traces or exports."""

import dataclasses
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from tests.integration.backends.pytorch_models import fp32, make_source, row, run, save_script

from naiad.backends.base import ModelSource
from naiad.backends.pytorch.backend import PyTorchBackend
from naiad.backends.pytorch.loading import load_program
from naiad.backends.pytorch.options import TorchOptions
from naiad.errors import InternalError, InvalidArgumentError, UnsupportedError
from naiad.inference import datatypes
from naiad.model_config.schema import ModelConfig

pytestmark = pytest.mark.slow


class Difference(torch.nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left - right


class SumAndDifference(torch.nn.Module):
    def forward(
        self, left: torch.Tensor, right: torch.Tensor
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        return left + right, (left - right, right)


class FromDict(torch.nn.Module):
    def forward(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"first": tensors["a"] * 2, "second": tensors["b"] * 3}


class Words(torch.nn.Module):
    def forward(self, words: list[str]) -> list[str]:
        return [word + "!" for word in words]


class KeywordOnly(torch.nn.Module):
    def forward(self, left: torch.Tensor, *, right: torch.Tensor) -> torch.Tensor:
        return left - right


class Mean(torch.nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.mean()


class WithDefault(torch.nn.Module):
    def forward(self, rows: torch.Tensor, factor: int = 3) -> torch.Tensor:
        return rows * factor


class WithNumber(torch.nn.Module):
    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, int]:
        return rows * 2, 7


class Pair(NamedTuple):
    double: torch.Tensor
    words: list[str]


class NamedResults(torch.nn.Module):
    def forward(self, rows: torch.Tensor, words: list[str]) -> Pair:
        return Pair(rows * 2, words)


class Plain(torch.nn.Module):
    """Takes what is no tensor: silero-vad does, with its sampling rate."""

    def forward(
        self, rows: torch.Tensor, rate: int, scale: float = 1.0, negate: bool = False
    ) -> torch.Tensor:
        rows = rows * rate * scale
        return -rows if negate else rows


class Greeting(torch.nn.Module):
    def forward(self, rows: torch.Tensor, name: str) -> list[str]:
        return [name] * rows.shape[0]


class FromList(torch.nn.Module):
    def forward(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return [tensors[0] - tensors[1], tensors[1]]


class FromTuple(torch.nn.Module):
    def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return pair[0] + pair[1]


class WithOptional(torch.nn.Module):
    def forward(self, rows: torch.Tensor, more: torch.Tensor | None = None) -> torch.Tensor:
        return rows if more is None else rows + more


class InferenceOnly(torch.nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows + float(torch.is_grad_enabled())


@pytest.mark.parametrize(
    ("left", "right"),
    [("left", "right"), ("x__0", "y__1"), ("minuend", "subtrahend"), ("INPUT__0", "OTHER__1")],
)
def test_inputs_find_their_arguments(left: str, right: str, tmp_path: Path) -> None:
    save_script(tmp_path, Difference())
    source = make_source(tmp_path, fp32(left, right), fp32("OUT"))
    (output,) = run(source, "OUT", **{right: row(1, 1), left: row(5, 6)})
    np.testing.assert_array_equal(output.data, [[4, 5]])


def test_names_and_indices_win_over_the_order_of_the_config(tmp_path: Path) -> None:
    save_script(tmp_path, Difference())
    for left, right in (("left", "right"), ("x__0", "y__1")):
        source = make_source(tmp_path, fp32(right, left), fp32("OUT"))
        (output,) = run(source, "OUT", **{left: row(5), right: row(1)})
        np.testing.assert_array_equal(output.data, [[4]])


def test_one_dict_argument_takes_all_inputs_by_name(tmp_path: Path) -> None:
    save_script(tmp_path, FromDict())
    source = make_source(tmp_path, fp32("a", "b"), fp32("x", "y"))
    y, x = run(source, "y", "x", a=row(1), b=row(1))
    assert (x.name, x.data.item(), y.name, y.data.item()) == ("x", 2, "y", 3)


def test_nested_results_are_flattened_in_order(tmp_path: Path) -> None:
    save_script(tmp_path, SumAndDifference())
    source = make_source(tmp_path, fp32("left", "right"), fp32("sum", "difference", "right_again"))
    outputs = run(source, "sum", "difference", "right_again", left=row(5), right=row(2))
    assert [output.data.item() for output in outputs] == [7, 3, 2]


def test_output_indices_pick_results(tmp_path: Path) -> None:
    save_script(tmp_path, SumAndDifference())
    source = make_source(tmp_path, fp32("left", "right"), fp32("d__1", "s__0"))
    difference, total = run(source, "d__1", "s__0", left=row(5), right=row(2))
    assert (difference.data.item(), total.data.item()) == (3, 7)


def test_an_argument_with_a_default_needs_no_input(tmp_path: Path) -> None:
    save_script(tmp_path, WithDefault())
    (output,) = run(make_source(tmp_path, fp32("rows"), fp32("OUT")), "OUT", rows=row(2))
    assert output.data.item() == 6


def test_a_dicts_keys_are_output_names(tmp_path: Path) -> None:
    save_script(tmp_path, FromDict())
    source = make_source(tmp_path, fp32("a", "b"), fp32("second", "first"))
    first, second = run(source, "first", "second", a=row(1), b=row(1))
    assert (first.data.item(), second.data.item()) == (2, 3)


def test_one_list_argument_takes_all_inputs_in_order(tmp_path: Path) -> None:
    save_script(tmp_path, FromList())
    for left, right in (("left", "right"), ("x__0", "y__1")):
        source = make_source(tmp_path, fp32(left, right), fp32("difference", "right_again"))
        outputs = run(source, "difference", "right_again", **{right: row(2), left: row(5)})
        assert [output.data.item() for output in outputs] == [3, 2]
    source = make_source(tmp_path, fp32("y__1", "x__0"), fp32("difference"))
    (output,) = run(source, "difference", y__1=row(2), x__0=row(5))
    assert output.data.item() == 3


def test_named_tuples_and_text_are_results_in_order(tmp_path: Path) -> None:
    save_script(tmp_path, NamedResults())
    text = [("words", "TYPE_STRING", [1])]
    source = make_source(
        tmp_path, [*fp32("rows"), *text], [*fp32("d__0"), ("w__1", "TYPE_STRING", [1])]
    )
    words, double = run(source, "w__1", "d__0", rows=row(4), words=np.array([[b"a"]], np.object_))
    assert (double.data.item(), words.data.tolist()) == (8, [[b"a"]])


def test_plain_values_come_from_tensors(tmp_path: Path) -> None:
    save_script(tmp_path, Plain())
    plain = [("rate", "TYPE_INT64", [1])]
    source = make_source(tmp_path, [*fp32("rows"), *plain], fp32("OUT"))
    rates = np.array([[3], [3]])
    (output,) = run(source, "OUT", rows=np.ones((2, 1), np.float32), rate=rates)
    assert output.data.tolist() == [[3], [3]]
    with pytest.raises(InvalidArgumentError, match=r"same for the whole batch; got \[3, 4\]"):
        run(source, "OUT", rows=np.ones((2, 1), np.float32), rate=np.array([[3], [4]]))
    with pytest.raises(InvalidArgumentError, match="the request brings none"):
        run(source, "OUT", rows=np.ones((0, 1), np.float32), rate=np.zeros((0, 1), np.int64))
    plain += [("scale", "TYPE_FP32", [1]), ("negate", "TYPE_BOOL", [1])]
    source = make_source(tmp_path, [*fp32("rows"), *plain], fp32("OUT"))
    more = {"scale": np.array([[0.5]], np.float32), "negate": np.array([[True]])}
    (output,) = run(source, "OUT", rows=row(4), rate=np.array([[3]]), **more)
    assert output.data.item() == -6


def test_one_text_is_a_plain_value(tmp_path: Path) -> None:
    save_script(tmp_path, Greeting())
    text = [("name", "TYPE_STRING", [1])]
    source = make_source(tmp_path, [*fp32("rows"), *text], [("OUT", "TYPE_STRING", [1])])
    (output,) = run(source, "OUT", rows=row(1), name=np.array([[b"Ada"]], np.object_))
    assert output.data.tolist() == [[b"Ada"]]


@pytest.mark.parametrize(
    ("datatype", "argument"), [("TYPE_FP32", "int"), ("TYPE_STRING", "int"), ("TYPE_BOOL", "int")]
)
def test_a_datatype_that_is_no_such_plain_value_is_refused(
    datatype: str, argument: str, tmp_path: Path
) -> None:
    save_script(tmp_path, Plain())
    source = make_source(tmp_path, [*fp32("rows"), ("rate", datatype, [1])], fp32("OUT"))
    with pytest.raises(InvalidArgumentError) as failure:
        PyTorchBackend().load(source)
    assert failure.value.message == (
        f"unable to load model 'm', configuration expects datatype {datatype} for input 'rate', "
        f"model provides {argument} for argument 'rate'"
    )


def test_text_for_a_tensor_is_refused(tmp_path: Path) -> None:
    save_script(tmp_path, torch.nn.Identity())
    source = make_source(tmp_path, [("input", "TYPE_STRING", [1])], fp32("OUT"))
    with pytest.raises(InvalidArgumentError, match="model provides Tensor for argument 'input'"):
        PyTorchBackend().load(source)


def test_an_argument_that_no_tensor_can_be_is_refused(tmp_path: Path) -> None:
    save_script(tmp_path, FromTuple())
    with pytest.raises(InternalError) as failure:
        PyTorchBackend().load(make_source(tmp_path, fp32("pair"), fp32("OUT")))
    assert failure.value.message.startswith(
        "An input of type 'Tuple[Tensor, Tensor]' was detected in the model. Only a single input "
        "of type Dict(str, Tensor) or input(s) of type Tensor are supported."
    )


def test_an_optional_tensor_may_be_given_or_left_out(tmp_path: Path) -> None:
    save_script(tmp_path, WithOptional())
    for more in ("more", "IN__1"):
        rows = "rows" if more == "more" else "IN__0"
        source = make_source(tmp_path, fp32(rows, more), fp32("OUT"))
        source.config.input[1].optional = True
        (without,) = run(source, "OUT", **{rows: row(1)})
        (given,) = run(source, "OUT", **{rows: row(1), more: row(2)})
        assert (without.data.item(), given.data.item()) == (1, 3)


def test_an_index_beyond_the_arguments_is_refused(tmp_path: Path) -> None:
    save_script(tmp_path, Difference())
    for names in (("a__0", "b__2"), ("a__1", "b__1")):
        with pytest.raises(InvalidArgumentError, match=r"must count 0, 1, 2\.\.\. in the order"):
            PyTorchBackend().load(make_source(tmp_path, fp32(*names), fp32("OUT")))


def test_an_argument_without_an_input_is_refused(tmp_path: Path) -> None:
    save_script(tmp_path, Plain())
    source = make_source(tmp_path, [*fp32("rows"), ("scale", "TYPE_FP32", [1])], fp32("OUT"))
    with pytest.raises(InvalidArgumentError, match="no input is for argument 'rate' of forward"):
        PyTorchBackend().load(source)


def test_another_number_of_inputs_is_refused(tmp_path: Path) -> None:
    save_script(tmp_path, Difference())
    with pytest.raises(InvalidArgumentError) as failure:
        PyTorchBackend().load(make_source(tmp_path, fp32("left"), fp32("OUT")))
    assert failure.value.message == (
        "unable to load model 'm', configuration expects 1 inputs, model provides 2"
    )


def test_an_output_beyond_the_results_is_refused(tmp_path: Path) -> None:
    save_script(tmp_path, Difference())
    source = make_source(tmp_path, fp32("left", "right"), fp32("OUT__1"))
    with pytest.raises(InvalidArgumentError) as failure:
        PyTorchBackend().load(source)
    assert failure.value.message == (
        "The output OUT__1 in the model configuration refers to an output index which doesn't "
        "exist. This model has 1 outputs"
    )


def test_another_datatype_than_the_config_says_is_refused(tmp_path: Path) -> None:
    save_script(tmp_path, torch.nn.Identity())
    source = make_source(tmp_path, fp32("input"), [("OUT", "TYPE_INT64", [-1])])
    with pytest.raises(InvalidArgumentError) as failure:
        run(source, "OUT", input=row(1))
    assert failure.value.message == (
        "configuration expects datatype TYPE_INT64 for output 'OUT', model provides TYPE_FP32"
    )


def test_an_output_of_another_shape_than_declared_is_said_or_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_script(tmp_path, torch.nn.Identity())
    source = make_source(tmp_path, fp32("input"), [("OUT", "TYPE_FP32", [3])])
    with caplog.at_level(logging.WARNING):
        (output,) = run(source, "OUT", input=row(1, 2))
    assert output.data.tolist() == [[1, 2]]
    assert "output 'OUT' of model 'm' has the shape [2], which its config declares as [3]" in (
        caplog.text
    )
    source.config.parameters["strict_output_shapes"].string_value = "true"
    with pytest.raises(InternalError, match=r"'strict_output_shapes' makes that an error"):
        run(source, "OUT", input=row(1, 2))


def test_a_scalar_output_is_refused(tmp_path: Path) -> None:
    save_script(tmp_path, Mean())
    with pytest.raises(InvalidArgumentError, match="output 'OUT' is a scalar which is not support"):
        run(make_source(tmp_path, fp32("rows"), fp32("OUT")), "OUT", rows=row(1, 2))


def test_a_failure_inside_the_model_keeps_torchs_words(tmp_path: Path) -> None:
    save_script(tmp_path, Difference())
    source = make_source(tmp_path, fp32("left", "right"), fp32("OUT"))
    with pytest.raises(InternalError, match=r"PyTorch execute failure: [\s\S]*match the size"):
        run(source, "OUT", left=row(1, 2), right=row(1, 2, 3))


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"not a zip file")
    with pytest.raises(InternalError, match=r"^failed to load model 'm': "):
        PyTorchBackend().load(make_source(tmp_path, fp32("x"), fp32("y")))


def test_a_config_without_tensors_says_what_to_write(tmp_path: Path) -> None:
    save_script(tmp_path, Difference())
    with pytest.raises(InvalidArgumentError, match="must contain at least one input, none were"):
        PyTorchBackend().complete_config(make_source(tmp_path, [], []))


UNSIGNED = (datatypes.UINT16, datatypes.UINT32, datatypes.UINT64)


@pytest.mark.parametrize(
    "datatype",
    [d for d in datatypes.BY_NAME.values() if d not in {datatypes.BYTES, *UNSIGNED}],
    ids=str,
)
def test_carries_every_datatype_but_text(datatype: datatypes.Datatype, tmp_path: Path) -> None:
    save_script(tmp_path, torch.nn.Identity())
    tensors = [("input", datatype.config_name, [-1])]
    source = make_source(tmp_path, tensors, [("OUT", datatype.config_name, [-1])])
    given = np.array([[0, 1, 1]]).astype(datatype.dtype)
    given.flags.writeable = False
    (output,) = run(source, "OUT", input=given)
    assert output.datatype is datatype
    assert output.data.dtype == datatype.dtype
    np.testing.assert_array_equal(output.data, given)


@pytest.mark.parametrize("datatype", UNSIGNED, ids=str)
def test_unsigned_integers_are_refused_as_triton_does(
    datatype: datatypes.Datatype, tmp_path: Path
) -> None:
    save_script(tmp_path, torch.nn.Identity())
    unsigned = [("input", datatype.config_name, [-1])]
    with pytest.raises(InternalError) as failure:
        PyTorchBackend().load(make_source(tmp_path, unsigned, fp32("OUT")))
    assert failure.value.message == (
        f"unsupported datatype {datatype.config_name} for input 'input' for model 'm'"
    )
    unsigned = [("OUT", datatype.config_name, [-1])]
    with pytest.raises(InternalError) as failure:
        PyTorchBackend().load(make_source(tmp_path, fp32("input"), unsigned))
    assert failure.value.message == (
        f"unsupported datatype {datatype.config_name} for output 'OUT' for model 'm'"
    )


def test_an_input_is_not_copied(tmp_path: Path) -> None:
    save_script(tmp_path, torch.nn.Identity())
    body = row(1, 2, 3).tobytes()
    given = np.frombuffer(body, np.float32).reshape(1, 3)
    (output,) = run(make_source(tmp_path, fp32("input"), fp32("OUT")), "OUT", input=given)
    assert output.data.ctypes.data == given.ctypes.data


def test_text_goes_as_a_list(tmp_path: Path) -> None:
    save_script(tmp_path, Words())
    source = make_source(tmp_path, [("words", "TYPE_STRING", [1])], [("OUT", "TYPE_STRING", [1])])
    words = np.array([[b"a"], ["\N{SNOWMAN}".encode()]], np.object_)
    (output,) = run(source, "OUT", words=words)
    assert output.data.tolist() == [[b"a!"], ["\N{SNOWMAN}!".encode()]]
    with pytest.raises(InvalidArgumentError, match="1-dimensional string input only"):
        run(source, "OUT", words=np.array([[b"a", b"b"], [b"c", b"d"]], np.object_))
    with pytest.raises(InvalidArgumentError, match="not UTF-8"):
        run(source, "OUT", words=np.array([[b"\xff"]], np.object_))


@pytest.mark.parametrize("inference_mode", ["true", "false"])
def test_no_gradients_are_kept(inference_mode: str, tmp_path: Path) -> None:
    save_script(tmp_path, InferenceOnly())
    source = make_source(tmp_path, fp32("rows"), fp32("OUT"), INFERENCE_MODE=inference_mode)
    (output,) = run(source, "OUT", rows=row(1))
    assert output.data.item() == 1


DEFAULTS = {
    "inference_mode": True,
    "optimized_execution": True,
    "shares_weights": False,
    "cleans_cache": False,
    "has_cudnn": True,
    "intra_op_threads": 5,
    "inter_op_threads": None,
    "compile_parameters": None,
}


@pytest.mark.parametrize(
    ("key", "value", "changed"),
    [
        ("INFERENCE_MODE", "false", {"inference_mode": False}),
        ("INFERENCE_MODE", "true", {}),
        ("DISABLE_OPTIMIZED_EXECUTION", "true", {"optimized_execution": False}),
        ("ENABLE_WEIGHT_SHARING", "true", {"shares_weights": True}),
        ("ENABLE_CACHE_CLEANING", "true", {"cleans_cache": True}),
        ("DISABLE_CUDNN", "true", {"has_cudnn": False}),
        ("DISABLE_CUDNN", "false", {}),
        ("INTRA_OP_THREAD_COUNT", "2", {"intra_op_threads": 2}),
        ("INTRA_OP_THREAD_COUNT", "0", {}),
        ("NUM_THREADS", "2", {"intra_op_threads": 2}),
        ("INTER_OP_THREAD_COUNT", "3", {"inter_op_threads": 3}),
        ("NUM_INTEROP_THREADS", "3", {"inter_op_threads": 3}),
        ("ENABLE_JIT_EXECUTOR", "true", {}),
        (
            "TORCH_COMPILE_OPTIONAL_PARAMETERS",
            '{"mode": "max-autotune"}',
            {"compile_parameters": {"mode": "max-autotune"}},
        ),
    ],
)
def test_a_parameter_changes_what_it_names_and_nothing_else(
    key: str, value: str, changed: dict[str, object], tmp_path: Path
) -> None:
    source = make_source(tmp_path, fp32("input"), fp32("OUT"), **{key: value})
    options = TorchOptions.read(dataclasses.replace(source, thread_count=5))
    assert dataclasses.asdict(options) == DEFAULTS | changed


@pytest.mark.parametrize(
    "key",
    [
        "INFERENCE_MODE",
        "DISABLE_OPTIMIZED_EXECUTION",
        "ENABLE_WEIGHT_SHARING",
        "ENABLE_CACHE_CLEANING",
        "DISABLE_CUDNN",
        "ENABLE_JIT_EXECUTOR",
        "ENABLE_JIT_PROFILING",
        "ENABLE_TENSOR_FUSER",
        "INTRA_OP_THREAD_COUNT",
        "INTER_OP_THREAD_COUNT",
        "NUM_THREADS",
        "NUM_INTEROP_THREADS",
    ],
)
def test_a_parameter_that_can_not_be_is_refused(key: str, tmp_path: Path) -> None:
    source = make_source(tmp_path, fp32("input"), fp32("OUT"), **{key: "perhaps"})
    with pytest.raises(InvalidArgumentError, match=f"parameter '{key}' of model 'm' must be"):
        TorchOptions.read(source)


def test_an_instance_has_as_many_threads_as_cores_that_it_is_kept_to(tmp_path: Path) -> None:
    save_script(tmp_path, torch.nn.Identity())
    source = make_source(tmp_path, fp32("input"), fp32("OUT"))
    cores = (frozenset({0, 1, 2}), None)
    source = dataclasses.replace(source, thread_count=2, core_count=8, cores=cores)
    model = PyTorchBackend().load(source)
    counts = []
    for index in range(2):
        model.create_instance(index).execute({"input": row(1)}, ["OUT"])
        counts.append(torch.get_num_threads())
    assert counts == [3, 2]


def test_parameters_are_taken_and_checked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_script(tmp_path, torch.nn.Identity())
    source = make_source(
        tmp_path,
        fp32("input"),
        fp32("OUT"),
        DISABLE_OPTIMIZED_EXECUTION="true",
        ENABLE_WEIGHT_SHARING="true",
        ENABLE_TENSOR_FUSER="false",
        ENABLE_JIT_PROFILING="true",
        INTRA_OP_THREAD_COUNT="1",
    )
    with caplog.at_level(logging.WARNING):
        (output,) = run(source, "OUT", input=row(1))
    assert output.data.item() == 1
    assert torch.get_num_threads() == 1
    assert "'ENABLE_TENSOR_FUSER' of model 'm' has no effect here" in caplog.text
    assert "ENABLE_JIT_PROFILING" not in caplog.text
    source.config.parameters["INTRA_OP_THREAD_COUNT"].string_value = "-1"
    with pytest.raises(InvalidArgumentError, match="must be a number of at least 0, got '-1'"):
        PyTorchBackend().load(source)


def test_an_exported_program_says_its_own_config(tmp_path: Path) -> None:
    batch = torch.export.Dim("batch")
    rows = torch.ones(2, 3)
    program = torch.export.export(
        Difference(), (rows, rows.clone()), dynamic_shapes={"left": {0: batch}, "right": {0: batch}}
    )
    torch.export.save(program, tmp_path / "model.pt2")
    source = ModelSource("m", 1, ModelConfig(name="m", backend="pytorch"), tmp_path)
    source.config.default_model_filename = "model.pt2"
    backend = PyTorchBackend()
    backend.complete_config(source)
    assert [(t.name, list(t.dims)) for t in source.config.input] == [("left", [3]), ("right", [3])]
    assert source.config.max_batch_size == 4
    name = source.config.output[0].name
    (output,) = run(source, name, left=np.full((4, 3), 5, np.float32), right=np.ones((4, 3), "f4"))
    np.testing.assert_array_equal(output.data, np.full((4, 3), 4))


@pytest.mark.slow
def test_exported_programs_load_side_by_side(tmp_path: Path) -> None:
    program = torch.export.export(torch.nn.Linear(4, 4), (torch.ones(3, 4),))
    torch.export.save(program, tmp_path / "model.pt2")
    source = make_source(tmp_path, [], [])
    source.config.default_model_filename = "model.pt2"
    with ThreadPoolExecutor(4) as threads:
        programs = list(threads.map(load_program, [source] * 8, [TorchOptions.read(source)] * 8))
    assert [loaded.format for loaded in programs] == ["an exported program"] * 8


def test_an_exported_program_is_called_as_it_was_exported(tmp_path: Path) -> None:
    left, right = torch.ones(2, 3), torch.zeros(2, 3)
    program = torch.export.export(KeywordOnly(), (left,), {"right": right})
    torch.export.save(program, tmp_path / "model.pt2")
    tensors = [("right", "TYPE_FP32", [2, 3]), ("left", "TYPE_FP32", [2, 3])]
    source = make_source(tmp_path, tensors, [("sub", "TYPE_FP32", [2, 3])])
    source.config.max_batch_size = 0
    source.config.default_model_filename = "model.pt2"
    twos, ones = np.full((2, 3), 2, np.float32), np.ones((2, 3), np.float32)
    (output,) = run(source, "sub", left=twos, right=ones)
    np.testing.assert_array_equal(output.data, ones)


def test_an_exported_programs_nested_arguments_are_inputs_of_their_own(tmp_path: Path) -> None:
    program = torch.export.export(FromDict(), ({"a": torch.ones(2), "b": torch.ones(2)},))
    torch.export.save(program, tmp_path / "model.pt2")
    source = ModelSource("m", 1, ModelConfig(name="m", backend="pytorch"), tmp_path)
    source.config.default_model_filename = "model.pt2"
    PyTorchBackend().complete_config(source)
    assert [t.name for t in source.config.input] == ["tensors_a", "tensors_b"]
    first, second = (t.name for t in source.config.output)
    inputs = {"tensors_b": np.ones(2, np.float32), "tensors_a": np.ones(2, np.float32)}
    outputs = run(source, second, first, **inputs)
    assert [output.data.tolist() for output in outputs] == [[3, 3], [2, 2]]


def test_a_number_of_the_export_is_fixed(tmp_path: Path) -> None:
    program = torch.export.export(WithDefault(), (torch.ones(2), 5))
    torch.export.save(program, tmp_path / "model.pt2")
    source = make_source(tmp_path, [("rows", "TYPE_FP32", [2])], [("mul", "TYPE_FP32", [2])])
    source.config.max_batch_size = 0
    source.config.default_model_filename = "model.pt2"
    (output,) = run(source, "mul", rows=np.ones(2, np.float32))
    assert output.data.tolist() == [5, 5]


def test_an_exported_program_that_gives_a_number_is_refused(tmp_path: Path) -> None:
    program = torch.export.export(WithNumber(), (torch.ones(2),))
    torch.export.save(program, tmp_path / "model.pt2")
    source = make_source(tmp_path, fp32("rows"), fp32("x"))
    source.config.default_model_filename = "model.pt2"
    with pytest.raises(UnsupportedError, match="only tensors can be served"):
        PyTorchBackend().load(source)


def add_control(source: ModelSource, name: str, kind: str, **values: object) -> None:
    control = source.config.sequence_batching.control_input.add(name=name)
    control.control.add(kind=kind, **values)


def test_controls_of_a_sequence_are_inputs_by_index(tmp_path: Path) -> None:
    save_script(tmp_path, Difference())
    source = make_source(tmp_path, fp32("INPUT__0"), fp32("OUTPUT__0"))
    add_control(source, "START__1", "CONTROL_SEQUENCE_START", fp32_false_true=[0, 1])
    (output,) = run(source, "OUTPUT__0", START__1=row(1), INPUT__0=row(5))
    assert output.data.item() == 4


def test_a_control_that_torch_has_no_type_for_is_refused(tmp_path: Path) -> None:
    save_script(tmp_path, Difference())
    source = make_source(tmp_path, fp32("INPUT__0"), fp32("OUTPUT__0"))
    add_control(source, "CORRID__1", "CONTROL_SEQUENCE_CORRID", data_type="TYPE_UINT32")
    with pytest.raises(InternalError) as failure:
        PyTorchBackend().load(source)
    assert failure.value.message == (
        "input 'CORRID__1' type 'TYPE_UINT32' is not supported by PyTorch."
    )
