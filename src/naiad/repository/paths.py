"""Names that come from outside, and the paths that are made of them."""

import unicodedata
from pathlib import Path

from naiad.errors import InvalidArgumentError


def check_model_name(name: str) -> None:
    """Refuse a name that could not be one folder of a model repository.

    Raises:
        InvalidArgumentError: with Triton's text.
    """
    if not name.strip():
        raise InvalidArgumentError(
            "Model name cannot be empty. Please enter a valid name to deploy."
        )
    if name.strip() in {".", ".."} or "/" in name or "\\" in name:
        raise InvalidArgumentError(
            f"invalid model name '{name}', model name must not contain path traversal characters"
        )
    if any(unicodedata.category(character) in {"Cc", "Cs"} for character in name):
        raise InvalidArgumentError(
            f"invalid model name {name!r}, model name must not contain control characters"
        )


def resolve_inside(root: Path, relative: str) -> Path:
    """The real path of something in a folder, or under it.

    Args:
        root: the folder.
        relative: as a config or a request names it, seen from ``root``.

    Returns:
        The path with every symbolic link followed; it need not exist.

    Raises:
        InvalidArgumentError: it would lie outside of ``root``, be that by its own words or by a
            symbolic link.
    """
    if "\0" in relative:
        raise InvalidArgumentError(f"invalid path {relative!r}: it contains a NUL character")
    real_root = root.resolve()
    try:
        path = (real_root / relative).resolve()
    except (OSError, RuntimeError) as error:  # a loop of symbolic links
        raise InvalidArgumentError(f"invalid path '{relative}': {error}") from error
    if not path.is_relative_to(real_root):
        raise InvalidArgumentError(f"path '{relative}' is outside of '{root}'")
    return path
