"""ARCHITECTURE.md must stay short and true."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
PATHS = sorted(set(re.findall(r"`((?:src|tests|examples|benchmarks|docs)(?:/[\w./-]+)?)`", PAGE)))


def test_the_page_names_paths() -> None:
    assert len(PATHS) > 20


@pytest.mark.parametrize("path", PATHS)
def test_every_path_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_every_package_is_on_the_map() -> None:
    packages = {p.name for p in (ROOT / "src/naiad").iterdir() if (p / "__init__.py").exists()}
    assert [name for name in sorted(packages) if f"src/naiad/{name}" not in PAGE] == []


def test_the_page_is_short() -> None:
    assert len(PAGE.splitlines()) < 150
