"""Names of an exported program's tensors beside its own."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.integration.backends.pytorch_models import (
    Tensors,
    check_cycles,
    fp32,
    make_source,
    row,
    run,
)

from naiad.backends.base import ModelSource
from naiad.backends.pytorch.backend import PyTorchBackend
from naiad.errors import InternalError, InvalidArgumentError
from naiad.inference import datatypes

pytestmark = pytest.mark.slow


class Nested(torch.nn.Module):
    def forward(
        self, left: torch.Tensor, more: dict[str, torch.Tensor], *, right: torch.Tensor
    ) -> dict[str, torch.Tensor | tuple[torch.Tensor, torch.Tensor]]:
        return {"sum": left + more["x"], "pair": (left - more["y"], right * 2)}


def export(directory: Path, module: torch.nn.Module, *args: object, **kwargs: object) -> None:
    program = torch.export.export(module, args, kwargs, strict=False)
    torch.export.save(program, directory / "model.pt2")


def export_nested(directory: Path) -> None:
    a, b, c, d = (torch.full((1, 2), float(value)) for value in range(4))
    export(directory, Nested(), a, {"x": b, "y": c}, right=d)


def make_exported_source(directory: Path, inputs: Tensors, outputs: Tensors) -> ModelSource:
    source = make_source(directory, inputs, outputs)
    source.config.max_batch_size = 0
    source.config.default_model_filename = "model.pt2"
    return source


def shaped(*names: str) -> Tensors:
    return [(name, "TYPE_FP32", [1, 2]) for name in names]


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (
            ["INPUT__0", "INPUT__1", "INPUT__2", "INPUT__3"],
            ["OUTPUT__0", "OUTPUT__1", "OUTPUT__2"],
        ),
        (
            ["ARGS[0]", "ARGS[1][x]", "ARGS[1][y]", "KWARGS[right]"],
            ["RESULT[sum]", "RESULT[pair][0]", "RESULT[pair][1]"],
        ),
    ],
    ids=["ordinal", "structure"],
)
def test_tensors_have_tritons_names_too(
    inputs: list[str], outputs: list[str], tmp_path: Path
) -> None:
    export_nested(tmp_path)
    # The order of the config says nothing.
    source = make_exported_source(tmp_path, shaped(*reversed(inputs)), shaped(*reversed(outputs)))
    values = {name: row(value, value) for name, value in zip(inputs, (10, 1, 2, 3), strict=True)}
    results = run(source, *outputs, **values)
    assert [result.data[0, 0] for result in results] == [11, 8, 6]
    assert [result.name for result in results] == outputs


def test_a_name_that_the_program_has_not_is_refused(tmp_path: Path) -> None:
    export_nested(tmp_path)
    inputs = shaped("INPUT__0", "INPUT__1", "INPUT__2", "INPUT__4")
    with pytest.raises(InvalidArgumentError, match="INPUT__4"):
        PyTorchBackend().load(make_exported_source(tmp_path, inputs, shaped("OUTPUT__0")))
    inputs = shaped("INPUT__0", "INPUT__1", "INPUT__2", "INPUT__3")
    with pytest.raises(InvalidArgumentError, match="OUTPUT__3"):
        PyTorchBackend().load(make_exported_source(tmp_path, inputs, shaped("OUTPUT__3")))


def test_another_datatype_under_an_ordinal_name_is_refused(tmp_path: Path) -> None:
    export(tmp_path, torch.nn.ReLU(), torch.ones(1, 2))
    wrong = [("INPUT__0", "TYPE_INT32", [1, 2])]
    with pytest.raises(InvalidArgumentError, match="expects datatype TYPE_INT32 for input"):
        PyTorchBackend().load(make_exported_source(tmp_path, wrong, shaped("OUTPUT__0")))


def test_unsigned_integers_are_taken(tmp_path: Path) -> None:
    export(tmp_path, torch.nn.Identity(), torch.ones(2, dtype=torch.uint32))
    tensors = [("INPUT__0", "TYPE_UINT32", [2])]
    source = make_exported_source(tmp_path, tensors, [("OUTPUT__0", "TYPE_UINT32", [2])])
    given = np.array([1, 2**32 - 1], np.uint32)
    (output,) = run(source, "OUTPUT__0", INPUT__0=given)
    assert output.datatype is datatypes.UINT32
    np.testing.assert_array_equal(output.data, given)


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.pt2").write_bytes(b"no archive")
    source = make_exported_source(tmp_path, fp32("x"), fp32("y"))
    with pytest.raises(InternalError, match=r"^failed to load model 'm': it is no \.pt2 archive"):
        PyTorchBackend().load(source)


@pytest.mark.full
def test_loading_and_unloading_leaves_no_memory(tmp_path: Path) -> None:
    export(tmp_path, torch.nn.Linear(512, 512), torch.ones(1, 512))  # 1 MiB
    tensors = [("INPUT__0", "TYPE_FP32", [1, 512])]
    source = make_exported_source(tmp_path, tensors, [("OUTPUT__0", "TYPE_FP32", [1, 512])])
    check_cycles(source, np.ones((1, 512), np.float32), cycles=200)


def test_text_is_refused(tmp_path: Path) -> None:
    export(tmp_path, torch.nn.ReLU(), torch.ones(1, 2))
    text = [("INPUT__0", "TYPE_STRING", [1, 2])]
    with pytest.raises(InternalError) as failure:
        PyTorchBackend().load(make_exported_source(tmp_path, text, shaped("OUTPUT__0")))
    assert failure.value.message == (
        "unsupported datatype TYPE_STRING for input 'INPUT__0' for model 'm'"
    )
