"""Ports before they are opened, and what is said of one that can't be."""

import errno
import socket

from naiad.errors import UnavailableError


def listen_error(address: str, port: int, error: OSError) -> UnavailableError:
    """The error of a front end whose address can't be listened on, in Triton's words."""
    if error.errno == errno.EADDRINUSE:
        return UnavailableError(f"Socket '{address}:{port}' already in use")
    return UnavailableError(
        f"Socket '{address}:{port}' can not be listened on: {error.strerror or error}"
    )


def check_port(address: str, port: int, *, reuse_port: bool = False) -> None:
    """See whether a port can be listened on, without accepting connections there.

    Loading models takes minutes where opening a port takes none, so what keeps a server from
    serving should be known before. Another process may still take the port in between.

    Args:
        address: name or number of the machine's own.
        port: 0 is always free.
        reuse_port: other servers may listen on the port.

    Raises:
        UnavailableError: it can not be.
    """
    if not port:
        return
    try:
        found = socket.getaddrinfo(
            address or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, place in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if reuse_port:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                if family == socket.AF_INET6:
                    # As the server's own socket, which leaves the name's IPv4 to another.
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(place)
    except OSError as error:
        raise listen_error(address, port, error) from error
