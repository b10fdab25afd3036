"""What is known of a model's tensors besides its config, in the order in which it is trusted.

The model file's own declaration; the golden cases and ``naiad.json`` that an export left; shapes
that the user gives as an example.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from naiad.check.trial import Array, Shape, Trials
from naiad.errors import InvalidArgumentError, NaiadError
from naiad.inference.datatypes import BY_NAME
from naiad.model_config.complete import (
    ArtifactSignature,
    ArtifactTensor,
    read_signature,
    with_shape,
)
from naiad.model_config.diagnose import Diagnosis
from naiad.model_config.diagnose_tensors import Evidence
from naiad.model_config.schema import ModelConfig
from naiad.repository.diagnose_folder import Subject
from naiad.repository.golden import MANIFEST_NAME, read_cases, read_manifest

_EXAMPLE: Final = re.compile(r"(?:(?P<name>.+):)?(?P<shape>\d+(?:[,x]\d+)*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Samples:
    """Inputs to run the model with, where any are known.

    Attributes:
        shapes: of inputs by name, with the batch axis where the model has one.
        data: whole inputs by name; empty where only shapes are known.
    """

    shapes: Mapping[str, Shape] = field(default_factory=dict)
    data: Mapping[str, Array] = field(default_factory=dict)

    def of_batch(self, config: ModelConfig, batch_size: int) -> Mapping[str, Array] | None:
        """The data with as many rows; None where it is not for this config."""
        required = {tensor.name for tensor in config.input if not tensor.optional}
        if not self.data or set(self.data) != required:
            return None
        if not config.max_batch_size:
            return self.data
        return {name: np.resize(a, (batch_size, *a.shape[1:])) for name, a in self.data.items()}


@dataclass(frozen=True, slots=True)
class Known:
    """Evidence and samples about one model.

    Attributes:
        evidence: None where nothing is known but the config.
        samples: to run the model with.
        inferred: what the backend completes from the model file alone; None where it can't.
        error: why it can't, else "".
    """

    evidence: Evidence | None
    samples: Samples
    inferred: ModelConfig | None = None
    error: str = ""

    def with_shape(self, name: str, shape: Shape) -> "Known":
        """The same, but for the shape of one tensor."""
        evidence = self.evidence
        if evidence is None:
            return self
        signature = with_shape(evidence.signature, name, shape)
        return replace(self, evidence=replace(evidence, signature=signature))


def parse_example(text: str) -> tuple[str, Shape]:
    """Read ``NAME:2,16``, or ``2,16`` for a model with one input; the name is "" then.

    Raises:
        InvalidArgumentError: it is no such text.
    """
    match = _EXAMPLE.fullmatch(text)
    if match is None:
        raise InvalidArgumentError(
            f"--example takes [NAME:]SHAPE with lengths of at least 0, such as input_ids:2,16; "
            f"got '{text}'"
        )
    return match["name"] or "", tuple(int(n) for n in re.split("[,x]", match["shape"]))


def gather(
    diagnosis: Diagnosis,
    subject: Subject,
    trials: Trials,
    examples: Sequence[tuple[str, Shape]],
    *,
    has_max_batch_size: bool,
) -> Known:
    """Everything that is known about the tensors of one model."""
    samples = _read_samples(subject)
    given = _example_shapes(diagnosis.wanted, examples)
    if not samples.data:
        samples = Samples(given)
    inferred, failure = None, ""
    try:
        inferred = trials.infer(diagnosis.result(), subject)
    except NaiadError as error:
        failure = error.message
    if inferred is not None and (inferred.input or inferred.output):
        source = inferred.default_model_filename or "The model file"
        evidence = Evidence(read_signature(inferred), source, has_max_batch_size)
        return Known(evidence, samples, inferred)
    signature = _manifest_signature(diagnosis, subject.directory)
    if signature is not None:
        return Known(Evidence(signature, MANIFEST_NAME, has_max_batch_size), samples, None, failure)
    if given:
        evidence = Evidence(
            _example_signature(diagnosis.wanted, given), "The example", has_max_batch_size
        )
        return Known(evidence, samples, None, failure)
    return Known(None, samples, None, failure)


def _read_samples(subject: Subject) -> Samples:
    try:
        case = next(iter(read_cases(subject.directory)), None)
    except NaiadError:
        return Samples()
    return Samples({}, case.inputs) if case is not None else Samples()


def _manifest_signature(diagnosis: Diagnosis, directory: Path) -> ArtifactSignature | None:
    try:
        manifest = read_manifest(directory)
    except NaiadError:
        return None
    sides = []
    for records, entries in (
        (manifest.inputs, diagnosis.kept("input")),
        (manifest.outputs, diagnosis.kept("output")),
    ):
        names = [record.name for record in records]
        given = [tensor.name for _, tensor in entries]
        # A TorchScript file keeps no names: the config may have others, in the same order.
        if set(names) != set(given) and len(names) == len(given):
            names = given
        sides.append(
            [
                ArtifactTensor(name, BY_NAME[record.datatype], record.shape)
                for name, record in zip(names, records, strict=True)
            ]
        )
    return ArtifactSignature(sides[0], sides[1])


def _example_shapes(config: ModelConfig, examples: Sequence[tuple[str, Shape]]) -> dict[str, Shape]:
    """The examples that fit this model's inputs by name; without a name, the only input."""
    names = [tensor.name for tensor in config.input]
    shapes = {}
    for name, shape in examples:
        if name in names:
            shapes[name] = shape
        elif not name and len(names) == 1:
            shapes[names[0]] = shape
    return shapes


def _example_signature(config: ModelConfig, shapes: Mapping[str, Shape]) -> ArtifactSignature:
    """What a shape shows: how many axes there are, and which lengths the config gets wrong."""
    inputs = []
    for tensor in config.input:
        example = shapes.get(tensor.name)
        shape = None if example is None else _generalize(example, tuple(tensor.dims))
        inputs.append(ArtifactTensor(tensor.name, None, shape))
    outputs = [ArtifactTensor(tensor.name, None, None) for tensor in config.output]
    return ArtifactSignature(inputs, outputs)


def _generalize(example: Shape, dims: Shape) -> Shape:
    """The example's first axis as a batch; the others as the config has them, where it agrees."""
    tail = dims[len(dims) - len(example) + 1 :] if len(dims) >= len(example) - 1 else ()
    if len(tail) != len(example) - 1:
        tail = (-1,) * (len(example) - 1)
    agreed = [d if d in {-1, e} else e for d, e in zip(tail, example[1:], strict=True)]
    return (-1, *agreed)
