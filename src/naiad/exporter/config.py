"""The model config of an exported file."""

from collections.abc import Mapping, Sequence

from naiad.errors import InvalidArgumentError
from naiad.exporter.formats import Format, Interface
from naiad.exporter.options import ExportOptions
from naiad.exporter.plan import ExportPlan
from naiad.inference.datatypes import BY_NAME
from naiad.model_config.schema import ModelConfig, ModelInstanceGroup
from naiad.repository.golden import TensorRecord


def make_config(name: str, chosen: Format, plan: ExportPlan, interface: Interface) -> ModelConfig:
    """A config that says what the file is: names, datatypes, dims without the batch axis.

    Raises:
        InvalidArgumentError: the file has fixed the batch that the model is to have.
    """
    config = ModelConfig(name=name, backend=chosen.backend, max_batch_size=plan.max_batch_size)
    if chosen.platform:
        config.platform = chosen.platform
    if not chosen.is_default_file:
        config.default_model_filename = chosen.file_name
    for tensors, records in ((config.input, interface.inputs), (config.output, interface.outputs)):
        for record in records:
            tensors.add(
                name=record.name,
                data_type=BY_NAME[record.datatype].config_name,
                dims=_dims(record, plan),
            )
    if plan.max_batch_size > 1 and plan.options.dynamic_batching:
        config.dynamic_batching.SetInParent()
    if plan.options.instance_count is not None:
        config.instance_group.add(
            count=plan.options.instance_count, kind=ModelInstanceGroup.KIND_CPU
        )
    return config


def settle_config(
    existing: ModelConfig | None, made: ModelConfig, options: ExportOptions
) -> tuple[ModelConfig, str]:
    """The config to publish where the model has one, with a note about it.

    A person's settings outlive a new version of the same interface; what the options say
    explicitly still holds.

    Args:
        existing: as it lies in the repository, or None.
        made: for the new version.
        options: of the export.
    """
    if existing is None:
        return made, ""
    if _interface(existing) != _interface(made):
        return made, (
            "config.pbtxt was replaced: the model's earlier versions have other inputs, outputs "
            "or another backend, and do not load with it"
        )
    kept = ModelConfig()
    kept.CopyFrom(existing)
    kept.max_batch_size = made.max_batch_size
    if options.instance_count is not None:
        del kept.instance_group[:]
        kept.instance_group.extend(made.instance_group)
    return kept, "config.pbtxt was kept: the new version has the same inputs and outputs"


def assign_labels(
    labels: Sequence[str], shapes: Mapping[str, Sequence[int]]
) -> Mapping[str, Sequence[str]]:
    """The labels by the one output that has as many classes.

    Args:
        labels: of the classes, in their order; may be empty.
        shapes: of the outputs by name.

    Raises:
        InvalidArgumentError: no output has, or several have.
    """
    if not labels:
        return {}
    fitting = [name for name, shape in shapes.items() if shape[-1] == len(labels)]
    if len(fitting) == 1:
        return {fitting[0]: labels}
    shown = ", ".join(f"'{name}' {list(shape)}" for name, shape in shapes.items())
    found = "no output has" if not fitting else f"{' and '.join(fitting)} have"
    raise InvalidArgumentError(
        f"there are {len(labels)} labels, and {found} as many elements in the last axis; "
        f"the outputs are {shown}"
    )


def _interface(config: ModelConfig) -> tuple[object, ...]:
    tensors = [[(t.name, t.data_type, tuple(t.dims)) for t in config.input]]
    tensors.append([(t.name, t.data_type, tuple(t.dims)) for t in config.output])
    return config.backend, config.default_model_filename, config.max_batch_size > 0, tensors


def _dims(record: TensorRecord, plan: ExportPlan) -> tuple[int, ...]:
    if plan.batch is None:
        dims = record.shape
    elif record.shape[0] == -1:
        dims = record.shape[1:]
    else:
        raise InvalidArgumentError(
            f"the exported file takes {record.shape[0]} rows only in '{record.name}', where the "
            "model takes any number. Let sizes come from the tensors (x.shape[0]) instead of "
            "numbers, or set max_batch_size to 0"
        )
    # Triton allows no dim of 0; an axis that is empty in the example may be longer.
    return tuple(dim if dim != 0 else -1 for dim in dims)
