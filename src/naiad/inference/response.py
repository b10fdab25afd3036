"""What the engine answers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from naiad.errors import NaiadError
from naiad.inference.tensor import Tensor

if TYPE_CHECKING:
    from naiad.inference.request import ParameterValue


class InferResponse:
    """One response; a request has exactly one unless its model is decoupled.

    Attributes:
        model_name: of the model that answered.
        model_version: the version that ran, also when the request named none.
        request_id: echoed from the request.
        outputs: those that the request asked for, by name; empty with an error.
        error: why there are no outputs.
        parameters: what the model wants the client to know.
        is_final: no further response follows.
    """

    __slots__ = (
        "error",
        "is_final",
        "model_name",
        "model_version",
        "outputs",
        "parameters",
        "request_id",
    )

    def __init__(
        self,
        model_name: str,
        model_version: int,
        request_id: str,
        outputs: Sequence[Tensor],
        error: NaiadError | None = None,
    ) -> None:
        self.model_name = model_name
        self.model_version = model_version
        self.request_id = request_id
        self.outputs = outputs
        self.error = error
        self.parameters: dict[str, ParameterValue] | None = None
        self.is_final = True
