"""The tensors of a config against those of its model: names, datatypes, dims and the batch axis."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from naiad.model_config.complete import ArtifactSignature, ArtifactTensor
from naiad.model_config.config_text import FieldPath
from naiad.model_config.diagnose import Diagnosis, Finding, nearest, type_name
from naiad.model_config.schema import DataType, ModelSequenceBatching

_ANY: Final = -1
# What Triton's auto-completion gives a model that batches and whose config does not say how many.
_DEFAULT_BATCH: Final = 4
_Control = ModelSequenceBatching.Control
_CONTROL_KINDS: Final = (
    ("START", _Control.CONTROL_SEQUENCE_START),
    ("END", _Control.CONTROL_SEQUENCE_END),
    ("READY", _Control.CONTROL_SEQUENCE_READY),
    ("CORR", _Control.CONTROL_SEQUENCE_CORRID),
)
_FALSE_TRUE: Final = {
    DataType.TYPE_INT32: "int32_false_true",
    DataType.TYPE_FP32: "fp32_false_true",
    DataType.TYPE_BOOL: "bool_false_true",
}


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of the model's tensors, and from where.

    Attributes:
        signature: shapes with the batch axis where there is one; None for a shape that is not
            known.
        source: that says so, as the subject of a sentence: ``model.onnx``.
        has_max_batch_size: the text of the config says a max_batch_size, be it 0.
    """

    signature: ArtifactSignature
    source: str
    has_max_batch_size: bool


@dataclass(frozen=True, slots=True)
class _Pair:
    """A tensor of the config and the tensor of the model that it stands for."""

    role: str
    index: int
    config: Any
    model: ArtifactTensor

    def path(self, field: str) -> FieldPath:
        return (self.role, self.index, field)

    def label(self) -> str:
        return f"{self.role} '{self.config.name}'"


def diagnose_tensors(diagnosis: Diagnosis, evidence: Evidence) -> None:
    """Hold every input, output and control of the config against the model, and correct it."""
    signature = evidence.signature
    _diagnose_controls(diagnosis, evidence)
    fed = _server_fed(diagnosis)
    inputs = [tensor for tensor in signature.inputs if tensor.name not in fed]
    pairs = []
    if diagnosis.declared.input:
        optional = [tensor for tensor in signature.overridable_inputs if tensor.name not in fed]
        pairs += _match_names(diagnosis, "input", inputs, optional, evidence)
    if diagnosis.declared.output:
        pairs += _match_names(diagnosis, "output", (), signature.outputs, evidence)
    for pair in pairs:
        _diagnose_datatype(diagnosis, pair, evidence)
    _diagnose_shapes(diagnosis, [p for p in pairs if p.model.shape is not None], evidence)


def drop_batching(diagnosis: Diagnosis) -> None:
    """Correct the config to a model without a batch axis; its dims are the caller's to change."""
    config = diagnosis.wanted
    config.max_batch_size = 0
    config.ClearField("dynamic_batching")


def set_dims(diagnosis: Diagnosis, role: str, index: int, shape: Sequence[int]) -> None:
    """Give a tensor of the config these dims; a scalar becomes a vector of one."""
    config = diagnosis.wanted
    tensor = getattr(config, role)[index]
    del tensor.dims[:]
    tensor.dims.extend(dim or _ANY for dim in shape or (1,))
    tensor.ClearField("reshape")
    if not shape and config.max_batch_size:
        tensor.reshape.SetInParent()


def write_whole_shape(
    diagnosis: Diagnosis, role: str, index: int, shape: Sequence[int], source: str
) -> None:
    """Give a tensor of a model without batches its whole shape as dims, and note the change."""
    tensor = getattr(diagnosis.wanted, role)[index]
    given = list(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)
    if given == list(shape) or list(tensor.dims) == list(shape):
        return
    before = list(tensor.dims)
    set_dims(diagnosis, role, index, shape)
    diagnosis.add(
        Finding(
            "batch-axis-missing",
            f"The {role} '{tensor.name}' has the dims {before} without a batch axis.",
            f"With max_batch_size 0 the dims are the whole shape, {list(shape)} in {source}.",
            (role, index, "dims"),
        )
    )


def _match_names(
    diagnosis: Diagnosis,
    role: str,
    required: Sequence[ArtifactTensor],
    optional: Sequence[ArtifactTensor],
    evidence: Evidence,
) -> list[_Pair]:
    """Pair the config's tensors with the model's, by name or by what was probably meant."""
    by_name = {tensor.name: tensor for tensor in (*required, *optional)}
    entries = diagnosis.kept(role)
    used = {tensor.name for _, tensor in entries if tensor.name in by_name}
    free = [name for name in by_name if name not in used]
    pairs = []
    for index, tensor in entries:
        name = tensor.name
        if name not in by_name and getattr(tensor, "optional", False):
            # It may stand for a value in the graph, which a signature need not show.
            continue
        if name not in by_name:
            meant = _meant(name, free, len(entries) - len(used))
            _report_unknown(diagnosis, (role, index), meant, list(by_name), evidence)
            if meant is None:
                continue
            free.remove(meant)
            used.add(meant)
            name = meant
        pairs.append(_Pair(role, index, tensor, by_name[name]))
    for tensor in required:
        if tensor.name in free:
            _report_missing(diagnosis, role, tensor, evidence)
    return pairs


def _meant(name: str, free: Sequence[str], unknown_count: int) -> str | None:
    near = nearest(name, free)
    if near is None and free and len(free) >= unknown_count == 1:
        return free[0]
    if near is None and len(free) == unknown_count:
        return free[0]
    return near


def _report_unknown(
    diagnosis: Diagnosis,
    place: tuple[str, int],
    meant: str | None,
    known: Sequence[str],
    evidence: Evidence,
) -> None:
    role, index = place
    tensor = getattr(diagnosis.wanted, role)[index]
    problem = f"The model has no {role} '{tensor.name}'."
    names = ", ".join(f"'{name}'" for name in known) or "none"
    why = f"{evidence.source} has the {role}s {names}."
    if meant is None:
        diagnosis.remove(role, index)
    else:
        why += f" '{meant}' is probably meant."
        tensor.name = meant
    diagnosis.add(Finding(f"unknown-{role}", problem, why, (role, index, "name")))


def _report_missing(
    diagnosis: Diagnosis, role: str, tensor: ArtifactTensor, evidence: Evidence
) -> None:
    added = getattr(diagnosis.wanted, role).add(name=tensor.name)
    index = len(getattr(diagnosis.wanted, role)) - 1
    if tensor.datatype is not None:
        added.data_type = cast("DataType", tensor.datatype.config_number)
    shape = tensor.shape or ()
    is_batched = diagnosis.wanted.max_batch_size > 0 and bool(shape)
    set_dims(diagnosis, role, index, shape[1:] if is_batched else shape)
    diagnosis.add(
        Finding(
            f"missing-{role}",
            f"The config lacks the {role} '{tensor.name}'.",
            f"{evidence.source} needs it in every request.",
            (role, index),
            is_fixable=tensor.datatype is not None,
        )
    )


def _diagnose_datatype(diagnosis: Diagnosis, pair: _Pair, evidence: Evidence) -> None:
    datatype = pair.model.datatype
    given = pair.config.data_type
    if datatype is None or datatype.config_number == given:
        return
    pair.config.data_type = cast("DataType", datatype.config_number)
    diagnosis.add(
        Finding(
            "datatype-differs",
            f"The {pair.label()} has {type_name(given)}.",
            f"{evidence.source} has {datatype.config_name} there.",
            pair.path("data_type"),
        )
    )


def _diagnose_shapes(diagnosis: Diagnosis, pairs: Sequence[_Pair], evidence: Evidence) -> None:
    fixed = [pair for pair in pairs if not (pair.model.shape and pair.model.shape[0] == _ANY)]
    if diagnosis.wanted.max_batch_size > 0 and fixed:
        _report_no_batching(diagnosis, pairs, fixed, evidence)
        return
    is_unset = diagnosis.wanted.max_batch_size == 0 and not evidence.has_max_batch_size
    if is_unset and _lacks_batch_everywhere(pairs):
        _report_no_max_batch_size(diagnosis, evidence)
    for pair in pairs:
        _diagnose_dims(diagnosis, pair, evidence)


def _report_no_batching(
    diagnosis: Diagnosis, pairs: Sequence[_Pair], fixed: Sequence[_Pair], evidence: Evidence
) -> None:
    """A model that has no open first axis everywhere; Triton batches no such model."""
    shapes = ", ".join(f"{p.label()} has the shape {_list(p.model.shape or ())}" for p in fixed)
    size = diagnosis.wanted.max_batch_size
    drop_batching(diagnosis)
    # Each row of a batch has to be counted in the first axis of every tensor.
    diagnosis.add(
        Finding(
            "cannot-batch",
            f"max_batch_size is {size}, and the model can't batch.",
            f"In {evidence.source}, {shapes}: the first axis takes no other number of rows. "
            "Export the model again with a dynamic batch axis, or serve it without batches.",
            ("max_batch_size",),
        )
    )
    for pair in pairs:
        write_whole_shape(diagnosis, pair.role, pair.index, pair.model.shape or (), evidence.source)


def _lacks_batch_everywhere(pairs: Sequence[_Pair]) -> bool:
    return bool(pairs) and all(
        pair.model.shape
        and pair.model.shape[0] == _ANY
        and _fits(pair.model.shape[1:], _shape_of(pair))
        for pair in pairs
    )


def _report_no_max_batch_size(diagnosis: Diagnosis, evidence: Evidence) -> None:
    diagnosis.wanted.max_batch_size = _DEFAULT_BATCH
    diagnosis.add(
        Finding(
            "batch-axis-missing",
            "The config has no max_batch_size, and its dims have no batch axis.",
            f"{evidence.source} has a batch axis in front of every tensor. With max_batch_size "
            "dims leave it out; without, they would have to begin with -1.",
            ("max_batch_size",),
        )
    )


def _diagnose_dims(diagnosis: Diagnosis, pair: _Pair, evidence: Evidence) -> None:
    shape = pair.model.shape or ()
    is_batched = diagnosis.wanted.max_batch_size > 0
    expected = shape[1:] if is_batched else shape
    # A reshape of no dims at all is no reshape.
    given = _shape_of(pair) if pair.config.dims else ()
    if (given == expected and pair.config.dims) or (
        not expected and set(pair.config.dims) == {1} and not is_batched
    ):
        return
    problem = f"The {pair.label()} has the dims {_list(given)}."
    why = f"{evidence.source} has the shape {_list(shape)}"
    if len(given) == len(expected):
        code, reason = _describe_dims(given, expected)
        why += f", {reason}"
    elif is_batched and _fits(shape, given) and (expected or given == (_ANY,)):
        code = "batch-axis-in-dims"
        why += (
            f", and max_batch_size {diagnosis.wanted.max_batch_size} puts the batch axis in front "
            f"of the dims by itself: together they say {_list((_ANY, *given))}."
        )
    elif not is_batched and shape and shape[0] == _ANY and _fits(shape[1:], given):
        code = "batch-axis-missing"
        why += ", and with max_batch_size 0 the dims are the whole shape, batch axis included."
    else:
        code = "rank-differs"
        in_front = "with the batch axis in front " if is_batched else ""
        why += f", {len(shape)} axes; the config says {len(given) + is_batched} {in_front}."
        why = why.replace(" .", ".")
    if not diagnosis.is_ignored(code):
        set_dims(diagnosis, pair.role, pair.index, expected)
    diagnosis.add(Finding(code, problem, why, pair.path("dims")))


def _describe_dims(given: Sequence[int], expected: Sequence[int]) -> tuple[str, str]:
    if any(dim == 0 or dim < _ANY for dim in given):
        return "dims-differ", "and a dim is a length of at least 1, or -1 for any length."
    differing = [(g, e) for g, e in zip(given, expected, strict=True) if g != e]
    if all(expected_dim == _ANY for _, expected_dim in differing):
        return "fixed-dim", (
            "where -1 stands for any length: other lengths would be refused, though the model "
            "takes them."
        )
    if all(given_dim == _ANY for given_dim, _ in differing):
        return "dynamic-dim", "which is fixed there: any other length fails in the model."
    return "dims-differ", "which no request with these dims can have."


def _shape_of(pair: _Pair) -> tuple[int, ...]:
    """What the config says the model sees, without a batch axis in front."""
    tensor = pair.config
    return tuple(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)


def _fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    """Whether dims may stand for a shape: as many axes, and no two fixed lengths that differ."""
    return len(shape) == len(dims) and all(
        _ANY in (length, dim) or length == dim for length, dim in zip(shape, dims, strict=True)
    )


def _list(shape: Sequence[int]) -> str:
    return str(list(shape))


def _server_fed(diagnosis: Diagnosis) -> set[str]:
    """Inputs of the model that no request brings."""
    config = diagnosis.wanted
    names = {control.name for control in config.sequence_batching.control_input}
    names.update(state.input_name for state in config.sequence_batching.state)
    names.update(name for batch_input in config.batch_input for name in batch_input.target_name)
    return names


def _diagnose_controls(diagnosis: Diagnosis, evidence: Evidence) -> None:
    config = diagnosis.wanted
    if not config.HasField("sequence_batching"):
        return
    taken = {tensor.name for tensor in config.input} | _server_fed(diagnosis)
    free = {t.name: t for t in evidence.signature.inputs if t.name not in taken}
    known = {tensor.name for tensor in evidence.signature.inputs}
    batching = config.sequence_batching
    for index, control in enumerate(batching.control_input):
        if control.name not in known:
            meant = nearest(control.name, list(free))
            _report_control(diagnosis, index, meant, evidence)
            free.pop(meant or "", None)
    for index in reversed(range(len(batching.control_input))):
        if not batching.control_input[index].name:
            del batching.control_input[index]
    for tensor, kind in _control_candidates(free.values(), batching):
        _add_control(diagnosis, tensor, kind, evidence)


def _report_control(
    diagnosis: Diagnosis, index: int, meant: str | None, evidence: Evidence
) -> None:
    control = diagnosis.wanted.sequence_batching.control_input[index]
    name = control.name
    hint = f" '{meant}' is probably meant." if meant else ""
    # Without a name it is taken out once all are numbered.
    control.name = meant or ""
    diagnosis.add(
        Finding(
            "sequence-control",
            f"The sequence control '{name}' is no input of the model.",
            f"{evidence.source} does not have it.{hint}",
            ("sequence_batching", "control_input", index),
        )
    )


def _control_candidates(
    free: Any, batching: ModelSequenceBatching
) -> Iterator[tuple[ArtifactTensor, "_Control.Kind"]]:
    """Inputs that nothing feeds and that look like a control: by name, one element each."""
    present = {control.kind for entry in batching.control_input for control in entry.control}
    for tensor in free:
        for word, kind in _CONTROL_KINDS:
            is_like = word in tensor.name.upper() and (tensor.shape or (1,))[-1] == 1
            if is_like and kind not in present:
                present.add(kind)
                yield tensor, kind
                break


def _add_control(
    diagnosis: Diagnosis, tensor: ArtifactTensor, kind: "_Control.Kind", evidence: Evidence
) -> None:
    number = tensor.datatype.config_number if tensor.datatype else 0
    entry = diagnosis.wanted.sequence_batching.control_input.add(name=tensor.name)
    control = entry.control.add(kind=kind)
    if kind == _Control.CONTROL_SEQUENCE_CORRID:
        control.data_type = cast("DataType", number)
    elif number in _FALSE_TRUE:
        getattr(control, _FALSE_TRUE[cast("DataType", number)]).extend([0, 1])
    diagnosis.add(
        Finding(
            "sequence-control",
            f"Nothing feeds the model's input '{tensor.name}'.",
            f"{evidence.source} needs it, no request brings it, and its name is that of a "
            "sequence control.",
            ("sequence_batching",),
        )
    )
