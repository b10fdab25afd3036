"""Settings of the HTTP front end."""

from dataclasses import dataclass

from naiad.frontends.open_connections import DEFAULT_MAX_CONNECTIONS, DEFAULT_MAX_IDLE_MS
from naiad.frontends.rest.options import RestOptions
from naiad.frontends.tls import Tls


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions(RestOptions):
    """Where the server listens and what it accepts, besides what the API itself limits.

    Attributes:
        address: to listen on.
        port: 0 takes a free one.
        reuse_port: several processes may listen on the port.
        max_head_bytes: of the request line and the headers together.
        max_headers: header lines of a request.
        max_chunks: non-empty chunks of a chunked body; Triton's limit.
        read_timeout_s: for a request to arrive, once its first byte is there, on top of what a
            client of the slowest accepted speed needs.
        min_read_bytes_per_s: that speed.
        write_timeout_s: for a client to take some more of an answer.
        max_connections: open at a time; 0 for any number.
        max_idle_ms: that a connection is kept for the next request; 0 for any time. Clients keep a
            pool of them, and not all try again on a new one when it was closed.
        linger_s: how long a refused client may go on sending before it is cut off.
        backlog: connections that the kernel keeps while the loop is busy; Triton's number.
        tls: HTTPS in place of plain HTTP.
    """

    address: str = "0.0.0.0"  # noqa: S104 - a server is there to be reached, as Triton's is
    port: int = 8000
    reuse_port: bool = False
    max_head_bytes: int = 32 << 10
    max_headers: int = 100
    max_chunks: int = 65536
    read_timeout_s: float = 30.0
    min_read_bytes_per_s: int = 16 << 10
    write_timeout_s: float = 60.0
    max_connections: int = DEFAULT_MAX_CONNECTIONS
    max_idle_ms: int = DEFAULT_MAX_IDLE_MS
    linger_s: float = 2.0
    backlog: int = 1024
    tls: Tls | None = None
