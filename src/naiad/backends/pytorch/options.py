"""The parameters of a model config that the PyTorch backend knows."""

import logging
from dataclasses import dataclass
from typing import Final

from naiad.backends.base import ModelSource
from naiad.backends.parameters import read_boolean, read_integer

_LOGGER: Final = logging.getLogger(__name__)

# Switches of libtorch's executor that no public function of torch reaches.
_WITHOUT_EFFECT: Final = (
    "ENABLE_JIT_EXECUTOR",
    "ENABLE_JIT_PROFILING",
    "ENABLE_TENSOR_FUSER",
    "ENABLE_CACHE_CLEANING",
    "DISABLE_CUDNN",
)


@dataclass(frozen=True, slots=True)
class TorchOptions:
    """How one model is run.

    Attributes:
        inference_mode: run under ``torch.inference_mode``, else under ``torch.no_grad``.
        optimized_execution: let TorchScript specialise the graph in its first executions.
        shares_weights: all instances run one copy of the module.
        intra_op_threads: cores that one operator may use.
        inter_op_threads: for operators side by side; None leaves torch's choice. The process has
            one pool, so the first model that asks decides.
    """

    inference_mode: bool
    optimized_execution: bool
    shares_weights: bool
    intra_op_threads: int
    inter_op_threads: int | None

    @classmethod
    def read(cls, source: ModelSource) -> "TorchOptions":
        """The options that the config's parameters say.

        Raises:
            InvalidArgumentError: a parameter is no number, or neither true nor false.
        """
        config = source.config
        for key in _WITHOUT_EFFECT:
            if read_boolean(config, key) is not None:
                _LOGGER.warning("parameter '%s' of model '%s' has no effect here", key, source.name)
        return cls(
            inference_mode=read_boolean(config, "INFERENCE_MODE") is not False,
            optimized_execution=not read_boolean(config, "DISABLE_OPTIMIZED_EXECUTION"),
            shares_weights=read_boolean(config, "ENABLE_WEIGHT_SHARING") is True,
            intra_op_threads=read_integer(config, "INTRA_OP_THREAD_COUNT") or source.thread_count,
            inter_op_threads=read_integer(config, "INTER_OP_THREAD_COUNT"),
        )
