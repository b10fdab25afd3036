"""What the server says of a model that does not load: Triton's text, then what to change where."""

import asyncio
import itertools
import json
import logging
import re
from pathlib import Path

import pytest
from tests.integration.check.test_broken_repositories import (
    CASES,
    MLP,
    PARAMETERS,
    Case,
    config,
    external,
)
from tests.support.repository_builder import RepositoryBuilder

from naiad.backends.registry import BackendRegistry
from naiad.clock import SystemClock
from naiad.engine.engine import Engine, EngineOptions, IndexEntry, ModelControlMode
from naiad.engine.loader import Loader, LoaderOptions
from naiad.errors import NaiadError, NotFoundError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
]

# These load: what is wrong with them shows when they run, or to whoever wants more than a load.
LOADS = {
    "a Python model's names",
    "a Python model's output dims",
    "batch axis shown by an example",
    "batch axis written twice, says the model",
    "batch axis probably written twice",
    "datatypes of a TorchScript model",
    "TorchScript names without an index",
    "rank of a TorchScript output",
    "a batch of 1 baked into TorchScript",
    "opset and IR newer than the target",
    "a label file of another length",
}
# One field of a config that has more to say than there is room for.
WIDE = 40


def make_engine(path: Path, **options: object) -> Engine:
    loader = Loader(LoaderOptions((path,), **options), BackendRegistry())  # type: ignore[arg-type]
    return Engine(EngineOptions("naiad", "1", ModelControlMode.EXPLICIT), loader, SystemClock())


async def fail(
    path: Path, config_json: str | None = None, **options: object
) -> tuple[str, IndexEntry, str]:
    """The answer of a failing load, the line of the index, and the answer to a request."""
    engine = make_engine(path, **options)
    await engine.start()
    try:
        with pytest.raises(NaiadError) as loading:
            await asyncio.wait_for(engine.load_model("m", config_json, {}), 60)
        (line,) = [line for line in await engine.index(ready_only=False) if line.name == "m"]
        with pytest.raises(NotFoundError) as asking:
            engine.find("m")
    finally:
        await engine.stop()
    return loading.value.message, line, asking.value.message


@pytest.mark.parametrize("case", PARAMETERS)
async def test_a_load_says_what_the_check_finds(
    case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "models"
    case.build(RepositoryBuilder(path))
    if case.id in LOADS:
        engine = make_engine(path)
        await engine.start()
        await asyncio.wait_for(engine.load_model("m", None, {}), 60)
        await engine.stop()
        return
    with caplog.at_level(logging.ERROR, logger="naiad"):
        answer, line, refusal = await fail(path)
    text, newline, advice = answer.partition(f"\n{path}/m/")
    assert newline, answer
    place, found_there, *_ = advice.splitlines()
    assert re.fullmatch(r"(config\.pbtxt|\d+/\S+):\d+:\d+", place)
    assert re.match(r"\[[a-z-]+\] ", found_there)
    found = {code for code, _ in case.found}
    named = [code for code in found if f"[{code}]" in advice]
    assert named, answer
    assert line.reason.startswith(f"{line.cause}\n{path}/m/")
    assert line.reason.rstrip().endswith(advice.rstrip())
    assert text
    # Who asks the model is told why, and not how the server's files are to be changed.
    assert "It failed to load: " in refusal
    assert f"[{named[0]}]" not in refusal
    assert any(record.getMessage().endswith(advice.rstrip()) for record in caplog.records)


def test_what_loads_is_among_the_cases() -> None:
    assert {case.id for case in CASES} > LOADS


async def test_an_override_is_answered_in_its_own_language(tmp_path: Path) -> None:
    RepositoryBuilder(tmp_path).add_onnx("m", MLP, config())
    override = {
        "backend": "onnxruntime",
        "max_batch_size": 8,
        "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1, 16]}],
        "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [5]}],
        "dynamic_batching": {"preferred_batch_size": [4]},
    }
    answer, line, _ = await fail(tmp_path, json.dumps(override))
    _, place, advice = answer.partition("\nthe config of the load request: input[0].dims\n")
    assert place, answer
    assert advice.startswith("[batch-axis-in-dims] The input 'IN' has the dims [-1, 16].\n")
    _, _, block = advice.partition("Corrected:\n")
    assert json.loads("{" + block + "}") == {
        "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [16]}]
    }
    assert advice.rstrip() in line.reason


async def test_several_faults_in_an_odd_text(tmp_path: Path) -> None:
    text = (
        'name:"m",backend:"onnxruntime";# what [ a } comment\r\n'
        "max_batch_size:8\r\n"
        "input<name:'IN' # {\r\n"
        "  data_type:TYPE_INT32,dims:[-1,\r\n16]>\r\n"
        'output{name:"OU" "T" data_type:TYPE_FP32 dims:-1 dims:5}\r\n'
        "instance_group{kind:KIND_GPU}"
    )
    folder = RepositoryBuilder(tmp_path).add_onnx("m", MLP)
    (folder / "config.pbtxt").write_bytes(text.encode())
    answer, _, _ = await fail(tmp_path)
    lines = answer.splitlines()
    found = [
        (place.removeprefix(f"{folder}/config.pbtxt:"), code.partition("]")[0][1:])
        for place, code in itertools.pairwise(lines)
        if place.startswith(f"{folder}/config.pbtxt:")
    ]
    assert found == [
        ("7:16", "no-gpu"),
        ("4:3", "datatype-differs"),
        ("4:24", "batch-axis-in-dims"),
        ("6:42", "batch-axis-in-dims"),
    ]


async def test_missing_weights_are_named_with_their_place(tmp_path: Path) -> None:
    external("../model.onnx.data")(RepositoryBuilder(tmp_path / "models"))
    answer, _, _ = await fail(tmp_path / "models")
    assert answer.startswith(
        "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: onnx runtime error"
    )
    folder = tmp_path / "models" / "m" / "1"
    assert f"\n{folder / 'model.onnx'}:1:1\n[external-data] " in answer
    assert f"\n  mv .../model.onnx.data {folder / 'model.onnx.data'}\n" in answer


async def test_a_model_that_may_use_the_cpu_is_not_told_to(tmp_path: Path) -> None:
    text = config("instance_group { kind: KIND_GPU gpus: 0 }", types=("TYPE_INT32", "TYPE_FP32"))
    RepositoryBuilder(tmp_path).add_onnx("m", MLP, text)
    answer, _, _ = await fail(tmp_path, is_gpu_replaced=True)
    assert "[datatype-differs]" in answer
    assert "gpu" not in answer.lower()


async def test_what_a_config_says_wrongly_is_pointed_at(tmp_path: Path) -> None:
    """Where no finding is about it, Triton's text says what, and its place is known."""
    text = config("sequence_batching { control_input { name: 'START' } }").replace(
        "dims: [ 16 ]", "dims: [ 16 ]\n    format: FORMAT_NHWC"
    )
    folder = RepositoryBuilder(tmp_path).add_onnx("m", MLP, config())
    (folder / "config.pbtxt").write_text(text.partition("sequence_batching")[0])
    answer, _, _ = await fail(tmp_path)
    assert "model input NHWC/NCHW require 3 dims for m" in answer
    assert f"\n{folder}/config.pbtxt:5:1\n[load-failed] " in answer


async def test_an_answer_stays_short(tmp_path: Path) -> None:
    """GRPC carries it in a header."""
    text = "".join(f"input {{ name: 'X{i}' data_type: TYPE_FP32 dims: 1 }}\n" for i in range(WIDE))
    folder = RepositoryBuilder(tmp_path).add_onnx("m", MLP, config() + text)
    answer, _, _ = await fail(tmp_path)
    assert len(answer) < 3000
    assert f"\n{WIDE - 4} more findings are not shown here.\n" in answer
    assert answer.endswith(f"\nTo have it corrected: naiad check {folder.parent} m --fix\n")


async def test_a_large_model_is_not_read_again_to_explain_why_it_did_not_load(
    tmp_path: Path,
) -> None:
    text = config(types=("TYPE_INT32", "TYPE_FP32"))
    folder = RepositoryBuilder(tmp_path).add_onnx("m", MLP, text)
    small, _, _ = await fail(tmp_path)
    with (folder / "1" / "weights.bin").open("wb") as file:
        file.truncate(1 << 30)
    large, _, _ = await fail(tmp_path)
    # From the file the block, from the error alone where it is about.
    assert "model.onnx has TYPE_FP32" in small
    assert "model.onnx has" not in large
    assert f"\n{folder}/config.pbtxt:" in large


async def test_the_error_of_a_load_is_short_however_much_the_model_says(tmp_path: Path) -> None:
    """It is kept, listed in the index, and told to everyone who asks the model."""
    text = config().replace("dims: [ 5 ]", f"dims: [ {'5, ' * 100_000} 5 ]  {{")
    RepositoryBuilder(tmp_path).add_onnx("m", MLP, text)
    answer, line, refusal = await fail(tmp_path)
    assert "failed to read text proto from" in answer
    assert "characters are left out" in answer
    assert f"\n{tmp_path}/m/config.pbtxt:" in answer
    assert max(len(answer), len(line.reason), len(refusal)) < 6000
