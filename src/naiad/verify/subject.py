"""A model version as its export left it: manifest, golden cases, and whether its files changed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from naiad.errors import InvalidArgumentError, NotFoundError
from naiad.repository.golden import (
    MANIFEST_NAME,
    GoldenCase,
    Manifest,
    digest_files,
    read_case,
    read_manifest,
)
from naiad.repository.layout import CONFIG_FILENAME


@dataclass(frozen=True, slots=True)
class Subject:
    """One model version to be verified.

    Attributes:
        model: name of the folder in the repository.
        version: name of the folder in the model, a number.
        folder: of the version.
        manifest: what the export wrote down.
        cases: the golden cases, as far as their files are the exported ones.
        problems: files that are missing or are not those that were exported.
        changed: paths of the files, inside the version, that are not those that were exported.
    """

    model: str
    version: int
    folder: Path
    manifest: Manifest
    cases: Sequence[GoldenCase]
    problems: Sequence[str]
    changed: Sequence[str] = ()

    @classmethod
    def load(cls, repository: Path, model: str, version: int) -> Self:
        """Read a version folder and check its files against the manifest's hashes.

        Raises:
            NotFoundError: it has no manifest, so it was not exported with golden cases.
            InvalidArgumentError: the manifest is damaged.
        """
        folder = repository / model / str(version)
        manifest = read_manifest(folder)
        changed = _changed_files(folder, manifest)
        problems = list(changed.values())
        cases: list[GoldenCase] = []
        for record in manifest.cases:
            # What is wrong with one file must not hide the numbers of the others.
            if record.file in changed:
                continue
            try:
                cases.append(read_case(folder, manifest, record))
            except (InvalidArgumentError, NotFoundError) as error:
                problems.append(error.message)
        return cls(model, version, folder, manifest, cases, problems, tuple(changed))

    def repository(self) -> Path:
        """The model repository that it is in."""
        return self.folder.parent.parent

    def artifact(self) -> Path:
        """The exported model file."""
        return self.folder / self.manifest.model_file

    def inputs(self) -> dict[str, str]:
        """Input name -> v2 datatype, in the order of the file."""
        return {tensor.name: tensor.datatype for tensor in self.manifest.inputs}

    def outputs(self) -> dict[str, str]:
        """Output name -> v2 datatype, in the order of the file."""
        return {tensor.name: tensor.datatype for tensor in self.manifest.outputs}


def find_versions(repository: Path, models: Sequence[str]) -> list[tuple[str, int]]:
    """The model versions of a repository that have a manifest, by name and number.

    Args:
        repository: a model repository.
        models: only these; all where empty.

    Raises:
        NotFoundError: no such folder, or a named model without a version to verify.
    """
    if not repository.is_dir():
        raise NotFoundError(f"there is no model repository '{repository}'")
    names = models or sorted(path.name for path in repository.iterdir() if path.is_dir())
    found: list[tuple[str, int]] = []
    for name in names:
        versions = _exported_versions(repository / name)
        if not versions and models:
            raise NotFoundError(_nothing_to_verify(repository / name))
        found.extend((name, version) for version in versions)
    if not found:
        raise NotFoundError(
            f"no model in '{repository}' has golden cases to verify against; "
            "'naiad export' writes them with the model"
        )
    return found


def find_unverified(repository: Path) -> list[str]:
    """The models of a repository that no golden case speaks for, in the order of their names."""
    return sorted(
        path.name
        for path in repository.iterdir()
        if (path / CONFIG_FILENAME).is_file() and not _exported_versions(path)
    )


def _exported_versions(model_dir: Path) -> list[int]:
    return sorted(
        int(manifest.parent.name)
        for manifest in model_dir.glob(f"*/{MANIFEST_NAME}")
        if manifest.parent.name.isdecimal()
    )


def _nothing_to_verify(model_dir: Path) -> str:
    if not model_dir.is_dir():
        return f"there is no model '{model_dir.name}' in '{model_dir.parent}'"
    return (
        f"model '{model_dir.name}' has no version with golden cases (no {MANIFEST_NAME}); "
        "'naiad export' writes them with the model"
    )


def _changed_files(folder: Path, manifest: Manifest) -> dict[str, str]:
    """Path inside the version -> what is wrong with that file."""
    present = digest_files(folder)
    problems = {}
    for name, digest in manifest.files.items():
        if name not in present:
            problems[name] = f"{name} is missing, {MANIFEST_NAME} lists it"
        elif present[name] != digest:
            problems[name] = (
                f"{name} is not the file that was exported: its sha256 is {present[name][:12]}..., "
                f"{MANIFEST_NAME} says {digest[:12]}..."
            )
    return problems
