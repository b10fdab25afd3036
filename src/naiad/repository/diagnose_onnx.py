"""An ONNX file that the runtime can't open: is it whole, are its weights there, is it too new?"""

import re
from pathlib import Path
from typing import Final

from naiad.errors import InvalidArgumentError
from naiad.model_config.diagnose import Finding
from naiad.repository.diagnose_folder import Layout, Move
from naiad.repository.onnx_file import OnnxFile, read_onnx_file
from naiad.repository.paths import resolve_inside

_IR: Final = re.compile(r"Unsupported model IR version: (?P<given>\d+), max .*: (?P<limit>\d+)")
_OPSET: Final = re.compile(r"official support for domain ai\.onnx is till opset (?P<limit>\d+)")
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
        report_ir(layout, path, int(match["given"]), int(match["limit"]), "the runtime here")
        return True
    if match := _OPSET.search(error):
        report_opset(layout, path, head.opset, int(match["limit"]), "the runtime here")
        return True
    return False


def report_ir(layout: Layout, path: Path, given: int, limit: int, who: str) -> None:
    """Note that a file has a newer IR version than ``who`` reads, and what to do."""
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


def report_opset(layout: Layout, path: Path, given: int, limit: int, who: str) -> None:
    """Note that a file has a newer opset than ``who`` runs, and what to do."""
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
