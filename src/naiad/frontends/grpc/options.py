"""How the gRPC server behaves."""

import re
from dataclasses import dataclass, field
from typing import Final

from naiad.access.restricted_apis import RestrictedApis
from naiad.frontends.open_connections import DEFAULT_MAX_CONNECTIONS, DEFAULT_MAX_IDLE_MS
from naiad.frontends.tls import Tls

# What gRPC's own libraries can send at all: lengths are signed 32-bit numbers there.
MAX_MESSAGE_BYTES: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Keepalive:
    """Pings, in the terms of Triton's ``--grpc-keepalive-*`` and ``--grpc-http2-*`` options.

    Attributes:
        time_ms: without a sign of life from the client before it is asked for one.
        timeout_ms: for it to answer.
        permit_without_calls: whether idle connections are asked too.
        max_pings_without_data: that the server sends while it sends nothing else; 0 for any number.
        min_recv_interval_ms: between two pings of a client while the server sends nothing.
        max_strikes: pings too soon before the connection is ended; 0 allows any number.
    """

    time_ms: int = 7_200_000
    timeout_ms: int = 20_000
    permit_without_calls: bool = False
    max_pings_without_data: int = 2
    min_recv_interval_ms: int = 300_000
    max_strikes: int = 2


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """Options of one gRPC port. Limits are checked before memory is taken.

    Attributes:
        address: to listen on; ``unix:PATH`` for a socket file.
        port: 0 takes a free one.
        reuse_port: several servers may share the port.
        max_receive_message_bytes: of a request message, unpacked.
        max_send_message_bytes: of a response message.
        max_concurrent_streams: calls of one connection at a time.
        max_stream_requests: unanswered requests of one stream; then it is read no further.
        keepalive: pings.
        max_connection_age_ms: after which a client is asked to connect anew; 0 for never.
        max_connection_age_grace_ms: for its calls to end then; 0 for any time.
        max_connections: open at a time; 0 for any number.
        max_idle_ms: without a call, after which a client is asked to connect anew; 0 for never.
        compression_level: of inference responses, 1 to 9 as zlib's; 0 for none.
        header_forward_pattern: metadata whose key has a match become request parameters.
        restrictions: methods that need a secret in their metadata.
        tls: None for plain text.
        read_timeout_s: for a message to arrive, once its first byte is there, on top of what a
            client of the slowest accepted speed needs.
        min_read_bytes_per_s: that speed.
        write_timeout_s: for a client's machine, or the client by its window, to take some more of
            what is sent.
        backlog: connections that the kernel keeps while the loop is busy.
        http_port: of the HTTP service beside it, to tell clients that took the wrong port; 0 where
            there is none.
    """

    address: str = "0.0.0.0"  # noqa: S104 - a server is there to be reached, as Triton's is
    port: int = 8001
    reuse_port: bool = False
    max_receive_message_bytes: int = MAX_MESSAGE_BYTES
    max_send_message_bytes: int = MAX_MESSAGE_BYTES
    max_concurrent_streams: int = 1024
    max_stream_requests: int = 1024
    keepalive: Keepalive = Keepalive()
    max_connection_age_ms: int = 0
    max_connection_age_grace_ms: int = 0
    max_connections: int = DEFAULT_MAX_CONNECTIONS
    max_idle_ms: int = DEFAULT_MAX_IDLE_MS
    compression_level: int = 0
    header_forward_pattern: re.Pattern[str] | None = None
    restrictions: RestrictedApis = field(default_factory=RestrictedApis)
    tls: Tls | None = None
    read_timeout_s: float = 30.0
    min_read_bytes_per_s: int = 16 << 10
    write_timeout_s: float = 60.0
    backlog: int = 1024
    http_port: int = 0
