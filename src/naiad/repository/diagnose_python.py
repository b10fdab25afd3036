"""A Python model's code against its config, read and not run."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from naiad.model_config.diagnose import Diagnosis, Finding, nearest
from naiad.repository.diagnose_folder import Layout

# Calls of triton_python_backend_utils that name a tensor, and where they do.
_NAMING: Final = {"input": ("get_input_tensor_by_name", 1), "output": ("Tensor", 0)}


def explain_syntax_error(layout: Layout, path: Path, error: str) -> bool:
    """Whether a model did not load because its code is no Python; then the place is noted."""
    if "SyntaxError" not in error and "IndentationError" not in error:
        return False
    try:
        ast.parse(path.read_bytes(), str(path))
    except SyntaxError as found:
        problem = f"{path.name} is no valid Python: {found.msg}."
        why = f"The line reads: {found.text.strip()}" if found.text and found.text.strip() else ""
        finding = Finding("python-syntax", problem, why, is_fixable=False)
        layout.add(finding, path, found.lineno or 1, found.offset or 1)
        return True
    except OSError:
        pass
    # Another file that it imports, or another Python's syntax.
    return False


def correct_names(diagnosis: Diagnosis, path: Path) -> bool:
    """Give tensors of the config that the code doesn't know the names that it has; whether any.

    For a model that failed: code may well make its names otherwise than by writing them down.
    """
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (OSError, SyntaxError, ValueError):
        return False
    is_corrected = False
    for role in _NAMING:
        known = list(dict.fromkeys(_names(tree, role)))
        entries = diagnosis.kept(role)
        free = [name for name in known if name not in {tensor.name for _, tensor in entries}]
        unknown = [(index, tensor) for index, tensor in entries if tensor.name not in known]
        for index, tensor in unknown:
            is_only = len(free) == len(unknown) == 1
            meant = free[0] if is_only else nearest(tensor.name, free)
            if meant is None:
                continue
            free.remove(meant)
            given, tensor.name = tensor.name, meant
            is_corrected = True
            diagnosis.add(
                Finding(
                    f"unknown-{role}",
                    f"The model has no {role} '{given}'.",
                    f"{path.name} names the {role}s {', '.join(map(repr, known))}. '{meant}' is "
                    "probably meant.",
                    (role, index, "name"),
                )
            )
    return is_corrected


def _names(tree: ast.AST, role: str) -> Iterator[str]:
    function, position = _NAMING[role]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or len(node.args) <= position:
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else None
        argument = node.args[position]
        name = argument.value if isinstance(argument, ast.Constant) else None
        if called == function and isinstance(name, str):
            yield name
