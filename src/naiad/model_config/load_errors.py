"""What the text of a failed load or run says of the model, where its file declares nothing."""

import re
from typing import Final

from naiad.model_config.diagnose import Diagnosis, Finding
from naiad.model_config.schema import DataType

_DATATYPE: Final = re.compile(
    r"configuration expects datatype \w+ for output '(?P<name>.*)', model provides "
    r"(?P<type>TYPE_\w+)"
)
_INDEX: Final = re.compile(
    r"The output (?P<name>.*) in the model configuration refers to an output index which doesn't "
    r"exist\. This model has (?P<count>\d+) outputs"
)
_MODEL_SHAPE: Final = re.compile(
    r"tensor '(?P<name>.*)': (?:for the model to support batching .* shape expected by the model "
    r"is|the model expects \d+ dimensions \(shape) \[(?P<shape>[-\d,]*)\]"
)


def read_model_shape(error: str) -> tuple[str, tuple[int, ...]] | None:
    """The tensor whose shape an error tells, with that shape; None where it tells none.

    A runtime may find another shape than the file declares, when it optimizes the graph.
    """
    match = _MODEL_SHAPE.search(error)
    if match is None:
        return None
    return match["name"], tuple(int(length) for length in match["shape"].split(",") if length)


def is_about_datatype(error: str) -> bool:
    """Whether an output has another datatype than the config says, in the words of an error."""
    return _DATATYPE.search(error) is not None


def correct_by_error(diagnosis: Diagnosis, error: str) -> bool:
    """Correct the output that an error is about, and note it; whether it is about one."""
    if match := _DATATYPE.search(error):
        _correct_output_type(diagnosis, match["name"], match["type"])
    elif match := _INDEX.search(error):
        _drop_output(diagnosis, match["name"], int(match["count"]))
    else:
        return False
    return True


def _correct_output_type(diagnosis: Diagnosis, name: str, type_name: str) -> None:
    for index, tensor in diagnosis.kept("output"):
        if tensor.name == name:
            given = DataType.Name(tensor.data_type)
            tensor.data_type = DataType.Value(type_name)
            diagnosis.add(
                Finding(
                    "datatype-differs",
                    f"The output '{name}' has {given}.",
                    f"The model answers with {type_name}.",
                    ("output", index, "data_type"),
                )
            )


def _drop_output(diagnosis: Diagnosis, name: str, count: int) -> None:
    entries = diagnosis.kept("output")
    names = [tensor.name for _, tensor in entries]
    for index, tensor in entries:
        if tensor.name != name:
            continue
        free = [i for i in range(count) if not any(n.endswith(f"__{i}") for n in names)]
        if free and "__" in name:
            tensor.name = f"{name.rpartition('__')[0]}__{free[0]}"
        else:
            diagnosis.remove("output", index)
        diagnosis.add(
            Finding(
                "unknown-output",
                f"The output '{name}' refers to a result that there is not.",
                f"The model gives {count}, counted from 0.",
                ("output", index, "name"),
            )
        )
