"""Which line of the user's own code an error is about."""

import linecache
import re
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import torch

_FRAME: Final = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_FOREIGN: Final = (Path(torch.__file__).parent, Path(__file__).parents[1])


def find_raising_line(error: BaseException) -> str:
    """The innermost line of the user's code that an error came through, or "".

    For example ``nets.py, line 12, in forward: n = int(x.sum())``.
    """
    frames = traceback.extract_tb(error.__traceback__)
    return _last_of_user((f.filename, f.lineno or 0, f.name) for f in frames)


def find_traced_line(stack_trace: str | None) -> str:
    """The innermost line of the user's code in the stack trace of a graph's node, or ""."""
    return _last_of_user(
        (found["file"], int(found["line"]), found["function"])
        for found in _FRAME.finditer(stack_trace or "")
    )


def _last_of_user(frames: Iterable[tuple[str, int, str]]) -> str:
    own = [frame for frame in frames if _is_users(frame[0])]
    if not own:
        return ""
    file, line, function = own[-1]
    code = linecache.getline(file, line).strip()
    return f"{Path(file).name}, line {line}, in {function}" + (f": {code}" if code else "")


def _is_users(file: str) -> bool:
    path = Path(file)
    return path.is_file() and not any(path.is_relative_to(folder) for folder in _FOREIGN)
