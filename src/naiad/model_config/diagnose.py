"""What is wrong with a model config, why, and the block that would be right.

Validation stops at the first mistake with Triton's text; a diagnosis names them all and corrects a
copy of the config on the way. It reads values only: what the model file declares comes as an
`ArtifactSignature`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Final

from google.protobuf.message import Message

from naiad.inference.datatypes import BY_CONFIG_NUMBER
from naiad.model_config.config_text import FieldPath
from naiad.model_config.schema import ModelConfig, ModelInstanceGroup
from naiad.model_config.text_edit import format_fields, without
from naiad.model_config.text_repair import find_variables

# A parameter with this key silences findings: codes of SILENCEABLE, separated by commas.
IGNORE_PARAMETER: Final = "naiad.check.ignore"
# What a team may want as it is; every other finding is about a model that would not load or answer.
SILENCEABLE: Final = frozenset({"batch-axis-twice", "fixed-dim", "label-count", "torchscript-name"})
_NEAR: Final = 0.5
_TEMPLATE_FIELDS: Final = ("name", "backend", "platform", "default_model_filename")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        code: short and stable, such as ``batch-axis-in-dims``.
        problem: what is wrong, in one sentence.
        why: what shows it.
        path: the field of the config.
        block: the corrected field to paste; "" where none can be known.
        is_fixable: the block is certain enough to be written without asking.
    """

    code: str
    problem: str
    why: str
    path: FieldPath = ()
    block: str = ""
    is_fixable: bool = True


class Diagnosis:
    """Findings about one config, and the config as it should be.

    Attributes:
        declared: as read.
        wanted: a copy that the checks correct. Values of its repeated fields keep their index;
            those that have to go are in ``removed``.
        removed: name and index of values of the config's own repeated fields.
    """

    def __init__(self, declared: ModelConfig) -> None:
        self.declared = declared
        self.wanted = ModelConfig()
        self.wanted.CopyFrom(declared)
        self.removed: list[tuple[str, int]] = []
        self._findings: list[Finding] = []
        ignored = declared.parameters[IGNORE_PARAMETER].string_value if (
            IGNORE_PARAMETER in declared.parameters
        ) else ""  # fmt: skip
        self._ignored = frozenset(code.strip() for code in ignored.split(","))

    def fork(self) -> "Diagnosis":
        """A diagnosis that goes on from here, and leaves this one as it is."""
        fork = Diagnosis(self.declared)
        fork.wanted.CopyFrom(self.wanted)
        fork.removed = list(self.removed)
        fork._findings = list(self._findings)
        return fork

    def add(self, finding: Finding) -> None:
        """Note a finding, unless the config silences its kind."""
        if not self.is_ignored(finding.code):
            self._findings.append(finding)

    def is_ignored(self, code: str) -> bool:
        """Whether the config silences findings of this code; then nothing is corrected either."""
        return code in self._ignored and code in SILENCEABLE

    def remove(self, name: str, index: int) -> None:
        """Take one value of a repeated field of the config out."""
        self.removed.append((name, index))

    def kept(self, name: str) -> list[tuple[int, Any]]:
        """The values of a repeated field that stay, with their index."""
        values = getattr(self.wanted, name)
        return [(i, value) for i, value in enumerate(values) if (name, i) not in self.removed]

    def result(self) -> ModelConfig:
        """The config as it should be."""
        return without(self.wanted, self.removed)

    def findings(self, write: Callable[[Message], str] = format_fields) -> list[Finding]:
        """All findings, each with the block of the final correction.

        Args:
            write: the language of the blocks.
        """
        return [self._complete(finding, write) for finding in self._findings]

    def _complete(self, finding: Finding, write: Callable[[Message], str]) -> Finding:
        if finding.block or not finding.is_fixable:
            return finding
        return replace(finding, block=self._block(finding.path, write))

    def _block(self, path: FieldPath, write: Callable[[Message], str]) -> str:
        """The corrected field that a path leads into, from the top level of the config on."""
        if not path:
            return ""
        name = str(path[0])
        index = path[1] if len(path) > 1 else None
        if isinstance(index, int) and (name, index) in self.removed:
            return f"# nothing: take this {name} out"
        subset = ModelConfig()
        field = ModelConfig.DESCRIPTOR.fields_by_name[name]
        value = getattr(self.wanted, name)
        if field.is_repeated and isinstance(index, int):
            getattr(subset, name).append(value[index])
        elif field.is_repeated:
            subset.MergeFrom(_only(self.wanted, name))
        elif field.message_type is not None:
            if self.wanted.HasField(name):
                getattr(subset, name).CopyFrom(value)
        else:
            setattr(subset, name, value)
            if value == 0:
                return f"{name}: 0"
        return write(subset) or f"# nothing: take {name} out"


def format_finding(finding: Finding, place: str, note: str = "") -> list[str]:
    """A finding as people read it: the place alone on a line, then problem, reason and block.

    Args:
        finding: with its block.
        place: ``path:line:column``, which terminals and editors make a link of.
        note: that follows the code.
    """
    lines = [place, f"[{finding.code}]{note} {finding.problem}"]
    if finding.why:
        lines.append(finding.why)
    if finding.block:
        lines.append("Corrected:" if finding.is_fixable else "To correct it:")
        lines.extend(f"  {line}" for line in finding.block.splitlines())
    return lines


def nearest(name: str, candidates: Sequence[str], cutoff: float = _NEAR) -> str | None:
    """The candidate that was probably meant, or None; ``cutoff`` is difflib's, from 0 to 1."""
    folded = {candidate.casefold(): candidate for candidate in candidates}
    close = get_close_matches(name.casefold(), folded, n=1, cutoff=cutoff)
    return folded[close[0]] if close else None


def type_name(number: int) -> str:
    """A datatype as a config writes it."""
    datatype = BY_CONFIG_NUMBER.get(number)
    return "no data_type" if datatype is None else datatype.config_name


def diagnose_variables(diagnosis: Diagnosis, directory_name: str) -> set[str]:
    """Variables of a template in the names of a config; returns those that are noted."""
    wanted = diagnosis.wanted
    taken = set()
    for name in _TEMPLATE_FIELDS:
        variables = find_variables(getattr(wanted, name))
        if variables:
            variable = variables[0][1]
            taken.add(variable)
            setattr(wanted, name, directory_name if name == "name" else "")
            diagnosis.add(
                Finding(
                    "template-variable",
                    f"The template variable {variable} was left in.",
                    "Nothing replaces it when the model is loaded.",
                    (name,),
                )
            )
    return taken


def diagnose_name(diagnosis: Diagnosis, directory_name: str) -> None:
    """The config's name against that of its folder."""
    name = diagnosis.wanted.name
    if not name or name == directory_name:
        return
    diagnosis.wanted.name = directory_name
    diagnosis.add(
        Finding(
            "name-differs",
            f"The config names the model '{name}', its folder '{directory_name}'.",
            "Clients ask by the folder's name, and Triton loads the model only if both are equal.",
            ("name",),
        )
    )


def diagnose_settings(diagnosis: Diagnosis, gpu_ids: Sequence[int] | None) -> None:
    """Batch sizes and instance groups, which need no look at the model.

    Args:
        diagnosis: of the config.
        gpu_ids: the GPUs of the server; None where they are not known.
    """
    config = diagnosis.wanted
    if config.max_batch_size < 0:
        diagnosis.add(
            Finding(
                "max-batch-size-negative",
                f"max_batch_size is {config.max_batch_size}.",
                "It counts rows; 0 means that the model has no batch axis.",
                ("max_batch_size",),
            )
        )
        config.max_batch_size = 0
    _diagnose_preferred(diagnosis)
    _diagnose_priority(diagnosis)
    _diagnose_duplicates(diagnosis)
    if config.HasField("ensemble_scheduling"):
        # It must have none at all, which is another finding.
        return
    for index, group in enumerate(config.instance_group):
        _diagnose_group(diagnosis, index, group, gpu_ids)


def _diagnose_preferred(diagnosis: Diagnosis) -> None:
    config = diagnosis.wanted
    places: list[tuple[FieldPath, Any]] = []
    if config.HasField("dynamic_batching"):
        path: FieldPath = ("dynamic_batching", "preferred_batch_size")
        places.append((path, config.dynamic_batching.preferred_batch_size))
    if config.sequence_batching.HasField("oldest"):
        path = ("sequence_batching", "oldest", "preferred_batch_size")
        places.append((path, config.sequence_batching.oldest.preferred_batch_size))
    for path, sizes in places:
        wrong = [size for size in sizes if not 0 < size <= config.max_batch_size]
        if not wrong:
            continue
        kept = [size for size in sizes if 0 < size <= config.max_batch_size]
        if not kept and config.max_batch_size:
            kept = [config.max_batch_size]
        del sizes[:]
        sizes.extend(kept)
        diagnosis.add(
            Finding(
                "preferred-size",
                f"preferred_batch_size holds {', '.join(map(str, wrong))}.",
                f"A batch has 1 to {config.max_batch_size} rows, because max_batch_size is "
                f"{config.max_batch_size}.",
                path,
            )
        )


def _diagnose_priority(diagnosis: Diagnosis) -> None:
    batching = diagnosis.wanted.dynamic_batching
    levels, default = batching.priority_levels, batching.default_priority_level
    if not levels or 1 <= default <= levels:
        return
    batching.default_priority_level = min(max(default, 1), levels)
    diagnosis.add(
        Finding(
            "priority-level",
            f"default_priority_level is {default}.",
            f"Requests that name none take it, and there are the levels 1 to {levels}; 1 is the "
            "highest.",
            ("dynamic_batching", "default_priority_level"),
        )
    )


def _diagnose_duplicates(diagnosis: Diagnosis) -> None:
    for role in ("input", "output"):
        seen: set[str] = set()
        for index, tensor in diagnosis.kept(role):
            if tensor.name in seen:
                diagnosis.remove(role, index)
                diagnosis.add(
                    Finding(
                        "duplicate-name",
                        f"The config has the {role} '{tensor.name}' twice.",
                        "Requests tell tensors by name.",
                        (role, index),
                    )
                )
            seen.add(tensor.name)


def _diagnose_group(
    diagnosis: Diagnosis, index: int, group: ModelInstanceGroup, gpu_ids: Sequence[int] | None
) -> None:
    path: FieldPath = ("instance_group", index, "gpus")
    given = list(group.gpus)
    if group.count < 0:
        diagnosis.add(
            Finding(
                "instance-count",
                f"The instance group has the count {group.count}.",
                "It counts instances; without one the backend's default is taken.",
                ("instance_group", index, "count"),
            )
        )
        group.ClearField("count")
    if group.kind in {ModelInstanceGroup.KIND_CPU, ModelInstanceGroup.KIND_MODEL} and given:
        kind = ModelInstanceGroup.Kind.Name(group.kind)
        del group.gpus[:]
        diagnosis.add(
            Finding(
                "gpus-without-kind",
                f"The instance group is of {kind} and lists gpus.",
                "Only KIND_GPU and KIND_AUTO take a list of GPUs.",
                path,
            )
        )
    elif group.kind == ModelInstanceGroup.KIND_GPU and gpu_ids is not None and not gpu_ids:
        group.kind = ModelInstanceGroup.KIND_CPU
        del group.gpus[:]
        diagnosis.add(
            Finding(
                "no-gpu",
                "The instance group asks for KIND_GPU.",
                "This server has no GPU. KIND_AUTO takes one where there is one; with "
                "--gpu-fallback=cpu the server runs such groups on the CPU.",
                ("instance_group", index, "kind"),
            )
        )
    elif gpu_ids is not None and set(given) - set(gpu_ids):
        unknown = [gpu for gpu in given if gpu not in gpu_ids]
        del group.gpus[:]
        group.gpus.extend([gpu for gpu in given if gpu in gpu_ids] or gpu_ids[:1])
        diagnosis.add(
            Finding(
                "gpu-id",
                f"The instance group lists GPU {', '.join(map(str, unknown))}.",
                f"This server has GPU {', '.join(map(str, gpu_ids)) or 'none'}.",
                path,
            )
        )


def locate(message: str, config: ModelConfig) -> FieldPath:
    """The field that a text of validation speaks of; () where it can't be told."""
    if "warmup" in message:
        return ("model_warmup",)
    for name in ("input", "output"):
        for index, tensor in enumerate(getattr(config, name)):
            if tensor.name and f"'{tensor.name}'" in message:
                return (name, index)
    for words, path in _WORDS:
        if words in message and config.ListFields():
            return path
    return ()


_WORDS: Final[Sequence[tuple[str, FieldPath]]] = (
    ("sequence", ("sequence_batching",)),
    ("ensemble", ("ensemble_scheduling",)),
    ("step", ("ensemble_scheduling",)),
    ("preferred size", ("dynamic_batching", "preferred_batch_size")),
    ("priority", ("dynamic_batching",)),
    ("Queue policy", ("dynamic_batching",)),
    ("instance group", ("instance_group",)),
    ("version policy", ("version_policy",)),
    ("'max_batch_size'", ("max_batch_size",)),
    ("max_batch_size", ("max_batch_size",)),
    ("platform", ("platform",)),
    ("backend", ("backend",)),
    ("Response Cache", ("response_cache",)),
    ("metric", ("model_metrics",)),
    ("histogram options", ("model_metrics",)),
    ("batch input", ("batch_input",)),
    ("batch output", ("batch_output",)),
    ("model input", ("input",)),
    ("model output", ("output",)),
)


def _only(config: ModelConfig, name: str) -> ModelConfig:
    subset = ModelConfig()
    subset.CopyFrom(config)
    for field, _ in config.ListFields():
        if field.name != name:
            subset.ClearField(field.name)
    return subset
