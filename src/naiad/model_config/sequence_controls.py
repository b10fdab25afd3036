"""The control inputs of a sequence model, as its config describes them."""

from collections.abc import Iterator

from naiad.inference.datatypes import BOOL, BY_CONFIG_NUMBER, FP32, INT32, Datatype
from naiad.model_config.schema import ModelSequenceBatching

# Of every control, without the batch axis.
CONTROL_DIMS = (1,)


def list_controls(
    batching: ModelSequenceBatching,
) -> Iterator[tuple[str, ModelSequenceBatching.Control]]:
    """Every control with the name of its tensor."""
    for control_input in batching.control_input:
        for control in control_input.control:
            yield control_input.name, control


def control_datatype(control: ModelSequenceBatching.Control) -> Datatype | None:
    """What the values of a control are; None where the config gives none of the protocol's."""
    if control.int32_false_true:
        return INT32
    if control.fp32_false_true:
        return FP32
    return BOOL if control.bool_false_true else BY_CONFIG_NUMBER.get(control.data_type)


def control_values(control: ModelSequenceBatching.Control) -> tuple[float, float]:
    """What stands for false and true; the control must be valid and not the correlation id."""
    false_true = control.int32_false_true or control.fp32_false_true or control.bool_false_true
    return false_true[0], false_true[1]
