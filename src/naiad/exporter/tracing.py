"""What torch's tracer says about the code that it traces."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch

TracerWarning: Final[type[Warning]] = torch.jit.TracerWarning  # type: ignore[attr-defined]
_TORCH_FOLDER: Final = Path(torch.__file__).parent


@contextmanager
def tracer_notes() -> Iterator[list[str]]:
    """Collect the tracer's warnings about the user's code; everything else is warned about again.

    Its remarks about torch's own modules are left out: they are checks of shapes there.

    Yields:
        A list that is filled when the block ends without an error.
    """
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", category=TracerWarning)
        yield notes
    for warning in caught:
        if not issubclass(warning.category, TracerWarning):
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
        elif not Path(warning.filename).is_relative_to(_TORCH_FOLDER):
            place = f"{Path(warning.filename).name}:{warning.lineno}"
            notes.append(f"{place}: {str(warning.message).splitlines()[0]}")
