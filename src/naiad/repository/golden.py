"""Golden cases: inputs and the source model's own answers, kept inside a model version.

``<version>/naiad.json`` says how the version was made and what it must answer;
``<version>/golden/*.safetensors`` hold the tensors under the keys ``inputs/NAME`` and
``outputs/NAME``. Both can be read with numpy and safetensors alone. BF16 is stored as bit patterns
(U16); BYTES as the joined bytes (U8) with each element's length under ``lengths:`` + key. Triton
ignores both the file and the folder.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from naiad.errors import InvalidArgumentError, NotFoundError
from naiad.inference.comparison import Array, Tolerance
from naiad.inference.datatypes import BY_NAME

MANIFEST_NAME: Final = "naiad.json"
GOLDEN_FOLDER: Final = "golden"
_SCHEMA: Final = 1
_LENGTHS: Final = "lengths:"
_CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """An input or output of the exported file.

    Attributes:
        name: as in the model config.
        datatype: v2 name, such as ``FP32``.
        shape: with the batch axis where there is one; -1 where it varies.
        axes: the dynamic axes' own names, by axis; empty for outputs.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    axes: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class CaseRecord:
    """What the manifest says about one case.

    Attributes:
        name: unique in the version; the first one, ``example``, is the user's own input.
        file: path inside the version folder.
        batch_size: rows; 0 where the model has no batch axis.
        values: how the inputs were made, for people.
    """

    name: str
    file: str
    batch_size: int
    values: str


@dataclass(frozen=True, slots=True)
class GoldenCase:
    """One set of inputs with the answers of the source model in eager mode.

    Attributes:
        name: unique in the version.
        batch_size: rows; 0 where the model has no batch axis.
        values: how the inputs were made, for people.
        inputs: by name, with the batch axis; BF16 as bit patterns in uint16, BYTES as objects.
        outputs: likewise.
    """

    name: str
    batch_size: int
    values: str
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]

    def byte_size(self) -> int:
        """Bytes of the tensors as they are stored."""
        return sum(_stored_bytes(a) for a in (*self.inputs.values(), *self.outputs.values()))


@dataclass(frozen=True, slots=True)
class Manifest:
    """How a version was made and what it must answer.

    Attributes:
        format: ``onnx``, ``torchscript``, ``pt2`` or ``aoti``.
        model_file: path inside the version folder.
        max_batch_size: 0 where the model has no batch axis.
        source: where the model came from: ``callable``, ``class``, the ``command`` that exported
            it, and what it was exported for.
        versions: of the software that made it.
        files: sha256 of every other file of the version, by path inside it.
        inputs: in the order of the file.
        outputs: in the order of the file.
        tolerances: for each output, against eager PyTorch.
        cases: the first is the user's own example where it was small enough to keep.
        notes: what the exporter decided and the user should know.
    """

    format: str
    model_file: str
    max_batch_size: int
    source: Mapping[str, str]
    versions: Mapping[str, str]
    files: Mapping[str, str]
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]
    tolerances: Mapping[str, Tolerance]
    cases: tuple[CaseRecord, ...]
    notes: tuple[str, ...]

    def datatypes(self) -> dict[str, str]:
        """Stored key (``inputs/NAME``, ``outputs/NAME``) -> v2 datatype."""
        found = {f"inputs/{t.name}": t.datatype for t in self.inputs}
        return found | {f"outputs/{t.name}": t.datatype for t in self.outputs}


def file_digest(path: Path) -> str:
    """The file's sha256 in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def digest_files(version_dir: Path) -> dict[str, str]:
    """sha256 of every file of a version but its manifest, by path inside it, sorted."""
    paths = sorted(path for path in version_dir.rglob("*") if path.is_file())
    return {
        path.relative_to(version_dir).as_posix(): file_digest(path)
        for path in paths
        if path != version_dir / MANIFEST_NAME
    }


def write_cases(version_dir: Path, cases: Iterable[GoldenCase]) -> tuple[CaseRecord, ...]:
    """Store cases in a version folder; returns what its manifest has to say about them."""
    (version_dir / GOLDEN_FOLDER).mkdir(exist_ok=True)
    records = []
    for index, case in enumerate(cases):
        file = f"{GOLDEN_FOLDER}/{index:03d}.safetensors"
        stored: dict[str, Array] = {}
        for kind, tensors in (("inputs", case.inputs), ("outputs", case.outputs)):
            for name, array in tensors.items():
                _store(stored, f"{kind}/{name}", array)
        save_file(stored, version_dir / file)
        records.append(CaseRecord(case.name, file, case.batch_size, case.values))
    return tuple(records)


def write_manifest(version_dir: Path, manifest: Manifest) -> None:
    """Write ``naiad.json``; the same manifest always gives the same bytes."""
    document = {"schema": _SCHEMA, **asdict(manifest)}
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    (version_dir / MANIFEST_NAME).write_text(text + "\n", encoding="utf-8")


def read_manifest(version_dir: Path) -> Manifest:
    """Read ``naiad.json`` of a version folder.

    Raises:
        NotFoundError: there is none: the version was not written by ``naiad export``.
        InvalidArgumentError: it is damaged, or of a newer Naiad.
    """
    path = version_dir / MANIFEST_NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{version_dir} has no {MANIFEST_NAME}: it holds no golden cases. "
            "'naiad export' writes them with the model"
        ) from error
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(f"cannot read {path}: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != _SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else None
        raise InvalidArgumentError(
            f"{path} has schema {found}; this version of naiad reads schema {_SCHEMA}"
        )
    try:
        return _parse_manifest(document)
    except KeyError as error:
        raise InvalidArgumentError(f"{path} lacks {error}") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{path} is damaged: {error}") from error


def read_cases(version_dir: Path) -> Iterator[GoldenCase]:
    """The golden cases of a version folder, one after the other, as the manifest orders them.

    Raises:
        NotFoundError: there is no manifest, or a file that it names is missing.
        InvalidArgumentError: the manifest or a file is damaged, or a file is not the one that
            was exported.
    """
    manifest = read_manifest(version_dir)
    for record in manifest.cases:
        yield read_case(version_dir, manifest, record)


def read_case(version_dir: Path, manifest: Manifest, record: CaseRecord) -> GoldenCase:
    """One golden case of a version folder.

    Args:
        version_dir: the folder.
        manifest: of that folder.
        record: one of the manifest's cases.

    Raises:
        NotFoundError: its file is missing.
        InvalidArgumentError: the file is damaged, or not the one that was exported.
    """
    path = _inside(version_dir, record.file)
    if not path.is_file():
        raise NotFoundError(f"golden case '{record.name}' is missing: no file {path}")
    if file_digest(path) != manifest.files.get(record.file):
        raise InvalidArgumentError(
            f"{path} is not the file that was exported: its sha256 differs from the one in "
            f"{MANIFEST_NAME}. Export the version again"
        )
    try:
        stored = load_file(path)
    except (SafetensorError, OSError) as error:
        raise InvalidArgumentError(f"cannot read {path}: {error}") from error
    datatypes = manifest.datatypes()
    return GoldenCase(
        record.name,
        record.batch_size,
        record.values,
        _restore_all(stored, "inputs", datatypes, path),
        _restore_all(stored, "outputs", datatypes, path),
    )


def _store(stored: dict[str, Array], key: str, array: Array) -> None:
    if array.dtype.hasobject:
        elements = [bytes(element) for element in array.reshape(-1)]
        lengths = np.array([len(element) for element in elements], dtype=np.int64)
        stored[key] = np.frombuffer(b"".join(elements), dtype=np.uint8)
        stored[_LENGTHS + key] = lengths.reshape(array.shape)
    else:
        # Not ascontiguousarray, which turns a scalar into a vector.
        stored[key] = array if array.flags.c_contiguous else array.copy(order="C")


def _stored_bytes(array: Array) -> int:
    if array.dtype.hasobject:
        return sum(len(element) + 8 for element in array.reshape(-1))
    return array.nbytes


def _restore_all(
    stored: Mapping[str, Array], kind: str, datatypes: Mapping[str, str], path: Path
) -> dict[str, Array]:
    found = {}
    for key, datatype in datatypes.items():
        if key.startswith(f"{kind}/"):
            if key not in stored:
                raise InvalidArgumentError(f"{path} lacks the tensor '{key}'")
            found[key.removeprefix(f"{kind}/")] = _restore(stored, key, datatype, path)
    return found


def _restore(stored: Mapping[str, Array], key: str, datatype: str, path: Path) -> Array:
    array = stored[key]
    if datatype == "BYTES":
        lengths = stored.get(_LENGTHS + key)
        if lengths is None or int(lengths.sum()) != array.size:
            raise InvalidArgumentError(f"{path}: the lengths of '{key}' do not fit its bytes")
        ends = np.cumsum(lengths.reshape(-1))
        elements = np.empty(lengths.size, dtype=np.object_)
        for index, end in enumerate(ends):
            elements[index] = array[end - lengths.reshape(-1)[index] : end].tobytes()
        return elements.reshape(lengths.shape)
    if datatype not in BY_NAME or array.dtype != BY_NAME[datatype].dtype:
        raise InvalidArgumentError(f"{path}: '{key}' holds {array.dtype}, not {datatype}")
    return array


def _inside(version_dir: Path, file: str) -> Path:
    path = version_dir / file
    if not path.resolve().is_relative_to(version_dir.resolve()):
        raise InvalidArgumentError(f"{version_dir / MANIFEST_NAME} names a file outside: {file}")
    return path


def _parse_manifest(document: Mapping[str, Any]) -> Manifest:
    return Manifest(
        format=str(document["format"]),
        model_file=str(document["model_file"]),
        max_batch_size=int(document["max_batch_size"]),
        source=_strings(document["source"]),
        versions=_strings(document["versions"]),
        files=_strings(document["files"]),
        inputs=tuple(_parse_tensor(t) for t in document["inputs"]),
        outputs=tuple(_parse_tensor(t) for t in document["outputs"]),
        tolerances={
            str(name): Tolerance(float(t["rtol"]), float(t["atol"]))
            for name, t in document["tolerances"].items()
        },
        cases=tuple(
            CaseRecord(str(c["name"]), str(c["file"]), int(c["batch_size"]), str(c["values"]))
            for c in document["cases"]
        ),
        notes=tuple(str(note) for note in document["notes"]),
    )


def _parse_tensor(document: Mapping[str, Any]) -> TensorRecord:
    datatype = str(document["datatype"])
    if datatype not in BY_NAME:
        raise ValueError(f"unknown datatype '{datatype}'")
    return TensorRecord(
        str(document["name"]),
        datatype,
        tuple(int(size) for size in document["shape"]),
        {int(axis): str(name) for axis, name in document["axes"].items()},
    )


def _strings(document: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in document.items()}
