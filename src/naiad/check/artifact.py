"""The model file itself: can this runtime, or the release that it is meant for, open it?"""

import re
from pathlib import Path
from typing import Final

from naiad.check.folder import Layout, Move
from naiad.check.onnx_file import OnnxFile, read_onnx_file
from naiad.check.torchscript_file import is_exported_program, read_forward
from naiad.errors import InvalidArgumentError, NaiadError
from naiad.model_config.diagnose import Diagnosis, Finding, nearest
from naiad.model_config.triton_release import TritonRelease
from naiad.repository.golden import read_manifest
from naiad.repository.paths import resolve_inside

_IR: Final = re.compile(r"Unsupported model IR version: (?P<given>\d+), max .*: (?P<limit>\d+)")
_OPSET: Final = re.compile(r"official support for domain ai\.onnx is till opset (?P<limit>\d+)")
_INDEXED: Final = re.compile(r".*__(\d+)", re.DOTALL)
_DATA_SUFFIXES: Final = ("data", ".bin", ".weights")


def diagnose_onnx(layout: Layout, path: Path, model_folder: Path) -> OnnxFile | None:
    """Read the head of an ONNX file, and find the files that its weights lie in.

    Returns:
        The head; None where nothing can be tried with the file.
    """
    try:
        head = read_onnx_file(path)
    except (InvalidArgumentError, OSError) as error:
        text = f"{error}. Copy the file again, or export the model again."
        layout.add(
            Finding("model-file", "The model file can't be read.", text, is_fixable=False), path
        )
        return None
    missing = [name for name in head.external_files if not _is_inside(path.parent, name)]
    for name in missing:
        _report_missing_data(layout, path, name, model_folder)
    return None if missing else head


def explain_load_error(layout: Layout, path: Path, head: OnnxFile, error: str) -> bool:
    """Whether the runtime's error says that the file is newer than it; then it is noted."""
    if match := _IR.search(error):
        _report_ir(layout, path, int(match["given"]), int(match["limit"]), "the runtime here")
        return True
    if match := _OPSET.search(error):
        _report_opset(layout, path, head.opset, int(match["limit"]), "the runtime here")
        return True
    return False


def diagnose_target(
    layout: Layout, path: Path, head: OnnxFile | None, release: TritonRelease
) -> None:
    """Hold a model file against the release of Triton that it is meant for."""
    where = f"Triton {release.release} (ONNX Runtime {release.onnxruntime})"
    if head is not None and head.ir_version > release.onnx_ir:
        _report_ir(layout, path, head.ir_version, release.onnx_ir, where)
    if head is not None and head.opset > release.onnx_opset:
        _report_opset(layout, path, head.opset, release.onnx_opset, where)
    if path.suffix == ".pt2" and is_exported_program(path):
        layout.add(
            Finding(
                "target-format",
                "The file is an exported program of torch.export.",
                f"Triton {release.release} loads .pt2 files of AOT Inductor only. Export the "
                "model as ONNX or TorchScript.",
                block=f"naiad export --format onnx  # or torchscript, in place of {path.name}",
                is_fixable=False,
            ),
            path,
        )
    elif path.suffix == ".pt":
        _compare_torch(layout, path, release)


def diagnose_torchscript(diagnosis: Diagnosis, path: Path) -> None:
    """The names of a TorchScript model's inputs and outputs against Triton's convention."""
    try:
        forward = read_forward(path)
    except NaiadError:
        return
    if not diagnosis.is_ignored("torchscript-name"):
        _diagnose_outputs(diagnosis)
    inputs = diagnosis.kept("input")
    if forward.is_tensor_dict or not inputs:
        return
    for index, tensor in inputs[len(forward.names) :]:
        diagnosis.remove("input", index)
        diagnosis.add(
            Finding(
                "unknown-input",
                f"The input '{tensor.name}' has no argument to go to.",
                f"forward() takes {', '.join(forward.names)}.",
                ("input", index),
            )
        )
    inputs = diagnosis.kept("input")
    for position in range(len(inputs), forward.required):
        name = forward.names[position]
        diagnosis.add(
            Finding(
                "missing-input",
                f"The config lacks an input for the argument '{name}' of forward().",
                "It has no default.",
                ("input",),
                f'input [ {{ name: "{name}__{position}" data_type: TYPE_FP32 dims: [ -1 ] }} ]'
                "  # with its data_type and dims",
                is_fixable=False,
            )
        )
    if not diagnosis.is_ignored("torchscript-name"):
        _diagnose_inputs(diagnosis, forward.names)


def _diagnose_inputs(diagnosis: Diagnosis, arguments: tuple[str, ...]) -> None:
    inputs = diagnosis.kept("input")
    names = [tensor.name for _, tensor in inputs]
    if set(names) <= set(arguments) or _counts_up(names):
        return
    uses_arguments = any(name in arguments for name in names)
    for position, (index, tensor) in enumerate(inputs):
        name = tensor.name
        if uses_arguments and name in arguments:
            continue
        free = [argument for argument in arguments if argument not in names]
        meant = nearest(name, free) if uses_arguments else None
        tensor.name = meant or _indexed(name, position)
        if uses_arguments and meant is None and free:
            tensor.name = free[0]
        if tensor.name == name:
            continue
        names[position] = tensor.name
        diagnosis.add(
            Finding(
                "torchscript-name",
                f"The input name '{name}' does not say which argument it is.",
                "A TorchScript input is named <name>__<position>, or all inputs like the arguments "
                f"of forward(): {', '.join(arguments)}. Otherwise Triton takes them in the order "
                "of the config, and a reordered config swaps them without an error.",
                ("input", index, "name"),
            )
        )


def _diagnose_outputs(diagnosis: Diagnosis) -> None:
    """Outputs are all indexed, or none: a mix is taken in the order of the config."""
    outputs = diagnosis.kept("output")
    names = [tensor.name for _, tensor in outputs]
    indexed = [name for name in names if _INDEXED.fullmatch(name)]
    if not indexed or len(indexed) == len(names):
        return
    for position, (index, tensor) in enumerate(outputs):
        if tensor.name in indexed:
            continue
        name = tensor.name
        tensor.name = _indexed(name, position)
        diagnosis.add(
            Finding(
                "torchscript-name",
                f"The output name '{name}' does not say which result it is.",
                f"Other outputs are named <name>__<position>: {', '.join(indexed)}. Unless all "
                "are, Triton takes them in the order of the config.",
                ("output", index, "name"),
            )
        )


def _counts_up(names: list[str]) -> bool:
    matches = [_INDEXED.fullmatch(name) for name in names]
    return sorted(int(m[1]) for m in matches if m) == list(range(len(names)))


def _indexed(name: str, position: int) -> str:
    match = re.fullmatch(r"(.*?)_{1,2}(\d+)", name, re.DOTALL)
    return f"{match[1] if match else name}__{position}"


def _compare_torch(layout: Layout, path: Path, release: TritonRelease) -> None:
    try:
        version = read_manifest(path.parent).versions.get("torch", "")
    except NaiadError:
        return
    if release.pytorch and _minor(version) > _minor(release.pytorch):
        layout.add(
            Finding(
                "target-torch",
                f"The file was written by PyTorch {version}.",
                f"Triton {release.release} has PyTorch {release.pytorch}, and older ones need not "
                "read what newer ones write. Export with that version, or as ONNX.",
                block=f"pip install 'torch=={'.'.join(map(str, _minor(release.pytorch)))}.*'",
                is_fixable=False,
            ),
            path,
        )


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _report_ir(layout: Layout, path: Path, given: int, limit: int, who: str) -> None:
    layout.add(
        Finding(
            "onnx-ir",
            f"The file has ONNX IR version {given}.",
            f"The highest that {who} reads is {limit}. Where the file uses nothing newer, its "
            "number can be lowered; otherwise export with an older onnx.",
            block=(
                f'import onnx\nmodel = onnx.load("{path}")\nmodel.ir_version = {limit}\n'
                f'onnx.save(model, "{path}")'
            ),
            is_fixable=False,
        ),
        path,
    )


def _report_opset(layout: Layout, path: Path, given: int, limit: int, who: str) -> None:
    layout.add(
        Finding(
            "onnx-opset",
            f"The file uses opset {given}.",
            f"The highest that {who} runs is {limit}. Export with an older opset, or convert.",
            block=(
                "import onnx, onnx.version_converter\n"
                f'model = onnx.load("{path}")\n'
                f"model = onnx.version_converter.convert_version(model, {limit})\n"
                f'onnx.save(model, "{path}")'
            ),
            is_fixable=False,
        ),
        path,
    )


def _is_inside(directory: Path, name: str) -> bool:
    try:
        return resolve_inside(directory, name).is_file()
    except InvalidArgumentError:
        return False


def _report_missing_data(layout: Layout, path: Path, name: str, model_folder: Path) -> None:
    target = path.parent / name
    source = _find_data(path, name, model_folder)
    if source is not None:
        layout.moves.append(Move(source, target))
    layout.add(
        Finding(
            "external-data",
            f"The weights of the model lie in '{name}', which is not beside it.",
            f"{path.name} refers to it. The two files have to be copied together, and keep their "
            "names.",
            block=f"mv {source or f'.../{name}'} {target}",
            is_fixable=source is not None,
        ),
        path,
    )


def _find_data(path: Path, name: str, model_folder: Path) -> Path | None:
    """The file that was probably meant: of the same name, or the only one of its kind beside."""
    misplaced = model_folder / Path(name).name
    if misplaced.is_file():
        return misplaced
    beside = [
        entry
        for entry in sorted(path.parent.iterdir())
        if entry.is_file() and entry.name.endswith(_DATA_SUFFIXES)
    ]
    return beside[0] if len(beside) == 1 else None
