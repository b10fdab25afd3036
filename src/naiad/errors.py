"""The error tree: one class per error code of Triton's core, and nothing about HTTP or gRPC.

::

    NaiadError
    ├── UnknownError           Unknown
    ├── InternalError          Internal             our fault, or the model's
    ├── NotFoundError          Not found            no such model, version or region
    ├── InvalidArgumentError   Invalid argument     the caller's fault
    ├── UnavailableError       Unavailable          not now: loading, full, stopping
    ├── UnsupportedError       Unsupported          never, in this build or configuration
    ├── AlreadyExistsError     Already exists
    ├── CancelledError         Cancelled            the caller went away or gave up
    └── PermissionDeniedError  Permission denied    the settings forbid it; Triton has no such code

Front ends turn the class into a status in one table, ``protocol/status.py``.
"""

from typing import ClassVar, Self


class NaiadError(Exception):
    """A failure with a message meant for the person who made the request.

    Attributes:
        message: what is wrong and, where it can be said, what to do about it.
        advice: where in which file to change what, over several lines; mostly empty. It is no part
            of the message, since not all who read that can change files of the server.
    """

    label: ClassVar[str] = "Unknown"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.advice = ""

    def reason(self) -> str:
        """The text of the repository index and the log: Triton's label, then the message."""
        return f"{self.label}: {self.message}"

    def detached(self) -> Self:
        """This error without tracebacks, its cause's included, to be kept by what they lead to.

        Such a ring is left to the garbage collector, which counts objects and not the bytes of the
        tensors in it.
        """
        self.__cause__ = self.__context__ = None
        return self.with_traceback(None)


class UnknownError(NaiadError):
    """A failure that nothing else describes."""


class InternalError(NaiadError):
    """The server or the model failed on a request that was right."""

    label = "Internal"


class NotFoundError(NaiadError):
    """What the request names does not exist."""

    label = "Not found"


class InvalidArgumentError(NaiadError):
    """The request or the configuration is wrong; sending it again will not help."""

    label = "Invalid argument"


class UnavailableError(NaiadError):
    """It cannot be done now, and may be possible later."""

    label = "Unavailable"


class UnsupportedError(NaiadError):
    """This server does not do that, as built or as configured."""

    label = "Unsupported"


class AlreadyExistsError(NaiadError):
    """The name is taken."""

    label = "Already exists"


class CancelledError(NaiadError):
    """The caller withdrew the request before it was answered."""

    label = "Cancelled"


class PermissionDeniedError(NaiadError):
    """The server's settings forbid it for this caller; the message names the setting."""

    label = "Permission denied"
