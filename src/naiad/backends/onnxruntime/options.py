"""From a model config to onnxruntime's session options.

Source: onnxruntime_backend's README, "Model Config Options".
"""

from typing import Final

import onnxruntime

from naiad.backends.base import ModelSource
from naiad.backends.onnxruntime.failure import ORT_FAILURES, to_internal_error
from naiad.backends.operator_libraries import find_operator_libraries
from naiad.backends.parameters import read_boolean, read_integer, read_text
from naiad.backends.settings import read_integer_setting
from naiad.errors import InvalidArgumentError

# Errors reach the caller as exceptions; onnxruntime would print the same text once more.
_LOG_ONLY_FATAL: Final = 4

_SHRINKAGE: Final = "memory.enable_memory_arena_shrinkage"
_ALLOW_SPINNING: Final = ("session.intra_op.allow_spinning", "session.inter_op.allow_spinning")

# optimization.graph.level, as Triton counts; a config without it means all.
_LEVELS: Final = {
    2: onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    -1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    0: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_EXECUTION_MODES: Final = {
    0: onnxruntime.ExecutionMode.ORT_SEQUENTIAL,
    1: onnxruntime.ExecutionMode.ORT_PARALLEL,
}


def make_session_options(
    source: ModelSource, *, shares_threads: bool = False
) -> onnxruntime.SessionOptions:
    """The options that the model's config and the server's backend config ask for.

    Two defaults are not onnxruntime's: its logging is off but for what ends the process, and its
    threads do not spin. A parameter named after an entry of the session config, such as
    ``session.intra_op.allow_spinning``, is handed on as it is.

    Args:
        source: the model.
        shares_threads: its sessions run on the thread pools of the process.

    Raises:
        InvalidArgumentError: a parameter has a value that it can't have, or a library of operators
            lies outside of the model folder.
        InternalError: a library of operators can't be loaded.
    """
    config = source.config
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _LOG_ONLY_FATAL
    if shares_threads:
        options.use_per_session_threads = False
    else:
        # A pool that all instances share may have all cores, so that a lone request gets them too.
        usual = source.core_count if shares_session(source) else source.thread_count
        options.intra_op_num_threads = _thread_count(source, "intra_op_thread_count") or usual
        options.inter_op_num_threads = _thread_count(source, "inter_op_thread_count")
    options.graph_optimization_level = _graph_level(source)
    options.execution_mode = _execution_mode(source)
    arena = read_boolean(config, "enable_mem_arena")
    if arena is not None:
        options.enable_cpu_mem_arena = arena
    pattern = read_boolean(config, "enable_mem_pattern")
    if pattern is not None:
        options.enable_mem_pattern = pattern
    # Threads that spin after an execution begin the next one a few us sooner, out of cores that the
    # event loop and other models want: benchmarks/spinning.py. A model that has the machine to
    # itself gains by it (ResNet-18 on 2 idle cores a tenth to a quarter), and its config can ask.
    for key in _ALLOW_SPINNING:
        options.add_session_config_entry(key, "0")
    for key in config.parameters:
        if key.startswith("session."):
            options.add_session_config_entry(key, config.parameters[key].string_value)
    _register_operators(source, options)
    return options


def make_inspection_options(
    source: ModelSource, *, shares_threads: bool = False
) -> onnxruntime.SessionOptions:
    """The options that load a model fastest, to read its signature and nothing else.

    Args are those of `make_session_options`.

    Raises:
        NaiadError: as of `make_session_options`, about a library of operators.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _LOG_ONLY_FATAL
    if shares_threads:
        options.use_per_session_threads = False
    else:
        options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    _register_operators(source, options)
    return options


def shares_session(source: ModelSource) -> bool:
    """Whether the instances of the model that are in one place run one session side by side.

    A session holds the weights, in the file's form and in that of the kernels, so one for each
    instance costs that memory for each. Measured on two cores, two instances of one session answer
    as many requests as two sessions or more (benchmarks/shared_session.py). Triton has the same
    parameter, and the other default.

    Raises:
        InvalidArgumentError: the parameter is no boolean.
    """
    return read_boolean(source.config, "share_session_between_instances") is not False


def make_run_options(source: ModelSource) -> onnxruntime.RunOptions | None:
    """The options of every execution; None where the config asks for nothing."""
    shrinkage = read_text(source.config, _SHRINKAGE)
    if shrinkage is None:
        return None
    options = onnxruntime.RunOptions()
    options.add_run_config_entry(_SHRINKAGE, shrinkage)
    return options


def read_default_max_batch_size(source: ModelSource) -> int:
    """What a completed config gets that says no batch size; Triton's default is 4."""
    return read_integer_setting(source, "default-max-batch-size", default=4)


def _thread_count(source: ModelSource, key: str) -> int:
    """From the model's config, else from ``--backend-config``; 0 where neither says."""
    count = read_integer(source.config, key)
    return read_integer_setting(source, key, default=0) if count is None else count


def _register_operators(source: ModelSource, options: onnxruntime.SessionOptions) -> None:
    for library in find_operator_libraries(source):
        try:
            options.register_custom_ops_library(str(library))
        except ORT_FAILURES as error:
            raise to_internal_error(error) from error


def _graph_level(source: ModelSource) -> onnxruntime.GraphOptimizationLevel:
    level = source.config.optimization.graph.level
    if level not in _LEVELS:
        raise InvalidArgumentError(
            f"model '{source.name}': optimization.graph.level must be one of "
            f"{', '.join(map(str, sorted(_LEVELS)))}, got {level}"
        )
    return _LEVELS[level]


def _execution_mode(source: ModelSource) -> onnxruntime.ExecutionMode:
    mode = read_integer(source.config, "execution_mode") or 0
    if mode not in _EXECUTION_MODES:
        raise InvalidArgumentError(
            "Invalid configuration value provided. Expected values for  execution_mode are 0 or "
            f"1 but got {mode} ."
        )
    return _EXECUTION_MODES[mode]
