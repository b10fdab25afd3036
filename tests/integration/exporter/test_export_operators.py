"""What cannot be captured or converted: which operator, which line of the model, what to do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnxscript import opset18
from torch import nn

from naiad.errors import UnsupportedError
from naiad.exporter.export import export
from naiad.exporter.options import ExportOptions

pytestmark = pytest.mark.slow


@torch.library.custom_op("naiad_test::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@double.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("naiad_test::secret", mutates_args=())
def secret(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Bessel(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        found: torch.Tensor = torch.special.bessel_j0(y)  # the line
        return found


class Decomposed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        singular: torch.Tensor = torch.linalg.svd(x)[1]  # the line
        return singular


class Own(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = double(x)  # the line
        return found


class NoFake(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = secret(x)  # the line
        return found


class LeavesTorch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.sin(x.detach().numpy()))  # the line


class SizedByValue(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = int(x.abs().sum().item()) % 2 + 1  # the line
        return x[:rows]


class LoopsByValue(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while x.abs().sum() < 100:  # the line
            x = x * 2
        return x


class BranchesByValue(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:  # the line
            return x * 2
        return x - 2


KINDS: list[tuple[Callable[[], nn.Module], str]] = [
    (Bessel, r"operator prims\.bessel_j0 has no ONNX form (.*)\. Compute it.*pt2 or torchscript"),
    (Decomposed, r"operator aten\._linalg_svd has no ONNX form (.*)\. Compute it with other oper"),
    (
        Own,
        r"operator naiad_test\.double is not one of torch's own .*ONNX form (.*)\. Give it one: "
        r"ExportOptions\(translations=\{torch\.ops\.naiad_test\.double\.default",
    ),
    (NoFake, r"naiad_test::secret does not say what it returns (.*), so .*register_fake"),
    (LeavesTorch, r"torch\.export cannot capture the model (.*): .*torchscript may be able to"),
    (SizedByValue, r"sizes a tensor by them, which a graph cannot (.*)\. Use torch\.where"),
    (LoopsByValue, r"decides by the values of its tensors.* cannot (.*)\. Use .*torchscript"),
    (BranchesByValue, r"decides by the values of its tensors.* cannot (.*)\. Use .*torchscript"),
]


@pytest.mark.parametrize(("model", "message"), KINDS, ids=[kind.__name__ for kind, _ in KINDS])
def test_each_kind_is_told_with_its_line_and_a_way_out(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    model: Callable[[], nn.Module],
    message: str,
) -> None:
    line = next(
        number
        for number, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if number > model.forward.__code__.co_firstlineno and text.endswith("# the line")  # type: ignore[attr-defined]
    )
    place = rf"\(test_export_operators\.py, line {line}, in forward: .*# the line\)"
    with pytest.raises(UnsupportedError, match=message.replace("(.*)", place)):
        export(
            model(), (torch.ones(2, 3),), name="net", repository=tmp_path,
            options=ExportOptions(max_batch_size=0),
        )  # fmt: skip
    assert not list(tmp_path.iterdir())
    # The graphs that torch prints on its way are nobody's business.
    assert capfd.readouterr().err == ""


def test_an_operator_of_ones_own_gets_an_onnx_form(tmp_path: Path) -> None:
    def twice(x: Any) -> Any:
        return opset18.Add(x, x)

    result = export(
        Own(), (torch.ones(2, 3),), name="net", repository=tmp_path,
        options=ExportOptions(translations={torch.ops.naiad_test.double.default: twice}),
    )  # fmt: skip
    session = onnxruntime.InferenceSession(
        result.path / "model.onnx", providers=["CPUExecutionProvider"]
    )
    x = np.full((1, 3), 4, np.float32)
    assert session.run(None, {"x": x})[0].tolist() == [[8, 8, 8]]


class Printing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import sys  # noqa: PLC0415

        sys.stderr.write("the model's own words\n")
        return x * 2


def test_what_the_model_itself_prints_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export(Printing(), (torch.ones(2, 3),), name="net", repository=tmp_path, format="pt2")
    assert "the model's own words" in capsys.readouterr().err


class Scripted(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return type("Result", (dict,), {})(a=x)


def test_what_torchscript_cannot_script_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"torch\.jit\.script cannot script the model: .*"):
        export(
            Scripted(), (torch.ones(2, 3),), name="net", repository=tmp_path,
            format="torchscript", options=ExportOptions(torchscript="script"),
        )  # fmt: skip


class Unsigned(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, 1, dtype=torch.uint8)


def test_what_onnxruntime_has_no_kernel_for_is_told_before_it_is_published(
    tmp_path: Path,
) -> None:
    with pytest.raises(UnsupportedError, match=r"onnxruntime cannot load .*pt2 or torchscript"):
        export(Unsigned(), (torch.ones(2, 3, dtype=torch.uint8),), name="net", repository=tmp_path)
    assert not list(tmp_path.iterdir())


def test_no_compiler_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UnsupportedError, match=r"needs a C\+\+ compiler: none of .*apt install g"):
        export(nn.Linear(3, 2), (torch.ones(2, 3),), name="net", repository=tmp_path,
               format="aoti")  # fmt: skip
    assert not list(tmp_path.iterdir())
