"""The user's own module as the place for experiments: as it is served, and with faults put in."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from naiad.errors import InvalidArgumentError
from naiad.inference.comparison import Array, absolute_difference, as_numbers
from naiad.repository.golden import GoldenCase, Manifest
from naiad.source_model import faults
from naiad.source_model.description import SourceDescription
from naiad.source_model.evaluation import evaluation
from naiad.source_model.faults import SourceFault
from naiad.source_model.model import FlatModel, flatten_model
from naiad.source_model.opening import open_source
from naiad.source_model.tensors import to_tensor
from naiad.verify.artifact import TorchHop
from naiad.verify.artifact_contents import read_weights
from naiad.verify.hops import HopFailedError
from naiad.verify.subject import Subject

if TYPE_CHECKING:
    import torch

_NOISE_CASES: Final = 4
EAGER_HOP: Final = "PyTorch eager again"


@dataclass(frozen=True, slots=True)
class Choice:
    """One call in the module that chose by value, as arrays.

    Attributes:
        values: that it chose from.
        indices: of its choice.
        axis: that it chose along; None where it took all values as one row.
    """

    values: Array
    indices: Array
    axis: int | None


class Laboratory:
    """Experiments on the source module.

    Attributes:
        eager: the module in eval mode, as it should be served.
        layers: with weights; how deep the model is.
        possible: the faults that can be put into this module.
        other_weights: names of the weights that are others in the file.
        is_other_state: some of them by more than rounding or a run in train mode explains.
    """

    def __init__(
        self,
        flat: FlatModel,
        manifest: Manifest,
        example: Sequence[Any],
        weights: Mapping[str, Array] = MappingProxyType({}),
    ) -> None:
        self._flat = flat
        self._inputs = {tensor.name: tensor.datatype for tensor in manifest.inputs}
        self._outputs = {tensor.name: tensor.datatype for tensor in manifest.outputs}
        self._example = example
        self.eager = self._hop(EAGER_HOP, self._answer_in_eval_mode)
        self._latest: tuple[frozenset[SourceFault], TorchHop] | None = None
        self.layers = faults.count_layers(flat)
        self._weights = faults.other_weights(flat, weights)
        self.other_weights: Sequence[str] = list(self._weights)
        self.is_other_state = faults.are_far(flat, self._weights)
        self.possible: Sequence[SourceFault] = [
            *faults.possible_faults(flat),
            *([SourceFault.OTHER_WEIGHTS] if self._weights else []),
        ]

    def variant(self, chosen: Iterable[SourceFault]) -> TorchHop:
        """A copy of the module with faults put into it.

        Raises:
            HopFailedError: the module can't be copied or traced.
        """
        faulty = frozenset(chosen)
        if self._latest is not None and self._latest[0] == faulty:
            return self._latest[1]
        names = " and ".join(sorted(faulty))
        try:
            hop = self._hop(
                f"PyTorch eager, {names}",
                faults.put_faults(self._flat, faulty, self._example, self._weights),
            )
        except Exception as error:  # copying and tracing run the user's code, which raises anything
            raise HopFailedError(f"{type(error).__name__}: {error}") from error
        # One copy of the weights at a time.
        self._latest = (faulty, hop)
        return hop

    def noise(self, cases: Sequence[GoldenCase]) -> dict[str, float]:
        """How far eager's rounding alone takes each output, by a run in FP64.

        Returns:
            Output name -> largest ``|eager - FP64|`` over the cases; without the outputs for
            which it can't be known, and empty where the module doesn't compute in FP64.
        """
        found: dict[str, float] = {}
        try:
            exact = self._hop("PyTorch in FP64", faults.in_float64(self._flat))
            # FP64 takes several times as long as FP32, and a few small cases tell as much.
            for case in sorted(cases, key=lambda case: case.batch_size)[:_NOISE_CASES]:
                answer = self.eager.run(case)
                for name, reference in exact.run(case).items():
                    if reference.dtype.kind != "f":
                        continue
                    rounded = as_numbers(answer[name], self._outputs[name])
                    distance = absolute_difference(reference, rounded).max(initial=0.0)
                    found[name] = max(found.get(name, 0.0), float(distance))
        except Exception:  # noqa: BLE001  # a module that is written for FP32 raises anything here
            return {}
        return found

    def choices(self, case: GoldenCase) -> list[Choice]:
        """Every choice by value (argmax, topk, sort) that the module makes for a case.

        Raises:
            HopFailedError: the module failed.
        """
        try:
            found = faults.record_choices(self._flat, self.eager.arguments(case))
        except Exception as error:
            raise HopFailedError(f"{type(error).__name__}: {error}") from error
        return [
            Choice(self.eager.to_numpy(c.values), self.eager.to_numpy(c.indices), c.axis)
            for c in found
        ]

    def _hop(self, name: str, model: Any) -> TorchHop:
        return TorchHop(name, model, self._inputs, list(self._outputs))

    def _answer_in_eval_mode(self, *tensors: Any) -> Any:
        with evaluation(self._flat.model):
            return self._flat(*tensors)


def open_laboratory(source: SourceDescription, subject: Subject, scratch: Path) -> Laboratory:
    """The module that a version was exported from, ready for experiments.

    Args:
        source: as for ``naiad export``; where it has no example, a golden case is one.
        subject: the exported version; its inputs are matched to forward's by their order.
        scratch: an empty folder for files that have to stay while the laboratory is used.

    Raises:
        NotFoundError: there is no such file, Python module or callable.
        InvalidArgumentError: it gives no module, or one with other inputs.
        UnsupportedError: a model of such a kind cannot be loaded.
    """
    manifest = subject.manifest
    model = open_source(source, scratch, _golden_example(subject)).model
    names = [tensor.name for tensor in manifest.inputs]
    if len(names) != len(model.input_names):
        msg = (
            f"'{source.source}' takes the inputs {', '.join(model.input_names)}, the exported "
            f"model {', '.join(names)}: this is not the model that was exported"
        )
        raise InvalidArgumentError(msg)
    flat = flatten_model(model, names, has_batch=manifest.max_batch_size > 0)
    return Laboratory(flat, manifest, flat.pad(model.example), read_weights(subject.artifact()))


def _golden_example(subject: Subject) -> "dict[str, torch.Tensor] | None":
    """The inputs of the first golden case, if they can only be forward's own."""
    rank = 1 if subject.manifest.max_batch_size else 0
    # A last axis of 1 may be the export's: the protocol has no scalars, so it appends one.
    if any(len(t.shape) == rank + 1 and t.shape[-1] == 1 for t in subject.manifest.inputs):
        return None
    inputs = subject.cases[0].inputs
    return {t.name: to_tensor(inputs[t.name], t.datatype) for t in subject.manifest.inputs}
