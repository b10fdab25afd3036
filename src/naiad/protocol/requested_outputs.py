"""How a request wants its outputs: JSON or binary, values or classes, sent or in shared memory.

One server-wide object stands for each of the two usual wishes, so that most requests make none.
"""

from collections.abc import Mapping
from typing import Final


class OutputOptions:
    """How a request wants one of its outputs.

    Attributes:
        is_binary: in the binary tail, not as JSON.
        classification: how many of the top classes instead of the values; 0 for the values.
        region: where to write the values instead of sending them.
    """

    __slots__ = ("classification", "is_binary", "region")

    def __init__(
        self, *, is_binary: bool, classification: int = 0, region: memoryview | None = None
    ) -> None:
        self.is_binary = is_binary
        self.classification = classification
        self.region = region


class RequestedOutputs:
    """How a request wants its outputs; made by ``decode_infer_request``.

    Attributes:
        default: for an output that the request does not name.
        by_name: for those that it names; None where it names none.
    """

    __slots__ = ("by_name", "default")

    def __init__(
        self, default: OutputOptions, by_name: Mapping[str, OutputOptions] | None = None
    ) -> None:
        self.default = default
        self.by_name = by_name

    def options(self, name: str) -> OutputOptions:
        """How an output of the response is wanted."""
        return self.default if self.by_name is None else self.by_name[name]


AS_JSON: Final = OutputOptions(is_binary=False)
AS_BINARY: Final = OutputOptions(is_binary=True)
ALL_AS_JSON: Final = RequestedOutputs(AS_JSON)
ALL_AS_BINARY: Final = RequestedOutputs(AS_BINARY)
