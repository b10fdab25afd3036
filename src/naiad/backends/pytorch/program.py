"""A model file in memory, whatever its format: something to call, and what is known of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from naiad.backends.pytorch.aot_source import Expectation
from naiad.backends.pytorch.call_spec import Aliases
from naiad.backends.pytorch.naming import Argument
from naiad.model_config.complete import ArtifactSignature


@dataclass(frozen=True, slots=True)
class Leaves:
    """The tensors of a call that was fixed when the model was exported.

    Attributes:
        inputs: the names of each, the file's own first.
        outputs: the names of each, the file's own first.
        by_name: ``call`` takes them under the first of their names, else in order.
    """

    inputs: Sequence[Aliases]
    outputs: Sequence[Aliases]
    by_name: bool


@dataclass(frozen=True, slots=True)
class Program:
    """A model file in memory.

    Attributes:
        format: for people.
        call: the model.
        writes: it may write into its inputs, or give out memory that it will write into again.
        arguments: of ``call``, in order; None where the config's order decides.
        result_count: how many results it gives; None where only a call can tell.
        leaves: of an exported call; None for a model that is called as its config says.
        signature: datatypes and shapes of the leaves, with the batch axis; None where the file
            doesn't hold them.
        expectations: what compiled code takes in each leaf; empty where nothing tells.
        device: where it takes its inputs, if its instance group leaves that to the model; None
            for the CPU.
        takes_unsigned: unsigned integers of more than 8 bits are among its datatypes. TorchScript
            files are from the time before torch had these, and Triton takes none for them.
    """

    format: str
    call: Callable[..., Any]
    writes: bool
    arguments: Sequence[Argument] | None = None
    result_count: int | None = None
    leaves: Leaves | None = None
    signature: ArtifactSignature | None = None
    expectations: Mapping[int, Expectation] = field(default_factory=dict)
    takes_unsigned: bool = True
    device: torch.device | None = None
