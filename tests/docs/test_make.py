"""What the verbs would run, without running it."""

import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[2] / "Makefile"


def would_run(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["make", "--dry-run", "-f", MAKEFILE, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """As much of a fresh clone as ``make`` looks at."""
    (tmp_path / "pyproject.toml").touch()
    return tmp_path


@pytest.mark.parametrize("verb", ["demo", "test", "test-all", "check", "bench"])
def test_each_verb_sets_up_what_it_needs_once(verb: str, clone: Path) -> None:
    assert "pip install" in would_run(clone, verb)
    (clone / ".venv").mkdir()
    (clone / ".venv" / ".installed").touch()
    again = would_run(clone, verb)
    assert "pip install" not in again
    assert ".venv/bin/" in again


def test_torch_is_pinned_and_may_come_from_another_index(clone: Path) -> None:
    plain = would_run(clone, "setup")
    assert "pip install --disable-pip-version-check  torch==2.13.0" in plain
    assert "--extra-index-url" not in plain
    other = would_run(clone, "setup", "TORCH_INDEX=https://example.org/cpu")
    assert "--extra-index-url https://example.org/cpu torch==2.13.0" in other


def test_ci_runs_the_verbs_that_people_run() -> None:
    script = (MAKEFILE.parent / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert script[-3:] == ["make check", "make test", "make conformance"]
