"""Models of PyTorch's own file formats, run by torch."""

import logging
from dataclasses import replace
from typing import Final

import torch

from naiad.backends.base import ModelSource
from naiad.backends.pytorch.binding import Binding, bind
from naiad.backends.pytorch.instance import TorchInstance
from naiad.backends.pytorch.loading import load_program
from naiad.backends.pytorch.options import TorchOptions, read_intra_op_threads
from naiad.backends.pytorch.placement import check_device, find_gpus, instance_devices
from naiad.backends.pytorch.program import Program
from naiad.errors import InvalidArgumentError
from naiad.model_config.complete import complete_config
from naiad.model_config.signature import ModelSignature

_LOGGER: Final = logging.getLogger(__name__)


class PyTorchBackend:
    """Loads TorchScript, exported programs, AOTInductor packages and classes of a ``model.py``."""

    def complete_config(self, source: ModelSource) -> None:
        """Fill the tensors of an exported program; other files don't know their own.

        Raises:
            NaiadError: the file can't be read, or the config has no tensors and the file's are
                unknown.
        """
        if source.config.input and source.config.output:
            return
        options = TorchOptions.read(source)
        device = instance_devices(source.config)[0]
        check_device(source.name, device, find_gpus())
        program = load_program(source, options, device)
        if program.signature is None:
            _refuse_missing_tensors(source, program)
        else:
            complete_config(source.config, program.signature)

    def load(self, source: ModelSource) -> "TorchModel":
        """Read the model and decide how the config's tensors map to its arguments.

        Raises:
            NaiadError: the file can't be read, isn't what the config says, or an instance can't
                run where the config wants it.
        """
        options = TorchOptions.read(source)
        devices = _find_devices(source)
        _apply_to_process(source.name, options)
        count = len(devices) if options.shares_weights else 1
        program = load_program(source, options, devices[0], count)
        _refuse_missing_tensors(source, program)
        _LOGGER.debug("Loading '%s' as %s", source.name, program.format)
        _log_options(source.name, options)
        return TorchModel(source, program, options, devices)


class TorchModel:
    """A model file that was read, and how its instances call it."""

    def __init__(
        self,
        source: ModelSource,
        program: Program,
        options: TorchOptions,
        devices: list[torch.device | None],
    ) -> None:
        self._source = source
        self._options = options
        self._devices = devices
        self._signature = ModelSignature.for_backend(source.config)
        self._binding: Binding = bind(source.config, self._signature, program)
        # The first instance takes what the check of the config read.
        self._programs: dict[torch.device | None, Program] = {devices[0]: program}

    def create_instance(self, index: int) -> TorchInstance:
        """A copy of the module of its own, unless the config lets instances share one."""
        device = self._devices[index % len(self._devices)]
        program = self._programs.get(device)
        if program is None:
            program = load_program(self._source, self._options, device, len(self._devices))
            if self._options.shares_weights:
                self._programs[device] = program
        elif not self._options.shares_weights:
            del self._programs[device]
        elif index:
            _LOGGER.info("Reusing %s model for instance '%s'", program.format, self._source.name)
        threads = read_intra_op_threads(self._source.for_instance(index))
        options = replace(self._options, intra_op_threads=threads)
        return TorchInstance(program, self._signature, self._binding, options, device)

    def regroup(self, source: ModelSource) -> None:
        """Put instances where this says from now on; modules that are shared stay.

        Raises:
            UnsupportedError: an instance can't run where the config wants it.
        """
        devices = _find_devices(source)
        self._source, self._devices = source, devices

    def close(self) -> None:
        """Forget the modules that instances shared, or that none took."""
        self._programs.clear()


def _find_devices(source: ModelSource) -> list[torch.device | None]:
    """The device of each instance, all of them such that torch can use."""
    devices = instance_devices(source.config)
    gpus = find_gpus()
    for device in devices:
        check_device(source.name, device, gpus)
    return devices


def _refuse_missing_tensors(source: ModelSource, program: Program) -> None:
    for kind, tensors in (("input", source.config.input), ("output", source.config.output)):
        if tensors:
            continue
        advice = f"A TorchScript file doesn't say what it takes and gives: name the {kind}s"
        if program.leaves is not None:
            leaves = program.leaves.inputs if kind == "input" else program.leaves.outputs
            names = ", ".join(" or ".join(leaf) for leaf in leaves)
            advice = f"The package has the {kind}s {names}: give their datatypes and dims"
        raise InvalidArgumentError(
            f"model configuration must contain at least one {kind}, none were specified. "
            f"{advice} of model '{source.name}' in its config.pbtxt"
        )


def _apply_to_process(model_name: str, options: TorchOptions) -> None:
    if not options.has_cudnn:
        # torch has one switch, as Triton's backend has.
        torch.backends.cudnn.enabled = False
    count = options.inter_op_threads
    if not count or count == torch.get_num_interop_threads():
        return
    try:
        torch.set_num_interop_threads(count)
    except RuntimeError:
        _LOGGER.warning(
            "model '%s' asks for INTER_OP_THREAD_COUNT %d, but the process has started its pool "
            "of %d; the first model that asks decides",
            model_name,
            count,
            torch.get_num_interop_threads(),
        )


def _log_options(model_name: str, options: TorchOptions) -> None:
    for what, is_enabled in (
        ("Optimized execution", options.optimized_execution),
        ("Cache Cleaning", options.cleans_cache),
        ("Inference Mode", options.inference_mode),
        ("cuDNN", options.has_cudnn),
        ("Weight sharing", options.shares_weights),
    ):
        state = "enabled" if is_enabled else "disabled"
        _LOGGER.debug("%s is %s for model instance '%s'", what, state, model_name)
