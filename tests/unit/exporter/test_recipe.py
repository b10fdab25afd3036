"""``naiad.toml``: what it may say, and what is told where it says something else."""

from pathlib import Path

import pytest

from naiad.errors import InvalidArgumentError, NotFoundError
from naiad.exporter.options import ExportOptions
from naiad.exporter.recipe import read_recipe
from naiad.inference.comparison import Tolerance

WHOLE = """
repository = "models"
target = "triton:24.10"

[models.text]
source = "nets:make"
args = "nets:example"
format = ["onnx", "torchscript"]
dynamic = { input_ids = ["batch", "tokens"], image = ["batch", "", "height"] }
ranges = { input_ids = [0, 29999] }
tolerances = { FP32 = [1e-3, 1e-4] }
max_batch_size = 16
version = 2
overwrite = true
labels = "labels.txt"
input_names = ["a"]
output_names = ["b"]
opset = 19
optimize = "int8"
golden_batch_sizes = [1, 16]
seed = 3
dynamic_batching = false
instance_count = 2
torchscript = "trace"

[models.image]
repository = "/elsewhere"
source = "weights/image.pt"
class = "nets:Image"
inputs = ["image:FP32:1,3,8,8"]
labels = ["cat", "dog"]
target = ""
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "naiad.toml"
    path.write_text(text)
    return path


def test_a_whole_recipe(tmp_path: Path) -> None:
    text, image = read_recipe(write(tmp_path, WHOLE))
    assert (text.name, text.repository, text.formats) == (
        "text", tmp_path / "models", ("onnx", "torchscript"),
    )  # fmt: skip
    assert (text.source.source, text.source.examples) == ("nets:make", "nets:example")
    assert text.options == ExportOptions(
        dynamic={"input_ids": {0: "batch", 1: "tokens"}, "image": {0: "batch", 2: "height"}},
        ranges={"input_ids": (0.0, 29999.0)},
        tolerances={"FP32": Tolerance(1e-3, 1e-4)},
        max_batch_size=16, version=2, overwrite=True, labels=tmp_path / "labels.txt",
        input_names=("a",), output_names=("b",), opset=19, target="triton:24.10",
        optimize="int8", golden_batch_sizes=(1, 16), seed=3, dynamic_batching=False,
        instance_count=2, torchscript="trace",
    )  # fmt: skip
    assert image.repository == Path("/elsewhere")
    assert image.source.source == str(tmp_path / "weights/image.pt")
    assert (image.source.model_class, image.source.inputs) == (
        "nets:Image", ("image:FP32:1,3,8,8",),
    )  # fmt: skip
    assert (image.formats, image.options.labels, image.options.target) == (
        ("onnx",), ("cat", "dog"), "",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"describes no model: it needs a table such as \[models\.NAME\]"),
        ("[models]\n", "describes no model"),
        ("models = 3", "describes no model"),
        ("[model.a]\nsource = 'x:y'", "there is no key 'model'; did you mean 'models'"),
        ("[models.a]\nrepository = 'r'", r"\[models\.a\] lacks 'source'"),
        ("[models.a]\nsource = 'x:y'", r"\[models\.a\] lacks 'repository'"),
        ("[models.a", "cannot read the recipe"),
        ("{K}max_batchsize = 3", "no key 'max_batchsize'; did you mean 'max_batch_size'"),
        ("{K}zzz = 3", "no key 'zzz'; known are source, "),
        ("{K}version = '3'", "'version' has to be a whole number"),
        ("{K}version = true", "'version' has to be a whole number"),
        ("{K}version = 0", r"\[models\.a\]: version is 0; it must be 1 or more"),
        ("{K}overwrite = 1", "'overwrite' has to be true or false"),
        ("{K}class = 1", "'class' has to be a string"),
        ("{K}inputs = 'x:FP32:1'", "'inputs' has to be a list of strings"),
        ("{K}golden_batch_sizes = [1, 2.0]", "has to be a list of whole numbers"),
        ("{K}dynamic = ['batch']", "'dynamic' has to be a table"),
        ("{K}dynamic = { x = 'batch' }", "a list of names for each input"),
        ("{K}ranges = { x = [1] }", "'ranges' has to be a list of two numbers"),
        ("{K}ranges = { x = [2, 1] }", r"\[models\.a\]: the range of input 'x' ends at 1\.0"),
        ("{K}optimize = 'int4'", "optimize is 'int4'; it must be fp16 or int8"),
        ("{K}opset = 3", "opset is 3; torch writes ONNX from opset 7 on"),
    ],
)
def test_what_no_recipe_says(tmp_path: Path, text: str, message: str) -> None:
    text = text.replace("{K}", "[models.a]\nsource = 'x:y'\nrepository = 'r'\n")
    with pytest.raises(InvalidArgumentError, match=message):
        read_recipe(write(tmp_path, text))


def test_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no recipe"):
        read_recipe(tmp_path / "naiad.toml")
