"""Whatever keeps a model from loading is said in the index, the log, the load and each request."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.external_data_helper import convert_model_to_external_data
from tests.support.python_models import write_model
from tests.support.repository_builder import RepositoryBuilder, add_model, mlp_model

from naiad.backends.registry import BackendRegistry
from naiad.clock import SystemClock
from naiad.engine.engine import Engine, EngineOptions, ModelControlMode
from naiad.engine.loader import Loader, LoaderOptions
from naiad.errors import NaiadError

TENSORS = """input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
CONFIG = f'name: "m" backend: "onnxruntime" max_batch_size: 8\n{TENSORS}'
MODEL = add_model(1)
Write = Callable[[RepositoryBuilder], None]


def ensemble(step: str) -> str:
    """The config of an ensemble of one step."""
    return f"""name: "m" platform: "ensemble" max_batch_size: 8 {TENSORS}
ensemble_scheduling {{ step {{
  model_name: "{step}" model_version: -1
  input_map {{ key: "IN" value: "IN" }} output_map {{ key: "OUT" value: "OUT" }}
}} }}"""


def config(text: str) -> Write:
    """A model whose file is right and whose config isn't."""
    return lambda builder: _add(builder, text)


def files(contents: Mapping[str, bytes], text: str = CONFIG) -> Write:
    """A model whose config is right and whose files aren't."""
    return lambda builder: _discard(builder.add_model("m", text, contents))


def _add(builder: RepositoryBuilder, text: str) -> None:
    builder.add_onnx("m", MODEL, text)


def _discard(_: Path) -> None:
    """Writers give nothing back."""


def not_utf8(builder: RepositoryBuilder) -> None:
    (builder.add_onnx("m", MODEL) / "config.pbtxt").write_bytes(b'name: "\xff"')


def without_versions(builder: RepositoryBuilder) -> None:
    builder.add_model("m", CONFIG, versions=())


def without_external_data(builder: RepositoryBuilder) -> None:
    folder = builder.add_model("m", CONFIG)
    model = onnx.load_from_string(mlp_model([np.ones((64, 64), np.float32)]))
    convert_model_to_external_data(model, location="model.onnx.data", size_threshold=0)
    onnx.save(model, str(folder / "1" / "model.onnx"))
    (folder / "1" / "model.onnx.data").unlink()


def outside_external_data(builder: RepositoryBuilder) -> None:
    without_external_data(builder)
    outside = builder.path.parent / "outside.data"
    outside.write_bytes(b"\0" * 64 * 64 * 4)
    (builder.path / "m" / "1" / "model.onnx.data").symlink_to(outside)


def linked_file(builder: RepositoryBuilder) -> None:
    outside = builder.path.parent / "model.onnx"
    outside.write_bytes(MODEL)
    (builder.add_model("m", CONFIG) / "1" / "model.onnx").symlink_to(outside)


def linked_folder(builder: RepositoryBuilder) -> None:
    outside = RepositoryBuilder(builder.path.parent / "outside")
    _add(outside, CONFIG)
    (builder.path / "m").symlink_to(outside.path / "m")


def broken_step(builder: RepositoryBuilder) -> None:
    builder.add_model("step", None, {"1/model.onnx": b"no model"})
    builder.add_model("m", ensemble("step"))


def python(source: str) -> Write:
    return lambda builder: write_model(builder.path, "m", source)


KINDS: Mapping[str, tuple[Write, str]] = {
    "config doesn't parse": (config("max_batch_size: {"), "config.pbtxt: 1:17: "),
    "unknown field": (config("max_batch_sise: 8"), "max_batch_size"),
    "unknown value": (config(CONFIG.replace("TYPE_FP32", "TYPE_FP23")), "TYPE_FP32"),
    "config isn't text": (not_utf8, "not UTF-8 text"),
    "another name": (config(CONFIG.replace('"m"', '"n"')), "name"),
    "unknown backend": (config(CONFIG.replace("onnxruntime", "onnxruntim")), "onnxruntim"),
    "no version": (without_versions, "at least one version must be available"),
    "policy finds nothing": (
        config(CONFIG + "version_policy { specific { versions: 7 } }"),
        "at least one version must be available",
    ),
    "policy wants none": (
        config(CONFIG + "version_policy { latest { num_versions: 0 } }"),
        "version",
    ),
    "no model file": (files({}), "failed to stat file"),
    "model file of another name": (
        files({"1/resnet18.onnx": MODEL}),
        "failed to stat file",
    ),
    "empty model file": (files({"1/model.onnx": b""}), "model.onnx"),
    "half a model file": (files({"1/model.onnx": MODEL[: len(MODEL) // 2]}), "model.onnx"),
    "no external data": (without_external_data, "model.onnx.data"),
    "external data elsewhere": (outside_external_data, "leads out of the model repository"),
    "link to a file elsewhere": (linked_file, "leads out of the model repository"),
    "link to a folder elsewhere": (linked_folder, "leads out of the model repository"),
    "file name leads elsewhere": (
        config(CONFIG + 'default_model_filename: "../../n/model.onnx"'),
        "is outside of",
    ),
    "label file missing": (
        config(CONFIG.replace('name: "OUT"', 'name: "OUT" label_filename: "labels.txt"')),
        "labels.txt",
    ),
    "label file elsewhere": (
        config(CONFIG.replace('name: "OUT"', 'name: "OUT" label_filename: "../labels.txt"')),
        "is outside model directory",
    ),
    "wrong input name": (config(CONFIG.replace('"IN"', '"INN"')), "INN"),
    "wrong datatype": (config(CONFIG.replace("TYPE_FP32", "TYPE_INT32")), "TYPE_FP32"),
    "wrong rank": (config(CONFIG.replace("[ -1 ]", "[ -1, 3 ]")), "dims"),
    "a GPU": (config(CONFIG + "instance_group { kind: KIND_GPU }"), "KIND_GPU"),
    "warm-up file missing": (
        config(
            CONFIG + 'model_warmup { name: "w" batch_size: 1 inputs { key: "IN" value {'
            ' data_type: TYPE_FP32 dims: 1 input_data_file: "raw" } } }'
        ),
        "raw",
    ),
    "unknown step": (
        lambda builder: _discard(builder.add_model("m", ensemble("nope"))),
        "not available or ambiguous: nope",
    ),
    "broken step": (broken_step, "depends on 'step' which has no loaded version"),
    "step of itself": (
        lambda builder: _discard(builder.add_model("m", ensemble("m"))),
        "circular dependency",
    ),
    "Python that doesn't parse": (python("class TritonPythonModel:"), "model.py, line"),
    "Python without the class": (python("x = 1"), "TritonPythonModel"),
    "Python that raises": (
        python("""
            class TritonPythonModel:
                def initialize(self, args):
                    raise ValueError("no weights here")
        """),
        "no weights here",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_reason_is_everywhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    write, reason = KINDS[kind]
    builder = RepositoryBuilder(tmp_path / "models")
    write(builder)
    engine = Engine(
        EngineOptions("naiad", "1", ModelControlMode.EXPLICIT),
        Loader(LoaderOptions((builder.path,)), BackendRegistry()),
        SystemClock(),
    )
    await engine.start()
    try:
        with pytest.raises(NaiadError) as load:
            await engine.load_model("m", None, {})
        with pytest.raises(NaiadError) as request:
            engine.find("m")
        [line] = [line for line in await engine.index(ready_only=False) if line.name == "m"]
    finally:
        await engine.stop()
    errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    texts = {
        "load": load.value.message,
        "request": request.value.message,
        "index": line.reason,
        "log": "\n".join(errors),
    }
    assert {place for place, text in texts.items() if reason not in text} == set(), texts
    assert line.state == "UNAVAILABLE"
    assert not engine.is_model_ready("m")
