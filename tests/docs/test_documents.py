"""What the documents point at exists: files behind links, verbs behind ``make``."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "examples", "benchmarks")
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(path for name in FOLDERS for path in (ROOT / name).rglob("*.md"))]
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
# A verb follows `make` directly or behind settings of variables.
VERB = re.compile(r"\bmake (?:[A-Z_]+=\S+ )*([a-z][a-z-]*)")


def names(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=names)
def test_links_lead_somewhere(document: Path) -> None:
    missing = []
    for target in LINK.findall(document.read_text(encoding="utf-8")):
        path = target.partition("#")[0]
        if path and ":" not in path and not (document.parent / path).exists():
            missing.append(target)

    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=names)
def test_make_verbs_exist(document: Path) -> None:
    code = " ".join(CODE.findall(document.read_text(encoding="utf-8")))

    assert set(VERB.findall(code)) <= make_verbs()


def make_verbs() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))


def test_help_lists_every_verb() -> None:
    listed = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert {line.split()[1] for line in listed.splitlines()} == make_verbs()


@pytest.mark.parametrize(
    ("python", "text"),
    [
        ("no-such-python", "no 'no-such-python' here"),
        ("./old-python", "3.11 or newer, ./old-python is 3.9"),
    ],
)
def test_a_python_that_is_missing_or_too_old_is_named(
    python: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").touch()
    # Runs what it is given as Python 3.9 would see it.
    old = tmp_path / "old-python"
    pretend = "import sys; sys.version_info = (3, 9, 2); exec(sys.argv[2])"
    old.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{pretend}' \"$@\"\n")
    old.chmod(0o755)

    result = subprocess.run(
        ["make", "-f", ROOT / "Makefile", "setup", f"PYTHON={python}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode != 0
    assert text in result.stderr
    assert not (tmp_path / ".venv").exists()
