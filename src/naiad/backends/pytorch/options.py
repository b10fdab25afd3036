"""The parameters of a model config that the PyTorch backend knows."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from naiad.backends.base import ModelSource
from naiad.backends.parameters import read_boolean, read_integer, read_text
from naiad.errors import InvalidArgumentError
from naiad.model_config.schema import ModelConfig

_LOGGER: Final = logging.getLogger(__name__)

# Switches of libtorch's executor that no public function of torch reaches.
_WITHOUT_EFFECT: Final = ("ENABLE_JIT_EXECUTOR", "ENABLE_JIT_PROFILING", "ENABLE_TENSOR_FUSER")
_COMPILE_PARAMETERS: Final = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
_COMPILE_KEYS: Final = ("fullgraph", "dynamic", "backend", "mode", "options", "disable")


@dataclass(frozen=True, slots=True)
class TorchOptions:
    """How one model is run.

    Attributes:
        inference_mode: run under ``torch.inference_mode``, else under ``torch.no_grad``.
        optimized_execution: let TorchScript specialise the graph in its first executions.
        shares_weights: the instances on one device run one copy of the module.
        cleans_cache: give CUDA's cached memory back after each execution.
        has_cudnn: let torch use cuDNN on GPUs.
        intra_op_threads: cores that one operator may use.
        inter_op_threads: for operators side by side; None leaves torch's choice. The process has
            one pool, so the first model that asks decides.
        compile_parameters: of ``torch.compile`` for the class of a ``model.py``; None runs it
            without compiling.
    """

    inference_mode: bool
    optimized_execution: bool
    shares_weights: bool
    cleans_cache: bool
    has_cudnn: bool
    intra_op_threads: int
    inter_op_threads: int | None
    compile_parameters: Mapping[str, Any] | None

    @classmethod
    def read(cls, source: ModelSource) -> "TorchOptions":
        """The options that the config's parameters say.

        Raises:
            InvalidArgumentError: a parameter is no number, neither true nor false, or nothing
                that ``torch.compile`` takes.
        """
        config = source.config
        for key in _WITHOUT_EFFECT:
            if read_boolean(config, key) is False:
                _LOGGER.warning(
                    "parameter '%s' of model '%s' has no effect here; "
                    "DISABLE_OPTIMIZED_EXECUTION keeps TorchScript from specialising the graph",
                    key,
                    source.name,
                )
        inter_op = read_integer(config, "INTER_OP_THREAD_COUNT")
        return cls(
            inference_mode=read_boolean(config, "INFERENCE_MODE") is not False,
            optimized_execution=not read_boolean(config, "DISABLE_OPTIMIZED_EXECUTION"),
            shares_weights=read_boolean(config, "ENABLE_WEIGHT_SHARING") is True,
            cleans_cache=read_boolean(config, "ENABLE_CACHE_CLEANING") is True,
            has_cudnn=not read_boolean(config, "DISABLE_CUDNN"),
            intra_op_threads=read_intra_op_threads(source),
            inter_op_threads=inter_op or read_integer(config, "NUM_INTEROP_THREADS"),
            compile_parameters=_read_compile_parameters(config),
        )


def read_intra_op_threads(source: ModelSource) -> int:
    """Cores that one operator may use: what the config says, else those of an instance.

    Raises:
        InvalidArgumentError: a parameter is no number.
    """
    asked = read_integer(source.config, "INTRA_OP_THREAD_COUNT")
    return asked or read_integer(source.config, "NUM_THREADS") or source.thread_count


def _read_compile_parameters(config: ModelConfig) -> Mapping[str, Any] | None:
    text = read_text(config, _COMPILE_PARAMETERS)
    if text is None:
        return None
    try:
        parameters = json.loads(text)
    except ValueError as error:
        raise InvalidArgumentError(
            f"parameter '{_COMPILE_PARAMETERS}' of model '{config.name}' must be a JSON object: "
            f"{error}"
        ) from error
    if not isinstance(parameters, dict):
        raise InvalidArgumentError(
            f"parameter '{_COMPILE_PARAMETERS}' of model '{config.name}' must be a JSON object, "
            f"got '{text}'"
        )
    for key in parameters:
        if key not in _COMPILE_KEYS:
            raise InvalidArgumentError(
                f"'{key}' is not an optional parameter for 'torch.compile'; "
                f"model '{config.name}' may give: {', '.join(_COMPILE_KEYS)}"
            )
    return None if parameters.get("disable") else parameters
