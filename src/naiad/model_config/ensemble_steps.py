"""An ensemble against the models of its steps: do names, datatypes, shapes and batches fit?

Looked at when the models are loaded, since only then their configs are complete. Source: Triton,
``ensemble_utils.cc``, ValidateEnsembleConfig.
"""

from collections.abc import Mapping, Sequence
from typing import NoReturn

from naiad.errors import InvalidArgumentError
from naiad.model_config.complete import format_shape
from naiad.model_config.schema import (
    DataType,
    ModelConfig,
    ModelEnsembling,
    ModelInput,
    ModelOutput,
)


class _Tensor:
    """What one model says about an ensemble tensor."""

    __slots__ = ("data_type", "dims", "full_dims", "model_name")

    def __init__(self, model: ModelConfig, data_type: DataType, dims: Sequence[int]) -> None:
        self.model_name = model.name
        self.data_type = data_type
        self.dims = tuple(dims)
        self.full_dims = (-1, *self.dims) if model.max_batch_size > 0 else self.dims


def check_steps(config: ModelConfig, models: Mapping[str, ModelConfig]) -> bool:
    """Hold an ensemble against the models that it calls.

    Args:
        config: of the ensemble, validated by itself.
        models: complete configs by name, of each step's model.

    Returns:
        Whether the ensemble may answer any number of times, as one of its models may.

    Raises:
        InvalidArgumentError: Triton's text about the first misfit.
    """
    tensors = _own_tensors(config)
    for step in config.ensemble_scheduling.step:
        model = models[step.model_name]
        if 0 < model.max_batch_size < config.max_batch_size:
            _fail(
                f"ensemble {config.name} allows maximum batch size {config.max_batch_size}, but it "
                f"contains model {model.name} which only allows maximum batch size to be "
                f"{model.max_batch_size}"
            )
        _check_inputs(config, step, model, tensors)
        _check_outputs(config, step, model, tensors)
    return _check_flow(config, models)


def _fail(message: str) -> NoReturn:
    raise InvalidArgumentError(message)


def _own_tensors(config: ModelConfig) -> dict[str, _Tensor]:
    found: dict[str, _Tensor] = {}
    tensors: list[ModelInput | ModelOutput] = [*config.input, *config.output]
    for tensor in tensors:
        dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
        found.setdefault(tensor.name, _Tensor(config, tensor.data_type, dims))
    return found


def _check_inputs(
    config: ModelConfig,
    step: ModelEnsembling.Step,
    model: ModelConfig,
    tensors: dict[str, _Tensor],
) -> None:
    known = {tensor.name: tensor for tensor in model.input}
    for name, source in sorted(step.input_map.items()):
        if name not in known:
            _fail(
                f"in ensemble {config.name}, ensemble tensor {source} is mapping to non-existing "
                f"input {name} in model {model.name}"
            )
    for tensor in model.input:
        if tensor.name in step.input_map:
            _agree(config, step.input_map[tensor.name], model, tensor, tensors)
        elif not tensor.optional:
            _fail(
                f"in ensemble {config.name}, input {tensor.name} in model {model.name} is not "
                "mapped to any ensemble tensors"
            )


def _check_outputs(
    config: ModelConfig,
    step: ModelEnsembling.Step,
    model: ModelConfig,
    tensors: dict[str, _Tensor],
) -> None:
    known = {tensor.name: tensor for tensor in model.output}
    for name, target in sorted(step.output_map.items()):
        if name not in known:
            _fail(
                f"in ensemble {config.name}, ensemble tensor {target} is mapped from non-existing "
                f"output {name} in model {model.name}"
            )
        _agree(config, target, model, known[name], tensors)


def _agree(
    config: ModelConfig,
    name: str,
    model: ModelConfig,
    described: ModelInput | ModelOutput,
    tensors: dict[str, _Tensor],
) -> None:
    """Note what a model says about an ensemble tensor, unless another says otherwise."""
    new = _Tensor(model, described.data_type, described.dims)
    old = tensors.setdefault(name, new)
    prefix = f"in ensemble {config.name}, ensemble tensor {name}: inconsistent"
    if old.data_type != new.data_type:
        _fail(
            f"{prefix} data type: {DataType.Name(old.data_type)} is inferred from model "
            f"{old.model_name} while {DataType.Name(new.data_type)} is inferred from model "
            f"{new.model_name}"
        )
    # The full dims, too, so that [-1,4] without a batch axis may go with [4] behind one.
    if not (_match(old.dims, new.dims) or _match(old.full_dims, new.full_dims)):
        _fail(
            f"{prefix} shape: {format_shape(old.full_dims)} is inferred from model "
            f"{old.model_name} while {format_shape(new.full_dims)} is inferred from model "
            f"{new.model_name}"
        )


def _match(dims: Sequence[int], others: Sequence[int]) -> bool:
    return len(dims) == len(others) and all(
        -1 in (dim, other) or dim == other for dim, other in zip(dims, others, strict=True)
    )


def _check_flow(config: ModelConfig, models: Mapping[str, ModelConfig]) -> bool:
    """Whether a decoupled model takes part, and no step mixes the answers of two of them."""
    # The decoupled step whose answers a tensor counts; -1 for none.
    origins = {tensor.name: -1 for tensor in config.input}
    steps = dict(enumerate(config.ensemble_scheduling.step))
    while True:
        ready = [
            index
            for index, step in steps.items()
            if all(source in origins for source in step.input_map.values())
        ]
        if not ready:
            break
        for index in ready:
            step = steps.pop(index)
            origin = _common_origin(
                config, step.model_name, [origins[name] for name in step.input_map.values()]
            )
            if models[step.model_name].model_transaction_policy.decoupled:
                origin = index
            origins.update(dict.fromkeys(step.output_map.values(), origin))
    outputs = [origins[output.name] for output in config.output if output.name in origins]
    _common_origin(config, config.name, outputs)
    return any(
        models[step.model_name].model_transaction_policy.decoupled
        for step in config.ensemble_scheduling.step
    )


def _common_origin(config: ModelConfig, model_name: str, origins: Sequence[int]) -> int:
    if len(set(origins)) > 1:
        _fail(
            f"in ensemble {config.name}, step of model '{model_name}' receives inputs originated "
            "from different decoupled models"
        )
    return origins[0]
