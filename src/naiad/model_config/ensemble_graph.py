"""The graph of an ensemble: does every tensor come from somewhere and go somewhere?

Only the ensemble's own config is looked at; whether its models fit together is known when they
are loaded. Source: Triton, ``model_config_utils.cc``, ValidateEnsembleSchedulingConfig.
"""

from typing import NoReturn

from naiad.errors import InvalidArgumentError
from naiad.model_config.normalize import ENSEMBLE_PLATFORM
from naiad.model_config.schema import ModelConfig, ModelEnsembling


class _Graph:
    """Who writes which tensor of the ensemble, and from what.

    Attributes:
        sources: tensor -> the tensors that the step which writes it reads.
        read: tensors that a step reads.
    """

    def __init__(self) -> None:
        self.sources: dict[str, list[str]] = {}
        self.read: set[str] = set()

    def known(self) -> set[str]:
        return self.read | self.sources.keys()


def validate_ensemble(config: ModelConfig) -> None:
    """Check the ensemble scheduling of a normalized config.

    Raises:
        InvalidArgumentError: Triton's text about the first mistake.
    """
    _validate_fields(config)
    graph = _build_graph(config)
    for tensor in config.input:
        if tensor.name not in graph.known():
            _fail(f"ensemble input '{tensor.name}' for ensemble {config.name}' is not used")
    available = _flow(graph, {tensor.name for tensor in config.input})
    outputs = {tensor.name for tensor in config.output}
    for output in config.output:
        if output.name not in graph.known():
            _fail(f"ensemble output '{output.name}' for ensemble {config.name}' is not used")
        if output.name not in available:
            _fail_unwritten(output.name, config.name, graph, available)
    for name in sorted(graph.known() - outputs):
        if name not in available or name not in graph.read:
            _fail(f"ensemble tensor '{name}' is unused in ensemble '{config.name}'")


def _fail(message: str) -> NoReturn:
    raise InvalidArgumentError(message)


def _validate_fields(config: ModelConfig) -> None:
    name = config.name
    if config.platform != ENSEMBLE_PLATFORM:
        _fail(
            f"ensemble scheduling cannot be set for model '{name}' whose platform is not "
            f"{ENSEMBLE_PLATFORM}"
        )
    if config.instance_group:
        _fail(f"instance group should not be specified for ensemble '{name}'")
    if config.HasField("optimization"):
        _fail(f"optimization should not be specified for ensemble '{name}'")
    if config.model_warmup:
        _fail(f"model_warmup can not be specified for ensemble '{name}'")
    if not config.ensemble_scheduling.step:
        _fail(f"must specify 'step' for ensemble '{name}'")


def _build_graph(config: ModelConfig) -> _Graph:
    graph = _Graph()
    for index, step in enumerate(config.ensemble_scheduling.step):
        _validate_step(step, index, config.name)
        for written in step.output_map.values():
            if written in graph.sources:
                _fail(
                    f"ensemble tensor '{written}' can appear in an output map only once for "
                    f"ensemble '{config.name}' step {index}"
                )
            graph.sources[written] = sorted(step.input_map.values())
        graph.read.update(step.input_map.values())
    return graph


def _validate_step(step: ModelEnsembling.Step, index: int, name: str) -> None:
    if not step.model_name:
        _fail(f"must specify 'model_name' in step {index} of ensemble '{name}'")
    if not step.input_map:
        _fail(f"must specify 'input_map' in step {index} of ensemble '{name}'")
    if not step.output_map:
        _fail(f"must specify 'output_map' in step {index} of ensemble '{name}'")


def _flow(graph: _Graph, inputs: set[str]) -> set[str]:
    """The tensors that exist once every step which can run has run."""
    available = set(inputs)
    waiting = {name: sources for name, sources in graph.sources.items() if name not in available}
    while True:
        ready = [name for name, sources in waiting.items() if available.issuperset(sources)]
        if not ready:
            return available
        available.update(ready)
        for name in ready:
            del waiting[name]


def _fail_unwritten(output: str, name: str, graph: _Graph, available: set[str]) -> NoReturn:
    """Name the tensor upstream that is the reason why an output is never written."""
    cause, seen = output, {output}
    while True:
        missing = [
            source
            for source in graph.sources.get(cause, [])
            if source not in available and source not in seen
        ]
        if not missing:
            break
        cause = missing[0]
        seen.add(cause)
    message = f"output '{output}' for ensemble '{name}' is not written"
    if cause != output:
        message += f": at least one of its depending tensors, '{cause}', is not connected"
    _fail(message)
