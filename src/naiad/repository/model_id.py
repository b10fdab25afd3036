"""Which model is meant, where several repositories may have one of the same name."""

from typing import NamedTuple


class ModelId(NamedTuple):
    """A model's name and, with model namespacing, the repository that it lies in.

    Attributes:
        name: as clients give it.
        namespace: the repository's path or URL; empty without model namespacing.
    """

    name: str
    namespace: str = ""

    def __str__(self) -> str:
        """As Triton's messages write it."""
        return f"{self.namespace}::{self.name}" if self.namespace else self.name
