"""Folders for model files that are on this machine only while something uses them."""

import shutil
from pathlib import Path
from tempfile import mkdtemp
from weakref import finalize


class TemporaryFolder:
    """A new folder, removed with all that is in it when this object goes.

    ``tempfile.TemporaryDirectory`` warns of that end, which is the usual one of a loaded model.

    Args:
        prefix: of its name.
        parent: where it is made; None for the system's place for such folders.

    Attributes:
        path: of the folder.
    """

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        self.path = Path(mkdtemp(prefix=prefix, dir=parent))
        self._remove = finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def remove(self) -> None:
        """Remove it now."""
        self._remove()
