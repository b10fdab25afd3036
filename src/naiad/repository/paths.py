"""Names that come from outside, and the paths that are made of them."""

import os
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


def resolve_inside(root: Path, relative: str, repository: Path | None = None) -> Path:
    """The real path of something in a folder, or under it.

    Args:
        root: the folder.
        relative: as a config or a request names it, seen from ``root``.
        repository: the folder around ``root`` in which symbolic links may lead anywhere; ``root``
            itself where it is None. The words of ``relative`` must stay in ``root`` in any case.

    Returns:
        The path with every symbolic link followed; it need not exist.

    Raises:
        InvalidArgumentError: it would lie outside, be that by its own words or by a symbolic link.
    """
    if "\0" in relative:
        raise InvalidArgumentError(f"invalid path {relative!r}: it contains a NUL character")
    limit = root.resolve() if repository is None else repository.resolve()
    # Links are followed before the words are judged: "link/.." is where the link leads.
    start = root.resolve() if repository is None else root.absolute()
    try:
        path = (start / relative).resolve()
    except (OSError, RuntimeError) as error:  # a loop of symbolic links
        raise InvalidArgumentError(f"invalid path '{relative}': {error}") from error
    if repository is not None and not Path(os.path.normpath(start / relative)).is_relative_to(
        os.path.normpath(start)
    ):
        raise InvalidArgumentError(f"path '{relative}' is outside of '{root}'")
    if not path.is_relative_to(limit):
        raise InvalidArgumentError(f"path '{relative}' is outside of '{repository or root}'")
    return path
