"""A config as the file declares it, as the model implies it and as it is served."""

from collections.abc import Iterator
from typing import Any

from naiad.check.config_table import ConfigRow
from naiad.model_config.schema import DataType, ModelConfig, ModelInstanceGroup

_SCALARS = ("backend", "platform", "default_model_filename", "max_batch_size")


def compare_configs(
    declared: ModelConfig, inferred: ModelConfig | None, effective: ModelConfig
) -> list[ConfigRow]:
    """One row for each field that any of the three says.

    Args:
        declared: as read from the file; empty where there is none.
        inferred: completed from the model file alone, or None.
        effective: complete, with the corrections.
    """
    sides = [
        _fields(declared, is_declared=True),
        {} if inferred is None else _fields(inferred),
        _fields(effective),
    ]
    names = list(dict.fromkeys(name for side in (sides[2], *sides) for name in side))
    return [_row(name, *(side.get(name, "") for side in sides)) for name in names]


def _row(name: str, declared: str, inferred: str, effective: str) -> ConfigRow:
    if declared and declared == effective:
        why = "as declared"
    elif declared and not effective:
        why = "taken out"
    elif declared:
        why = "corrected, as the model has it" if effective == inferred else "corrected"
    elif effective == inferred:
        # No file says how many instances there are to be.
        why = "server default" if name == "instance_group" else "from the model"
    elif effective and name.partition(" ")[0] in {"input", "output"}:
        why = "corrected"
    else:
        why = "Triton default" if effective else "left out"
    return ConfigRow(name, declared, inferred, effective, why)


def _fields(config: ModelConfig, *, is_declared: bool = False) -> dict[str, str]:
    return dict(_describe(config, is_declared=is_declared))


def _describe(config: ModelConfig, *, is_declared: bool) -> Iterator[tuple[str, str]]:
    for name in _SCALARS:
        value = getattr(config, name)
        # A file that says nothing of it says 0, too; what is served always has a limit.
        if value or (name == "max_batch_size" and not is_declared):
            yield name, str(value)
    for role in ("input", "output"):
        for tensor in getattr(config, role):
            yield f"{role} {tensor.name}", _tensor(tensor)
    scheduler = config.WhichOneof("scheduling_choice")
    if scheduler:
        yield "scheduler", scheduler
    if config.instance_group:
        groups = [
            f"{group.count or 'default'} x {ModelInstanceGroup.Kind.Name(group.kind)}"
            for group in config.instance_group
        ]
        yield "instance_group", ", ".join(groups)


def _tensor(tensor: Any) -> str:
    text = f"{DataType.Name(tensor.data_type)} {list(tensor.dims)}"
    if tensor.HasField("reshape"):
        text += f" reshape {list(tensor.reshape.shape)}"
    return text
