"""An ensemble's maps against the models of its steps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from naiad.errors import InvalidArgumentError
from naiad.model_config.config_text import FieldPath
from naiad.model_config.diagnose import Diagnosis, Finding, locate, nearest, type_name
from naiad.model_config.ensemble_graph import validate_ensemble
from naiad.model_config.normalize import ENSEMBLE_PLATFORM
from naiad.model_config.schema import ModelConfig, ModelEnsembling

# difflib's ratio: a model of a name that only resembles another's may be another model.
_SURELY_MEANT: Final = 0.75
_NOT_OF_ENSEMBLES: Final = ("instance_group", "optimization", "model_warmup")


@dataclass(frozen=True, slots=True)
class _Use:
    """A tensor of the ensemble where a step's model reads or writes it."""

    tensor: str
    model: ModelConfig
    described: Any
    step: int


def diagnose_ensemble(
    diagnosis: Diagnosis,
    name: str,
    models: Mapping[str, ModelConfig],
    versions: Mapping[str, Sequence[int]],
) -> None:
    """Check and correct the maps of an ensemble, its tensors and its batch size.

    Args:
        diagnosis: of the ensemble's config.
        name: of the ensemble, which its config need not have.
        models: complete configs of the repository's other models, by name.
        versions: that each of them has.
    """
    _diagnose_platform(diagnosis)
    for setting in _NOT_OF_ENSEMBLES:
        _diagnose_setting(diagnosis, setting)
    steps = diagnosis.wanted.ensemble_scheduling.step
    for index, step in enumerate(steps):
        _diagnose_circle(diagnosis, name, index, models)
        _diagnose_step(diagnosis, index, step, models)
        _diagnose_version(diagnosis, index, step, versions.get(step.model_name, ()))
    _connect(diagnosis)
    _diagnose_batch_size(diagnosis, models)
    for role, uses in (
        ("input", _reads(diagnosis, models)),
        ("output", _writes(diagnosis, models)),
    ):
        by_tensor = {use.tensor: use for use in uses}
        for index, tensor in diagnosis.kept(role):
            if tensor.name in by_tensor:
                _compare(diagnosis, (role, index), tensor, by_tensor[tensor.name])
    _validate(diagnosis, name)


def _diagnose_circle(
    diagnosis: Diagnosis, name: str, index: int, models: Mapping[str, ModelConfig]
) -> None:
    """Whether a step calls the ensemble in turn, itself or through others."""
    first = diagnosis.wanted.ensemble_scheduling.step[index].model_name
    callers = {first: ""}
    pending = [first]
    while pending:
        model = pending.pop()
        if model == name:
            break
        if model in models:
            called = {step.model_name for step in models[model].ensemble_scheduling.step}
            new = sorted(called - set(callers))
            callers.update(dict.fromkeys(new, model))
            pending += new
    if name not in callers:
        return
    chain = [name]
    while caller := callers[chain[0]]:
        chain.insert(0, caller)
    diagnosis.add(
        Finding(
            "ensemble-step",
            f"Step {index} names the model '{first}'.",
            f"The ensemble would have to run before itself: {' -> '.join([name, *chain])}.",
            _step_path(index, "model_name"),
            is_fixable=False,
        )
    )


def _diagnose_platform(diagnosis: Diagnosis) -> None:
    config = diagnosis.wanted
    for name, given in (("platform", config.platform), ("backend", config.backend)):
        expected = ENSEMBLE_PLATFORM if name == "platform" else ""
        if given in {"", expected}:
            continue
        config.platform = ENSEMBLE_PLATFORM
        config.backend = ""
        diagnosis.add(
            Finding(
                "platform-differs",
                f"The {name} of the ensemble is '{given}'.",
                f"A model with ensemble_scheduling has the platform '{ENSEMBLE_PLATFORM}' and no "
                "backend.",
                (name,),
            )
        )


def _diagnose_setting(diagnosis: Diagnosis, name: str) -> None:
    if name not in {field.name for field, _ in diagnosis.wanted.ListFields()}:
        return
    diagnosis.wanted.ClearField(name)
    diagnosis.add(
        Finding(
            "ensemble",
            f"The ensemble has {name}.",
            "An ensemble has no instances of its own: the models of its steps have.",
            (name,),
        )
    )


def _step_path(index: int, *rest: str) -> FieldPath:
    return ("ensemble_scheduling", "step", index, *rest)


def _diagnose_step(
    diagnosis: Diagnosis,
    index: int,
    step: ModelEnsembling.Step,
    models: Mapping[str, ModelConfig],
) -> None:
    if any(finding.path == _step_path(index, "model_name") for finding in diagnosis.findings()):
        return
    if step.model_name not in models:
        meant = nearest(step.model_name, list(models), _SURELY_MEANT)
        why = "The repository lacks it."
        diagnosis.add(
            Finding(
                "ensemble-step",
                f"Step {index} names the model '{step.model_name}'.",
                f"{why} '{meant}' is probably meant." if meant else why,
                _step_path(index, "model_name"),
                is_fixable=meant is not None,
            )
        )
        if meant is None:
            return
        step.model_name = meant
    model = models[step.model_name]
    required = [tensor.name for tensor in model.input if not tensor.optional]
    _diagnose_map(diagnosis, index, "input", [tensor.name for tensor in model.input])
    _diagnose_map(diagnosis, index, "output", [tensor.name for tensor in model.output])
    for name in required:
        if name not in step.input_map:
            _report_unmapped(diagnosis, index, name)


def _diagnose_version(
    diagnosis: Diagnosis, index: int, step: ModelEnsembling.Step, versions: Sequence[int]
) -> None:
    version = step.model_version
    if version in {-1, 0} or version in versions or not versions:
        return
    step.model_version = -1
    diagnosis.add(
        Finding(
            "ensemble-step",
            f"Step {index} asks for version {version} of the model '{step.model_name}'.",
            f"It has version {', '.join(map(str, versions))}; -1 takes the latest.",
            _step_path(index, "model_version"),
        )
    )


def _diagnose_map(diagnosis: Diagnosis, index: int, role: str, names: Sequence[str]) -> None:
    step = diagnosis.wanted.ensemble_scheduling.step[index]
    mapping = getattr(step, f"{role}_map")
    for key in [key for key in sorted(mapping) if key not in names]:
        free = [name for name in names if name not in mapping]
        others = [other for other in mapping if other not in names]
        is_only = len(free) == len(others) == 1
        meant = free[0] if is_only else nearest(key, free)
        diagnosis.add(
            Finding(
                "ensemble-map",
                f"The {role}_map of step {index} has the key '{key}', which is no {role} of the "
                f"model '{step.model_name}'.",
                f"Its {role}s are {', '.join(names)}.",
                _step_path(index, f"{role}_map"),
                is_fixable=meant is not None,
            )
        )
        if meant is not None:
            mapping[meant] = mapping.pop(key)


def _report_unmapped(diagnosis: Diagnosis, index: int, name: str) -> None:
    """A model input that no map feeds: the ensemble's own input of that name, if it has one."""
    step = diagnosis.wanted.ensemble_scheduling.step[index]
    has_tensor = name in {tensor.name for tensor in diagnosis.wanted.input}
    if has_tensor:
        step.input_map[name] = name
    diagnosis.add(
        Finding(
            "ensemble-map",
            f"The input_map of step {index} lacks the input '{name}' of '{step.model_name}'.",
            "The model needs it in every request.",
            _step_path(index, "input_map"),
            is_fixable=has_tensor,
        )
    )


def _connect(diagnosis: Diagnosis) -> None:
    """Names of ensemble tensors that nobody writes, or that nobody reads, were mistyped."""
    config = diagnosis.wanted
    for index, step in enumerate(config.ensemble_scheduling.step):
        for key, tensor in sorted(step.input_map.items()):
            available = _available(config)
            if tensor in available:
                continue
            meant = nearest(tensor, sorted(available))
            _report_loose(diagnosis, (index, "input_map"), tensor, meant, "nothing writes it")
            if meant is not None:
                step.input_map[key] = meant
    read = {name for step in config.ensemble_scheduling.step for name in step.input_map.values()}
    outputs = [tensor.name for tensor in config.output]
    for index, step in enumerate(config.ensemble_scheduling.step):
        for key, tensor in sorted(step.output_map.items()):
            if tensor in read or tensor in outputs:
                continue
            unwritten = [name for name in outputs if name not in _available(config)]
            meant = nearest(tensor, unwritten)
            _report_loose(diagnosis, (index, "output_map"), tensor, meant, "nothing reads it")
            if meant is not None:
                step.output_map[key] = meant


def _report_loose(
    diagnosis: Diagnosis, place: tuple[int, str], tensor: str, meant: str | None, why: str
) -> None:
    index, field = place
    hint = f" '{meant}' is probably meant." if meant else ""
    diagnosis.add(
        Finding(
            "ensemble-map",
            f"The {field} of step {index} names the ensemble tensor '{tensor}'.",
            f"No other step and no input or output of the ensemble has that name: {why}.{hint}",
            _step_path(index, field),
            is_fixable=meant is not None,
        )
    )


def _available(config: ModelConfig) -> set[str]:
    names = {tensor.name for tensor in config.input}
    for step in config.ensemble_scheduling.step:
        names.update(step.output_map.values())
    return names


def _diagnose_batch_size(diagnosis: Diagnosis, models: Mapping[str, ModelConfig]) -> None:
    config = diagnosis.wanted
    limits = {
        step.model_name: models[step.model_name].max_batch_size
        for step in config.ensemble_scheduling.step
        if step.model_name in models
    }
    batching = {name: limit for name, limit in limits.items() if limit}
    if not batching or config.max_batch_size <= min(batching.values()):
        return
    name = min(batching, key=batching.__getitem__)
    size = config.max_batch_size
    config.max_batch_size = batching[name]
    diagnosis.add(
        Finding(
            "ensemble-batch-size",
            f"max_batch_size of the ensemble is {size}.",
            f"Its model '{name}' takes {batching[name]} rows at most.",
            ("max_batch_size",),
        )
    )


def _reads(diagnosis: Diagnosis, models: Mapping[str, ModelConfig]) -> Iterator[_Use]:
    return _uses(diagnosis, models, "input")


def _writes(diagnosis: Diagnosis, models: Mapping[str, ModelConfig]) -> Iterator[_Use]:
    return _uses(diagnosis, models, "output")


def _uses(diagnosis: Diagnosis, models: Mapping[str, ModelConfig], role: str) -> Iterator[_Use]:
    for index, step in enumerate(diagnosis.wanted.ensemble_scheduling.step):
        model = models.get(step.model_name)
        if model is None:
            continue
        described = {tensor.name: tensor for tensor in getattr(model, role)}
        for key, tensor in sorted(getattr(step, f"{role}_map").items()):
            if key in described:
                yield _Use(tensor, model, described[key], index)


def _compare(diagnosis: Diagnosis, place: tuple[str, int], tensor: Any, use: _Use) -> None:
    role, index = place
    model = f"the {role} '{use.described.name}' of '{use.model.name}' in step {use.step}"
    if tensor.data_type != use.described.data_type:
        given = type_name(tensor.data_type)
        tensor.data_type = use.described.data_type
        diagnosis.add(
            Finding(
                "datatype-differs",
                f"The ensemble's {role} '{tensor.name}' has {given}.",
                f"It is {model}, of {type_name(use.described.data_type)}.",
                (role, index, "data_type"),
            )
        )
    expected = _dims_in_ensemble(diagnosis.wanted, use)
    given_dims = list(tensor.dims)
    if _agree(given_dims, expected):
        return
    del tensor.dims[:]
    tensor.dims.extend(expected)
    diagnosis.add(
        Finding(
            "dims-differ",
            f"The ensemble's {role} '{tensor.name}' has the dims {given_dims}.",
            f"It is {model}, with the dims {list(use.described.dims)} and max_batch_size "
            f"{use.model.max_batch_size}.",
            (role, index, "dims"),
        )
    )


def _dims_in_ensemble(ensemble: ModelConfig, use: _Use) -> list[int]:
    """The dims of a model's tensor as its ensemble has to write them."""
    dims = list(use.described.dims)
    if use.model.max_batch_size and not ensemble.max_batch_size:
        return [-1, *dims]
    if ensemble.max_batch_size and not use.model.max_batch_size:
        return dims[1:] or dims
    return dims


def _agree(dims: Sequence[int], others: Sequence[int]) -> bool:
    return len(dims) == len(others) and all(
        -1 in (a, b) or a == b for a, b in zip(dims, others, strict=True)
    )


def _validate(diagnosis: Diagnosis, name: str) -> None:
    if any(not finding.is_fixable for finding in diagnosis.findings()):
        return
    config = diagnosis.result()
    config.platform = config.platform or ENSEMBLE_PLATFORM
    config.name = name
    try:
        validate_ensemble(config)
    except InvalidArgumentError as error:
        path = locate(error.message, config)
        diagnosis.add(Finding("ensemble", f"{error.message}.", "", path, is_fixable=False))
