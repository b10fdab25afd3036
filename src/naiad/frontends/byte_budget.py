"""How many bytes of requests a server holds at a time, over all connections and ports."""

from naiad.errors import UnavailableError


class ByteBudget:
    """A counter with a limit; belongs to the event loop.

    Attributes:
        limit_bytes: what may be reserved at a time.
        reserved_bytes: what is reserved now.
    """

    __slots__ = ("limit_bytes", "reserved_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.reserved_bytes = 0

    def try_reserve(self, size: int) -> bool:
        """Reserve ``size`` bytes, or nothing where they do not fit."""
        reserved = self.reserved_bytes + size
        if reserved > self.limit_bytes:
            return False
        self.reserved_bytes = reserved
        return True

    def release(self, size: int) -> None:
        """Give back what ``try_reserve`` granted."""
        self.reserved_bytes -= size

    def exhausted(self) -> UnavailableError:
        """The error for a request that does not fit."""
        return UnavailableError(
            "the requests that the server holds have reached its limit of "
            f"{self.limit_bytes} bytes (--request-memory-byte-size); send this one again later"
        )
