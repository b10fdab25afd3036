"""The PyTorch backend on models that the test scripts, traces or exports."""

import logging
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from naiad.backends.base import ModelSource
from naiad.backends.pytorch.backend import PyTorchBackend
from naiad.backends.pytorch.program import load_program
from naiad.errors import InternalError, InvalidArgumentError, UnsupportedError
from naiad.inference import datatypes
from naiad.inference.tensor import Tensor
from naiad.model_config.schema import ModelConfig, ModelInput, ModelOutput, ModelParameter

pytestmark = pytest.mark.slow

Tensors = Sequence[tuple[str, str, Sequence[int]]]


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


class InferenceOnly(torch.nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows + float(torch.is_grad_enabled())


def save_script(directory: Path, module: torch.nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(module), directory / "model.pt")


def make_source(
    directory: Path, inputs: Tensors, outputs: Tensors, **parameters: str
) -> ModelSource:
    config = ModelConfig(
        name="m",
        backend="pytorch",
        max_batch_size=8,
        input=[ModelInput(name=n, data_type=t, dims=d) for n, t, d in inputs],
        output=[ModelOutput(name=n, data_type=t, dims=d) for n, t, d in outputs],
        parameters={key: ModelParameter(string_value=value) for key, value in parameters.items()},
    )
    return ModelSource("m", 1, config, directory)


def fp32(*names: str) -> Tensors:
    return [(name, "TYPE_FP32", [-1]) for name in names]


def run(source: ModelSource, *wanted: str, **inputs: npt.NDArray[Any]) -> list[Tensor]:
    instance = PyTorchBackend().load(source).create_instance(0)
    return list(instance.execute(inputs, wanted))


def row(*values: float) -> npt.NDArray[np.float32]:
    return np.array([values], np.float32)


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
        run(source, "OUT__1", left=row(1), right=row(1))
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


@pytest.mark.parametrize(
    "datatype", [d for d in datatypes.BY_NAME.values() if d is not datatypes.BYTES], ids=str
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
    assert list(output.data) == [b"a!", "\N{SNOWMAN}!".encode()]
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


def test_parameters_are_taken_and_checked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_script(tmp_path, torch.nn.Identity())
    source = make_source(
        tmp_path,
        fp32("input"),
        fp32("OUT"),
        DISABLE_OPTIMIZED_EXECUTION="true",
        ENABLE_WEIGHT_SHARING="true",
        ENABLE_TENSOR_FUSER="false",
        INTRA_OP_THREAD_COUNT="1",
    )
    with caplog.at_level(logging.WARNING):
        (output,) = run(source, "OUT", input=row(1))
    assert output.data.item() == 1
    assert torch.get_num_threads() == 1
    assert "'ENABLE_TENSOR_FUSER' of model 'm' has no effect here" in caplog.text
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
    with ThreadPoolExecutor(4) as threads:
        programs = list(threads.map(load_program, ["m"] * 8, [tmp_path / "model.pt2"] * 8))
    assert [len(loaded.arguments) for loaded in programs] == [1] * 8


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
