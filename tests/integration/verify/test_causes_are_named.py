"""Exports with seeded faults, on several models: verify names each, and both of two."""

import json
import shutil
import warnings
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from tests.support import faulty_exports as faulty
from tests.support.faulty_exports import asking, reading
from torch import nn

import naiad
from naiad.exporter.options import ExportOptions
from naiad.repository.golden import MANIFEST_NAME, digest_files, read_manifest
from naiad.source_model.description import SourceDescription
from naiad.verify.explanation import Cause
from naiad.verify.report import ModelReport, Verdict
from naiad.verify.server_process import ServerProcess
from naiad.verify.verification import VerifyOptions, verify_repository

pytestmark = pytest.mark.slow

Change = Callable[[nn.Module], nn.Module]
Fault = Change | None


def both(one: Change, other: Change) -> Change:
    return lambda model: other(one(model))


def first(tensors: torch.Tensor, index: int = 0) -> torch.Tensor:
    """Only the row at the index, as often as there are rows: what mixing makes of a batch."""
    return tensors[index : index + 1].expand_as(tensors)


class LastOfTies(nn.Module):
    """The last of equal values wins, where torch's argmax takes the first."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.model.weight
        assert isinstance(weight, torch.Tensor)
        scores = torch.round(x @ weight.T)
        return (scores.shape[1] - 1 - scores.flip(1).argmax(1)).unsqueeze(-1)


class OtherOrder(nn.Module):
    """The same sums in another order."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.model.weight
        assert isinstance(weight, torch.Tensor)
        order = torch.arange(63, -1, -1)
        large = (x * 1e5)[:, order]
        return (large @ weight[order]) - (large @ (weight[order] + 1e-6))


SWAPPED = asking(lambda a, b: (b, a))
OUTPUTS_SWAPPED = reading(lambda a, b: (b, a))
BATCH_NORM = faulty.trained(nn.BatchNorm2d)
TRANSPOSED = reading(lambda y: y.transpose(2, 3))
TO_FIRST = asking(lambda x: (x.permute(0, 3, 1, 2),))
CHANNELS_LAST = asking(
    lambda x: (x.reshape(-1, x.shape[2], x.shape[3], x.shape[1]).permute(0, 3, 1, 2),)
)
BAKED_KEY = faulty.detector()[1][1][[0]]
TO_LAST = partial(torch.permute, dims=(0, 2, 3, 1))
REINTERPRETED = reading(lambda y: y.permute(0, 2, 3, 1).reshape(y.shape))
MIXED = reading(lambda y: y + 0.1 * (y.mean(0, keepdim=True) - y))

FAULTS: dict[str, tuple[str, Fault, set[Cause]]] = {
    "batch norm in train mode": ("conv_net", BATCH_NORM, {Cause.TRAIN_MODE}),
    "dropout in train mode": ("conv_net", faulty.trained(nn.Dropout), {Cause.TRAIN_MODE}),
    "all in train mode": ("conv_net", faulty.trained(), {Cause.TRAIN_MODE}),
    "dropout of an encoder": ("encoder", faulty.trained(), {Cause.TRAIN_MODE}),
    "inputs swapped": ("detector", SWAPPED, {Cause.SWAPPED_INPUTS}),
    "outputs swapped": ("detector", OUTPUTS_SWAPPED, {Cause.OUTPUT_ORDER}),
    "input cast to integers": (
        "conv_net",
        asking(lambda x: (x.to(torch.int64).float(),)),
        {Cause.WRONG_DATATYPE},
    ),
    "output cast to integers": (
        "flow",
        reading(lambda y: (y * 1).to(torch.int32).float()),
        {Cause.WRONG_DATATYPE},
    ),
    "output in FP64": ("conv_net", reading(lambda y: y.double()), {Cause.WRONG_DATATYPE}),
    "FP64 answers narrowed": ("doubled", reading(lambda y: y.float()), {Cause.WRONG_DATATYPE}),
    "token ids as bytes": (
        "encoder",
        asking(lambda ids: ((ids > 0).long(),)),
        {Cause.WRONG_DATATYPE},
    ),
    "batch fixed": (
        "conv_net",
        asking(lambda x: (x.reshape(2, 3, 8, 8),)),
        {Cause.LOST_DYNAMIC_DIM},
    ),
    "tokens fixed": (
        "encoder",
        asking(lambda ids: (ids.reshape(-1, 7) + ids * 0,)),
        {Cause.LOST_DYNAMIC_DIM},
    ),
    "a decision baked": ("gate", None, {Cause.BAKED_CONSTANT}),
    "an input baked": (
        "detector",
        asking(lambda a, b: (a, BAKED_KEY + 0 * b)),
        {Cause.BAKED_CONSTANT},
    ),
    "rows mixed": ("conv_net", MIXED, {Cause.BATCH_MIXING}),
    "rows mixed, and wrong alone": (
        "conv_net",
        reading(lambda y: y + 0.1 * y.mean(0, keepdim=True)),
        {Cause.BATCH_MIXING},
    ),
    "only the first row": (
        "detector",
        reading(lambda a, b: (first(a), first(b))),
        {Cause.BATCH_MIXING},
    ),
    "last of tied indices": (
        "labeler",
        LastOfTies,
        {Cause.TIE_ORDER},
    ),
    "weights in FP16": ("conv_net", faulty.rounded_to_half, {Cause.ROUNDING}),
    "computed in FP16": ("encoder", faulty.computed_in_half, {Cause.ROUNDING}),
    "weights in INT8": ("conv_net", faulty.quantised, {Cause.ROUNDING}),
    "weights in INT8, an encoder": ("encoder", faulty.quantised, {Cause.ROUNDING}),
    "float noise": ("unstable", OtherOrder, {Cause.FLOAT_NOISE}),
    "NaN": (
        "conv_net",
        reading(lambda y: torch.where(y > 0.2, torch.full_like(y, torch.nan), y)),
        {Cause.NON_FINITE},
    ),
    "infinity": (
        "flow",
        reading(lambda y: torch.where(y > 0.5, torch.full_like(y, torch.inf), y)),
        {Cause.NON_FINITE},
    ),
    "output transposed": ("flow", TRANSPOSED, {Cause.TRANSPOSED_LAYOUT}),
    "output reinterpreted": ("flow", REINTERPRETED, {Cause.TRANSPOSED_LAYOUT}),
    "output as rows": ("encoder", reading(lambda y: y.transpose(0, 1)), {Cause.TRANSPOSED_LAYOUT}),
    "input read channels last": ("flow", CHANNELS_LAST, {Cause.TRANSPOSED_LAYOUT}),
    "input wanted channels last": ("flow", TO_FIRST, {Cause.TRANSPOSED_LAYOUT}),
    "batch norm over rows": ("tabular", faulty.trained(), {Cause.TRAIN_MODE}),
    "batch norm of clips": ("clip", faulty.trained(), {Cause.TRAIN_MODE}),
    "dropout between layers": ("recurrent", faulty.trained(), {Cause.TRAIN_MODE}),
    "three inputs rotated": (
        "triple",
        asking(lambda anchor, near, far: (far, anchor, near)),
        {Cause.SWAPPED_INPUTS},
    ),
    "two of three inputs swapped": (
        "triple",
        asking(lambda anchor, near, far: (anchor, far, near)),
        {Cause.SWAPPED_INPUTS},
    ),
    "a constant that is no example's": (
        "scaled",
        asking(lambda x, scale: (x, torch.full_like(scale, 2.0))),
        {Cause.BAKED_CONSTANT},
    ),
    "rows lose their mean": (
        "tabular",
        reading(lambda y: y - y.mean(0, keepdim=True)),
        {Cause.BATCH_MIXING},
    ),
    "rows in reverse": ("tabular", reading(lambda y: y.flip(0)), {Cause.BATCH_MIXING}),
    "rows one late": (
        "recurrent",
        reading(lambda steps, last: (steps.roll(1, 0), last.roll(1, 0))),
        {Cause.BATCH_MIXING},
    ),
    "steps fixed": (
        "recurrent",
        asking(lambda x: (x.reshape(-1, 6, 5),)),
        {Cause.LOST_DYNAMIC_DIM},
    ),
    "steps before the batch": (
        "recurrent",
        reading(lambda steps, last: (steps.transpose(0, 1), last)),
        {Cause.TRANSPOSED_LAYOUT},
    ),
    "clips channels last": (
        "clip",
        reading(lambda y: y.permute(0, 2, 3, 4, 1)),
        {Cause.TRANSPOSED_LAYOUT},
    ),
    "computed in BF16": (
        "tabular",
        lambda model: faulty.Wrapped(
            model.bfloat16(), lambda x: (x.bfloat16(),), lambda y: y.float()
        ),
        {Cause.ROUNDING},
    ),
    "zero instead of NaN": (
        "clip",
        reading(lambda y: torch.where(y == 0, torch.full_like(y, torch.nan), y)),
        {Cause.NON_FINITE},
    ),
    "input in FP16": (
        "tabular",
        asking(lambda x: (x.half().float(),)),
        {Cause.WRONG_DATATYPE},
    ),
    "input as rounded pixels": (
        "scaled",
        asking(lambda x, scale: (x, (scale * 255).round().clamp(0, 255).byte() / 255)),
        {Cause.WRONG_DATATYPE},
    ),
    "input as pixels cut off": (
        "gate",
        both(faulty.trained(), asking(lambda x: ((x.clamp(0, 1) * 255).byte() / 255,))),
        {Cause.WRONG_DATATYPE, Cause.BAKED_CONSTANT},
    ),
    "a layer of zeros": ("conv_net", faulty.without_layer("conv"), {Cause.OTHER_WEIGHTS}),
    "a layer of zeros in an encoder": (
        "encoder",
        faulty.without_layer("inner"),
        {Cause.OTHER_WEIGHTS},
    ),
    "weights of another epoch": ("tabular", faulty.of_another_epoch, {Cause.OTHER_WEIGHTS}),
    # Two at once
    "weights of another epoch and swapped inputs": (
        "detector",
        both(faulty.of_another_epoch, SWAPPED),
        {Cause.OTHER_WEIGHTS, Cause.SWAPPED_INPUTS},
    ),
    "weights of another epoch and batch norm": (
        "conv_net",
        both(faulty.of_another_epoch, BATCH_NORM),
        {Cause.OTHER_WEIGHTS, Cause.TRAIN_MODE},
    ),
    "train mode and rows in reverse": (
        "tabular",
        both(faulty.trained(), reading(lambda y: y.flip(0))),
        {Cause.TRAIN_MODE, Cause.BATCH_MIXING},
    ),
    "INT8 and output order": (
        "triple",
        both(faulty.quantised, reading(lambda pull, push: (push, pull))),
        {Cause.ROUNDING, Cause.OUTPUT_ORDER},
    ),
    "batch norm and channels last": (
        "clip",
        both(faulty.trained(), reading(lambda y: y.permute(0, 2, 3, 4, 1))),
        {Cause.TRAIN_MODE, Cause.TRANSPOSED_LAYOUT},
    ),
    "train mode and layout": (
        "conv_net",
        both(BATCH_NORM, CHANNELS_LAST),
        {Cause.TRAIN_MODE, Cause.TRANSPOSED_LAYOUT},
    ),
    "swapped inputs and outputs": (
        "detector",
        both(SWAPPED, OUTPUTS_SWAPPED),
        {Cause.SWAPPED_INPUTS, Cause.OUTPUT_ORDER},
    ),
    "swapped inputs and INT8": (
        "detector",
        both(faulty.quantised, SWAPPED),
        {Cause.SWAPPED_INPUTS, Cause.ROUNDING},
    ),
    "train mode and FP16": (
        "conv_net",
        both(faulty.rounded_to_half, BATCH_NORM),
        {Cause.TRAIN_MODE, Cause.ROUNDING},
    ),
    "layout and NaN": (
        "flow",
        both(
            reading(lambda y: torch.where(y > 0.5, torch.full_like(y, torch.nan), y)),
            reading(lambda y: y.permute(0, 2, 3, 1)),
        ),
        {Cause.TRANSPOSED_LAYOUT, Cause.NON_FINITE},
    ),
    "dropout and transposed output": (
        "encoder",
        both(faulty.trained(), reading(lambda y: y.transpose(1, 2))),
        {Cause.TRAIN_MODE, Cause.TRANSPOSED_LAYOUT},
    ),
    "batch fixed and swapped inputs": (
        "detector",
        asking(lambda a, b: (b.reshape(2, 5, 4), a)),
        {Cause.LOST_DYNAMIC_DIM, Cause.SWAPPED_INPUTS},
    ),
}


# Without --source: what the file itself tells.
WITHOUT_SOURCE: dict[str, tuple[str, Fault, set[Cause]]] = {
    "batch norm": ("conv_net", BATCH_NORM, {Cause.TRAIN_MODE}),
    "dropout": ("encoder", faulty.trained(), {Cause.TRAIN_MODE}),
    "batch norm over rows": ("tabular", faulty.trained(), {Cause.TRAIN_MODE}),
    "dropout between layers": ("recurrent", faulty.trained(), {Cause.TRAIN_MODE}),
    "all of it": ("conv_net", faulty.trained(), {Cause.TRAIN_MODE}),
    "dropout and transposed output": (
        "encoder",
        both(faulty.trained(), reading(lambda y: y.transpose(1, 2))),
        {Cause.TRAIN_MODE, Cause.TRANSPOSED_LAYOUT},
    ),
    "another fault": ("encoder", faulty.without_layer("inner"), {Cause.UNEXPLAINED}),
}

# The same of files that are no TorchScript. onnxruntime leaves a dropout out unless it comes last.
DROPOUT_AT_THE_END = both(reading(nn.Dropout(0.4)), faulty.trained(nn.Dropout))
Form = Literal["onnx", "pt2"]
WRITERS: dict[str, tuple[Form, Callable[..., None]]] = {
    "onnx": ("onnx", faulty.write_onnx),
    "pt2": ("pt2", faulty.write_program),
    "core pt2": ("pt2", faulty.write_core_program),
}
IN_TRAIN_MODE: dict[str, tuple[str, str, Change]] = {
    f"{kind} of {writer}": (writer, name, fault)
    for writer in WRITERS
    for kind, (name, fault) in {
        "batch norm": ("conv_net", BATCH_NORM),
        "dropout": ("conv_net", DROPOUT_AT_THE_END),
        "everything": ("conv_net", faulty.trained()),
        "batch norm over rows": ("tabular", faulty.trained()),
    }.items()
}

# What no experiment shows must not get a name: a blunt experiment would give it one.
UNEXPLAINED: dict[str, tuple[str, Fault]] = {
    "outputs doubled": ("encoder", reading(lambda y: 2 * y)),
    "outputs one percent off": ("tabular", reading(lambda y: 1.01 * y)),
    "an output off by a constant": ("triple", reading(lambda pull, push: (pull, push + 0.5))),
}

# One for each cause and one pair; make test-all has all of them.
SAMPLE = {
    "batch norm in train mode", "dropout of an encoder", "inputs swapped", "outputs swapped",
    "input cast to integers", "tokens fixed", "a decision baked", "a constant that is no example's",
    "rows mixed", "last of tied indices", "weights in FP16", "float noise", "NaN",
    "clips channels last", "train mode and layout", "outputs one percent off", "a layer of zeros",
    "input as rounded pixels", "dropout and transposed output", "another fault",
    "each its own fault", "batch norm of onnx", "dropout of onnx", "everything of pt2",
    "dropout of core pt2",
}  # fmt: skip


def sampled(labels: Iterable[str]) -> list[Any]:
    return [
        pytest.param(label, marks=() if label in SAMPLE else pytest.mark.full) for label in labels
    ]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with every model, as TorchScript."""
    repository = tmp_path_factory.mktemp("models")
    for name, make in faulty.MODELS.items():
        model, example = make()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            naiad.export(
                model,
                example,
                name=name,
                repository=repository,
                format="torchscript",
                options=ExportOptions(dynamic=faulty.DYNAMIC.get(name, {}), torchscript="auto"),
            )
    return repository


def run(repository: Path, name: str, *, has_source: bool = True) -> ModelReport:
    source = SourceDescription(source=f"tests.support.faulty_exports:{name}")
    options = VerifyOptions(
        repository, (name,), source=source if has_source else None, is_served=False
    )
    report = verify_repository(options)
    (found,) = report.models
    return found


def damage(exported: Path, folder: Path, name: str, fault: Fault) -> Path:
    """A copy of one model whose file has the fault, with hashes that say nothing of it."""
    shutil.copytree(exported / name, folder / name)
    version = folder / name / "1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        change = TO_LAST if fault is TO_FIRST else None
        faulty.trace(name, fault, change).save(str(version / "model.pt"))
    rehash(version)
    return folder


def rehash(version: Path) -> None:
    """Make the manifest agree with the files, so that the hashes give nothing away."""
    path = version / MANIFEST_NAME
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["files"] = digest_files(version)
    path.write_text(json.dumps(manifest), encoding="utf-8")


@pytest.mark.parametrize("label", sampled(FAULTS))
def test_a_seeded_fault_is_named(exported: Path, tmp_path: Path, label: str) -> None:
    name, fault, causes = FAULTS[label]
    report = run(damage(exported, tmp_path, name, fault), name)
    assert {found.cause for found in report.causes} == causes, [f.sentence for f in report.causes]


@pytest.mark.parametrize("label", sampled(WITHOUT_SOURCE))
def test_without_a_source_the_file_tells_of_train_mode(
    exported: Path, tmp_path: Path, label: str
) -> None:
    name, fault, causes = WITHOUT_SOURCE[label]
    report = run(damage(exported, tmp_path, name, fault), name, has_source=False)
    assert {found.cause for found in report.causes} == causes, [f.sentence for f in report.causes]


@pytest.fixture(scope="module")
def exported_as(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Form], Path]:
    """A repository with one model in one format, made when it is first asked for."""

    @cache
    def make(name: str, form: Form) -> Path:
        repository = tmp_path_factory.mktemp(form)
        model, example = faulty.MODELS[name]()
        naiad.export(model, example, name=name, repository=repository, format=form)
        return repository

    return make


@pytest.mark.parametrize("label", sampled(IN_TRAIN_MODE))
def test_without_a_source_other_files_tell_of_train_mode(
    exported_as: Callable[[str, Form], Path], tmp_path: Path, label: str
) -> None:
    writer, name, fault = IN_TRAIN_MODE[label]
    form, write = WRITERS[writer]
    shutil.copytree(exported_as(name, form) / name, tmp_path / name)
    version = tmp_path / name / "1"
    model, (example,) = faulty.MODELS[name]()
    (tensor,) = read_manifest(version).inputs
    write(fault(model), example, version / f"model.{form}", tensor.name)
    rehash(version)
    report = run(tmp_path, name, has_source=False)
    (found,) = report.causes
    assert found.cause == Cause.TRAIN_MODE, found.sentence
    assert {row.verdict for row in report.rows} == {Verdict.DIFFERENT}


@pytest.mark.parametrize("label", sampled(UNEXPLAINED))
def test_what_no_experiment_shows_is_called_unexplained(
    exported: Path, tmp_path: Path, label: str
) -> None:
    name, fault = UNEXPLAINED[label]
    report = run(damage(exported, tmp_path, name, fault), name)
    (found,) = report.causes
    assert found.cause == Cause.UNEXPLAINED, found.sentence
    assert "max abs" in found.sentence


SERVED: dict[str, tuple[str, Fault, Fault, list[tuple[str, Cause]]]] = {
    "each its own fault": (
        "detector",
        SWAPPED,
        both(SWAPPED, OUTPUTS_SWAPPED),
        [
            ("exported file alone", Cause.SWAPPED_INPUTS),
            ("served, HTTP JSON", Cause.OUTPUT_ORDER),
        ],
    ),
    "the file's fault passed on": (
        "detector",
        SWAPPED,
        SWAPPED,
        [("exported file alone", Cause.SWAPPED_INPUTS)],
    ),
    "a random file passed on": (
        "encoder",
        faulty.trained(),
        faulty.trained(),
        [("exported file alone", Cause.TRAIN_MODE)],
    ),
    "a right file and another served": (
        "triple",
        lambda model: model,
        asking(lambda anchor, near, far: (anchor, far, near)),
        [("served, HTTP JSON", Cause.SWAPPED_INPUTS)],
    ),
}


@pytest.mark.parametrize("label", sampled(SERVED))
def test_each_hop_has_the_cause_of_its_own_fault(
    exported: Path, tmp_path: Path, label: str
) -> None:
    name, of_file, of_server, expected = SERVED[label]
    ours = damage(exported, tmp_path / "ours", name, of_file)
    with ServerProcess(damage(exported, tmp_path / "served", name, of_server)) as server:
        (report,) = verify_repository(
            VerifyOptions(
                ours, (name,), server.address, server.grpc_address,
                source=SourceDescription(source=f"tests.support.faulty_exports:{name}"),
            )
        ).models  # fmt: skip
    found = [(told.hop, told.cause) for told in report.causes]
    assert found == expected, [told.sentence for told in report.causes]


@pytest.mark.parametrize("name", faulty.MODELS)
@pytest.mark.parametrize("has_source", [True, False])
def test_a_clean_run_names_nothing(exported: Path, name: str, has_source: bool) -> None:
    report = run(exported, name, has_source=has_source)
    assert report.causes == []
    assert {row.verdict for row in report.rows} == {"equal"}


@pytest.fixture(scope="module")
def onnx_exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with two models as ONNX, for the converters that work on that."""
    repository = tmp_path_factory.mktemp("onnx_models")
    for name in ("conv_net", "encoder"):
        model, example = faulty.MODELS[name]()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            naiad.export(
                model,
                example,
                name=name,
                repository=repository,
                options=ExportOptions(dynamic=faulty.DYNAMIC.get(name, {})),
            )
    return repository


def quantise_dynamically(path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic  # noqa: PLC0415

    quantize_dynamic(path, path, weight_type=QuantType.QInt8)


def convert_to_half(path: Path, *, keeps_io: bool) -> None:
    import onnx  # noqa: PLC0415
    from onnxruntime.transformers.float16 import convert_float_to_float16  # noqa: PLC0415

    onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=keeps_io), path)


def fix_all_sizes(path: Path, name: str) -> None:
    """As the legacy exporter writes it where nobody names dynamic axes."""
    model, example = faulty.MODELS[name]()
    names = {"conv_net": "image", "encoder": "ids"}
    torch.onnx.export(
        model, example, path, dynamo=False, input_names=[names[name]], output_names=["output__0"]
    )


CONVERTERS: dict[str, tuple[Callable[[Path, str], None], set[Cause]]] = {
    "dynamic INT8": (lambda path, _: quantise_dynamically(path), {Cause.ROUNDING}),
    "FP16 inside": (lambda path, _: convert_to_half(path, keeps_io=True), {Cause.ROUNDING}),
    "no dynamic axes": (fix_all_sizes, {Cause.LOST_DYNAMIC_DIM}),
}


@pytest.mark.parametrize("name", [pytest.param("conv_net", marks=pytest.mark.full), "encoder"])
@pytest.mark.parametrize("label", CONVERTERS)
def test_what_real_converters_do_is_named(
    onnx_exported: Path, tmp_path: Path, name: str, label: str
) -> None:
    convert, causes = CONVERTERS[label]
    shutil.copytree(onnx_exported / name, tmp_path / name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        convert(tmp_path / name / "1" / "model.onnx", name)
    rehash(tmp_path / name / "1")
    report = run(tmp_path, name)
    assert {found.cause for found in report.causes} == causes, [f.sentence for f in report.causes]


def test_a_file_that_wants_fp16_is_told_so(onnx_exported: Path, tmp_path: Path) -> None:
    shutil.copytree(onnx_exported / "conv_net", tmp_path / "conv_net")
    convert_to_half(tmp_path / "conv_net" / "1" / "model.onnx", keeps_io=False)
    rehash(tmp_path / "conv_net" / "1")
    report = run(tmp_path, "conv_net", has_source=False)
    assert {found.cause for found in report.causes} == {Cause.WRONG_DATATYPE, Cause.ROUNDING}
