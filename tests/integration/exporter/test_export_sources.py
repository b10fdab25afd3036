"""A model from wherever it lies: files of weights, TorchScript, archives, model directories."""

import importlib
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from naiad.errors import InvalidArgumentError, NaiadError, NotFoundError, UnsupportedError
from naiad.exporter.quiet import quiet
from naiad.source_model.description import SourceDescription
from naiad.source_model.opening import OpenedSource, open_source

pytestmark = pytest.mark.slow

NETS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.second = nn.Linear(3, 2)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))

class Sized(Net):
    def __init__(self, size):
        super().__init__()

def example():
    return torch.ones(1, 4)

def make_number():
    return 3

class Plain:
    pass
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "weights_nets.py").write_text(NETS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("weights_nets", None)


def net(folder: Path) -> nn.Module:
    torch.manual_seed(7)
    made: nn.Module = importlib.import_module("weights_nets").Net()
    return made


def opened(folder: Path, source: str | Path, **settings: Any) -> OpenedSource:
    if "inputs" not in settings and "examples" not in settings:
        settings["inputs"] = ("x:FP32:2,4",)
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    return open_source(SourceDescription(source=str(source), **settings), scratch)


def assert_same(found: OpenedSource, expected: nn.Module) -> None:
    x = torch.randn(3, 4)
    (_, answer), *_ = found.model.run([x])
    assert torch.equal(answer, expected(x))


CLASS = {"model_class": "weights_nets:Net"}


@pytest.mark.parametrize("key", ["", "state_dict", "model_state", "anything"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.module."])
def test_a_state_dict_is_found_below_a_key_and_freed_of_wrappers(
    folder: Path, key: str, prefix: str
) -> None:
    expected = net(folder)
    state = {prefix + name: value for name, value in expected.state_dict().items()}
    torch.save({key: state, "epoch": 3} if key else state, folder / "net.pt")
    found = opened(folder, folder / "net.pt", **CLASS)
    assert_same(found, expected)
    told = " ".join(found.notes)
    assert (f"below the key '{key}'" in told) == bool(key)
    assert (f"'{prefix}' was dropped" in told) == bool(prefix)


def test_of_two_state_dicts_the_one_that_fits_is_taken(folder: Path) -> None:
    expected = net(folder)
    torch.save(
        {"optimizer": {"a": torch.ones(1)}, "ema": expected.state_dict()}, folder / "net.ckpt"
    )
    assert_same(opened(folder, folder / "net.ckpt", **CLASS), expected)


def test_safetensors(folder: Path) -> None:
    expected = net(folder)
    save_file(expected.state_dict(), folder / "net.safetensors")
    assert_same(opened(folder, folder / "net.safetensors", **CLASS), expected)
    (folder / "broken.safetensors").write_bytes(b"nothing")
    with pytest.raises(InvalidArgumentError, match="no safetensors file"):
        opened(folder, folder / "broken.safetensors", **CLASS)


def test_weights_that_the_class_has_not_are_left_out_and_named(folder: Path) -> None:
    expected = net(folder)
    torch.save({**expected.state_dict(), "loss.scale": torch.ones(1)}, folder / "net.pt")
    found = opened(folder, folder / "net.pt", **CLASS)
    assert_same(found, expected)
    assert any("left out: loss.scale" in note for note in found.notes)


def test_torchscript_needs_no_class(folder: Path) -> None:
    expected = net(folder)
    with quiet():
        torch.jit.save(torch.jit.script(expected), folder / "net.pt")
        found = opened(folder, folder / "net.pt")
        assert found.model.input_names == ("x",)
        assert_same(found, expected)
        with pytest.raises(InvalidArgumentError, match="brings its own code: leave --class out"):
            opened(folder, folder / "net.pt", **CLASS)


def test_a_callable_takes_described_inputs(folder: Path) -> None:
    found = opened(folder, "weights_nets:Net", inputs=("x:FP32:2,4",), ranges={"x": (2.0, 3.0)})
    example = found.model.example[0]
    assert example.shape == (2, 4)
    assert bool(((example >= 2) & (example <= 3)).all())


def pickled(folder: Path) -> Path:
    torch.save(net(folder), folder / "whole.pt")
    return folder / "whole.pt"


def other_shapes(folder: Path) -> Path:
    torch.save({**net(folder).state_dict(), "first.weight": torch.ones(3, 5)}, folder / "net.pt")
    return folder / "net.pt"


def fewer(folder: Path) -> Path:
    torch.save({"first.weight": torch.ones(3, 4), "third": torch.ones(1)}, folder / "net.pt")
    return folder / "net.pt"


def plain(folder: Path) -> Path:
    torch.save(net(folder).state_dict(), folder / "net.pt")
    return folder / "net.pt"


def numbers(folder: Path) -> Path:
    torch.save({"epoch": 3, "loss": 0.5}, folder / "net.pt")
    return folder / "net.pt"


def text(folder: Path) -> Path:
    (folder / "net.pth").write_text("not a checkpoint")
    return folder / "net.pth"


def exported(folder: Path) -> Path:
    (folder / "net.onnx").write_bytes(b"")
    return folder / "net.onnx"


@pytest.mark.parametrize(
    ("make", "settings", "error", "message"),
    [
        (lambda f: f / "no.pt", CLASS, NotFoundError, r"there is no file .*no\.pt"),
        (pickled, CLASS, InvalidArgumentError, r"whatever code the file brings.*state_dict\(\)"),
        (pickled, {}, InvalidArgumentError, r"whatever code the file brings"),
        (plain, {}, InvalidArgumentError, r"name the class .* --class MODULE:CLASS"),
        (plain, {**CLASS, "inputs": ()}, InvalidArgumentError, r"no example inputs.*--input NAME"),
        (plain, {"model_class": "weights_nets:Sized"}, InvalidArgumentError, "arguments size"),
        (plain, {"model_class": "weights_nets:Plain"}, InvalidArgumentError, r"no torch\.nn\.Mod"),
        (plain, {"model_class": "weights_nets:make_number"}, InvalidArgumentError, "a int, not"),
        (plain, {"model_class": "weights_nets:Lost"}, NotFoundError, "has no 'Lost'"),
        (other_shapes, CLASS, InvalidArgumentError, r"first\.weight \[3, 5\] instead of \[3, 4\]"),
        (fewer, CLASS, InvalidArgumentError, r"lacks: first\.bias.*; has besides: third"),
        (numbers, CLASS, InvalidArgumentError, "without a state dict in it; its keys are epoch"),
        (text, CLASS, InvalidArgumentError, "is no checkpoint of torch|whatever code"),
        (lambda f: f / "weights_nets.py", {}, InvalidArgumentError, r"code.*as weights_nets:build"),
        (exported, {}, InvalidArgumentError, r"is exported already.*naiad check --fix"),
        (lambda f: f, {}, InvalidArgumentError, r"without a config\.json"),
        (lambda f: "weights_nets:Net", CLASS, InvalidArgumentError, "--class says what a file"),
        (
            plain, {**CLASS, "examples": "weights_nets:example", "inputs": ("x:FP32:1",)},
            InvalidArgumentError, "given twice",
        ),
        (plain, {**CLASS, "inputs": ("x:FP32",)}, InvalidArgumentError, "NAME:DATATYPE:SHAPE"),
        (plain, {**CLASS, "inputs": ("x:FP31:1",)}, InvalidArgumentError, "said to be FP31"),
    ],
)  # fmt: skip
def test_what_is_no_model_is_told_with_what_to_do(
    folder: Path, make: Any, settings: dict[str, Any], error: type[NaiadError], message: str
) -> None:
    with pytest.raises(error, match=message):
        opened(folder, make(folder), **settings)


# --- TorchServe ----------------------------------------------------------------------------------

MODEL = "import torch\nfrom torch import nn\nfrom sizes import WIDTH\n" + NETS.partition(
    "class Sized"
)[0].partition("from torch import nn\n")[2].replace("nn.Linear(4, 3)", "nn.Linear(4, WIDTH)")


def archive(folder: Path, files: dict[str, str | Path], **manifest: str) -> Path:
    path = folder / "net.mar"
    with zipfile.ZipFile(path, "w") as written:
        written.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": manifest}))
        for name, content in files.items():
            if isinstance(content, Path):
                written.write(content, name)
            else:
                written.writestr(name, content)
    return path


EAGER = {"serializedFile": "net.pt", "modelFile": "net.py"}


def eager(folder: Path, handler: str = "image_classifier", code: str = "") -> Path:
    files: dict[str, str | Path] = {
        "net.py": MODEL, "sizes.py": "WIDTH = 3", "net.pt": plain(folder),
        "index_to_name.json": json.dumps({"0": ["n01", "cat"], "1": "dog"}),
    }  # fmt: skip
    return archive(folder, files | ({"handler.py": code} if code else {}), handler=handler, **EAGER)


def test_an_eager_archive_brings_its_class_weights_and_labels(folder: Path) -> None:
    found = opened(folder, eager(folder))
    assert_same(found, net(folder))
    assert found.labels == ("cat", "dog")
    assert any("image_classifier decodes, resizes to 256" in note for note in found.notes)


def test_an_archive_of_torchscript(folder: Path) -> None:
    with quiet():
        torch.jit.save(torch.jit.script(net(folder)), folder / "script.pt")
        path = archive(
            folder, {"net.pt": folder / "script.pt"}, handler="base_handler",
            serializedFile="net.pt",
        )  # fmt: skip
        assert_same(opened(folder, path), net(folder))


def test_what_a_handler_does_around_the_model_is_told(folder: Path) -> None:
    code = "class H:\n    def preprocess(self, data):\n        return data\n"
    found = opened(folder, eager(folder, "handler.py:H", code))
    assert any("preprocess() of the archive's handler (handler.py, line 2)" in n
               for n in found.notes)  # fmt: skip


@pytest.mark.parametrize(
    ("method", "line"), [("def initialize(self, context)", 3), ("async def handle(data, ctx)", 3)]
)
def test_a_handler_that_makes_or_runs_the_model_is_refused(
    folder: Path, method: str, line: int
) -> None:
    code = f"class H:\n    pass\n{method}:\n    return None\n"
    with pytest.raises(UnsupportedError, match=rf"\(\) in line {line}: what is served.*MODULE:CAL"):
        opened(folder, eager(folder, "handler", code))


def test_archives_that_hold_no_torch_model(folder: Path) -> None:
    weights = plain(folder)
    for files, manifest, message in (
        ({}, {"handler": "mine"}, "handler 'mine' is neither in the archive nor one of"),
        ({}, {"handler": "base_handler", **EAGER}, "serializedFile .* 'net.pt', and no such file"),
        ({"net.pt": weights}, {"handler": "base_handler", "serializedFile": "net.pt"},
         "has no modelFile.*--class MODULE:CLASS"),
        ({"m.onnx": "x"}, {"handler": "base_handler", "serializedFile": "m.onnx"}, "is the ONNX"),
        ({"net.pt": weights, "net.py": "x = 1"}, {"handler": "base_handler", **EAGER}, "none"),
        ({"net.pt": weights, "net.py": "1/0"}, {"handler": "base_handler", **EAGER}, "ZeroDivis"),
        ({"x": "", "../../outside": "x"}, {"handler": "base_handler",
         "serializedFile": "../../outside"}, "no such file is in the archive"),
    ):  # fmt: skip
        with pytest.raises(NaiadError, match=message):
            opened(folder, archive(folder, files, **manifest))  # type: ignore[arg-type]
    (folder / "text.mar").write_text("no zip")
    with pytest.raises(InvalidArgumentError, match="no model archive of TorchServe"):
        opened(folder, folder / "text.mar")


# --- transformers --------------------------------------------------------------------------------


def bert(folder: Path, **settings: Any) -> Path:
    import transformers  # noqa: PLC0415  # seconds, for these tests alone

    torch.manual_seed(1)
    sizes: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 8, "vocab_size": 20}  # fmt: skip
    config = transformers.BertConfig(**sizes, **settings)
    model = transformers.BertForSequenceClassification(config)
    model.save_pretrained(folder / "bert")
    return folder / "bert"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_directory_brings_example_axes_ranges_and_labels(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = bert(folder, id2label={0: "bad", 1: "good"}, label2id={"bad": 0, "good": 1})
    capfd.readouterr()
    found = opened(folder, path, inputs=())
    # No progress bar of transformers.
    assert "Loading" not in capfd.readouterr().err
    assert found.model.input_names == ("input_ids", "attention_mask")
    assert found.labels == ("bad", "good")
    assert found.dynamic["input_ids"] == {0: "batch", 1: "tokens"}
    assert found.ranges["input_ids"] == (0, 19)
    outputs = found.model.run(found.model.example)
    assert [(name, tuple(tensor.shape)) for name, tensor in outputs] == [("logits", (1, 2))]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_directory_without_all_weights_is_refused(folder: Path) -> None:
    path = bert(folder)
    settings = json.loads((path / "config.json").read_text())
    for wrong, message in (
        (["BertForTokenClassification", "x"], "would fill them with random numbers|lack"),
        (["NoSuchModel"], "holds a NoSuchModel, which transformers"),
    ):
        state = {"classifier.bias": torch.ones(2)}
        save_file(state, path / "model.safetensors", metadata={"format": "pt"})
        (path / "config.json").write_text(json.dumps(settings | {"architectures": wrong}))
        with pytest.raises(NaiadError, match=message):
            opened(folder, path, inputs=())


def test_without_transformers_the_package_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'naiad\[huggingface\]'"):
        opened(folder, folder / "model", inputs=())
