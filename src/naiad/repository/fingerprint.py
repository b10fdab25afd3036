"""What tells whether two servers have the same model version."""

import hashlib
from pathlib import Path


def fingerprint_files(directory: Path, config: bytes) -> str:
    """A digest of every file below a version's folder and of its config. Blocks.

    Args:
        directory: of the version; its name and place don't count.
        config: complete, in a form that is the same for the same content.
    """
    digest = hashlib.blake2b(config, digest_size=16)
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "blake2b").hexdigest()
        digest.update(repr((path.relative_to(directory).as_posix(), content)).encode())
    return digest.hexdigest()
