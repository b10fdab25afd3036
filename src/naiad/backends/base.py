"""What a backend is: five methods between the engine and a framework.

``complete_config`` and ``load`` of the backend, ``create_instance`` of the model that it loads,
``execute`` of an instance, and ``close`` of the last two. A backend turns a model version into
instances; an instance executes one batch at a time in a thread of its own. The engine joins the
rows of a batch before and splits them after, so an instance sees whole arrays and knows nothing of
requests.

Other packages bring backends of their own by the entry point group ``naiad.backends``; an example
is in ``examples/sklearn_backend``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy.typing as npt

from naiad.inference.tensor import Tensor

if TYPE_CHECKING:
    from naiad.model_config.schema import ModelConfig


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What a backend loads.

    Attributes:
        name: of the model.
        version: its number.
        config: normalized; a backend may complete it in ``complete_config`` and not later.
        version_directory: holds the model file.
        settings: the server's ``--backend-config`` for this backend.
        thread_count: cores that one instance may use, so that all instances of the model together
            do not take more than the process has.
        core_count: cores that the process may use: its affinity, cut down by a container's quota.
            For what all instances of the model share.
    """

    name: str
    version: int
    config: "ModelConfig"
    version_directory: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    thread_count: int = 1
    core_count: int = 1


class Instance(Protocol):
    """One runnable copy of a model, used by one thread at a time."""

    def execute(
        self, inputs: Mapping[str, npt.NDArray[Any]], output_names: Sequence[str]
    ) -> Sequence[Tensor]:
        """Run the model on one batch.

        Args:
            inputs: by name, with the batch axis where the model has one, of the datatypes that
                the config declares; read-only.
            output_names: which outputs to compute.

        Returns:
            One tensor per name, in that order, with the datatype that the model really gave.

        The outputs belong to the caller: an execution that follows must not write to them, and they
        live on after `close`. An output may be a view of an input, which numpy then keeps alive.

        Raises:
            NaiadError: the model failed on this batch; the message reaches the clients. Any other
                exception is answered as an internal error with its class and text.
        """
        ...

    def close(self) -> None:
        """Free what the instance holds; it is not used again."""
        ...


class LoadedModel(Protocol):
    """A model version whose files were read and whose config was found to fit."""

    def create_instance(self, index: int) -> Instance:
        """Make the instance number ``index``, counted over all instance groups."""
        ...

    def close(self) -> None:
        """Free what the instances shared, after the last of them was closed."""
        ...


class Backend(Protocol):
    """A framework adapter; one object per server."""

    def complete_config(self, source: ModelSource) -> None:
        """Fill what ``source.config`` leaves open from the model's own signature.

        Raises:
            NaiadError: the model file can't be read, or can't be what the config says.
        """
        ...

    def load(self, source: ModelSource) -> LoadedModel:
        """Read the model and hold it against its config.

        Called from a thread of its own; may take long.

        Raises:
            NaiadError: with the reason that the repository index will show.
        """
        ...
