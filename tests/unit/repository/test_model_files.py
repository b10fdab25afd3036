"""The heads of model files, read without their frameworks."""

import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.support.repository_builder import mlp_model

from naiad.errors import InvalidArgumentError
from naiad.repository.onnx_file import read_onnx_file
from naiad.repository.torchscript_file import is_exported_program, read_forward

# What a pickle of an object of class __torch__.nets.Net begins with.
PICKLE = b"\x80\x02c__torch__.nets\nNet\nq\x00)\x81."
CODE = """\
class Other(Module):
  def forward(self: __torch__.nets.Other,
    nothing: Tensor) -> Tensor:
    return nothing
class Net(Module):
  training : bool
  def forward({arguments}) -> Tensor:
    return x
"""


def test_onnx_head(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(mlp_model([np.eye(4, 2)]))

    head = read_onnx_file(path)

    assert (head.ir_version, head.opset, head.external_files) == (8, 17, ())


def test_onnx_external_files(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(
        onnx.load_from_string(mlp_model([np.eye(4, 2)])),
        path,
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )

    assert read_onnx_file(path).external_files == ("weights.bin",)


@pytest.mark.parametrize("content", [b"", b"\x3a\xff\x01x", b"no model at all", b"\xff" * 20])
def test_no_onnx_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)

    with pytest.raises(InvalidArgumentError, match=r"model\.onnx is "):
        read_onnx_file(path)


@pytest.mark.parametrize(
    ("arguments", "names", "required"),
    [
        ("self: __torch__.nets.Net,\n    x: Tensor", ("x",), 1),
        ("s: __torch__.nets.Net,\n    x: Tensor,\n    m: Optional[Tensor]=None", ("x", "m"), 1),
        ("self: __torch__.nets.Net", (), 0),
    ],
)
def test_forward(arguments: str, names: tuple[str, ...], required: int, tmp_path: Path) -> None:
    forward = read_forward(archive(tmp_path, arguments))

    assert (forward.names, forward.required, forward.is_tensor_dict) == (names, required, False)


def test_forward_of_a_dict(tmp_path: Path) -> None:
    path = archive(tmp_path, "self: __torch__.nets.Net,\n    x: Dict[str, Tensor]")

    assert read_forward(path).is_tensor_dict


def archive(tmp_path: Path, arguments: str) -> Path:
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("model/data.pkl", PICKLE)
        file.writestr("model/code/__torch__/nets.py", CODE.replace("{arguments}", arguments))
    return path


def test_no_torchscript(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"x")
    with pytest.raises(InvalidArgumentError, match="no TorchScript archive"):
        read_forward(path)

    with zipfile.ZipFile(path, "w") as file:
        file.writestr("readme", "")
    with pytest.raises(InvalidArgumentError, match="no TorchScript archive"):
        read_forward(path)
    assert not is_exported_program(path)


def test_exported_program(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("model/models/model.json", "{}")

    assert is_exported_program(path)
    assert not is_exported_program(tmp_path / "none.pt2")
