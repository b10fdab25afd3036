"""What a port says that can't be opened."""

import errno

from naiad.errors import UnavailableError


def listen_error(address: str, port: int, error: OSError) -> UnavailableError:
    """The error of a front end whose address can't be listened on, in Triton's words."""
    if error.errno == errno.EADDRINUSE:
        return UnavailableError(f"Socket '{address}:{port}' already in use")
    return UnavailableError(
        f"Socket '{address}:{port}' can not be listened on: {error.strerror or error}"
    )
