"""Where ``MODULE:CALLABLE`` is looked for."""

import sys
from pathlib import Path


def add_current_folder() -> None:
    """Let Python import the user's files by name.

    It puts the folder of the script on its path, which is not where the user is.
    """
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
