"""Models of PyTorch's own file formats, run by torch on the CPU."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt
import torch

from naiad.backends.base import ModelSource
from naiad.backends.model_file import find_model_file
from naiad.backends.pytorch.naming import InputBinding, InputStyle, bind_inputs, bind_outputs
from naiad.backends.pytorch.options import TorchOptions
from naiad.backends.pytorch.program import Program, load_program
from naiad.backends.pytorch.tensors import (
    DATATYPES,
    Result,
    flatten_results,
    from_strings,
    to_numpy,
    to_strings,
    to_torch,
)
from naiad.errors import InternalError, InvalidArgumentError
from naiad.inference import datatypes
from naiad.inference.tensor import Tensor
from naiad.model_config.complete import check_against_artifact, complete_config
from naiad.model_config.signature import ModelSignature, TensorSpec

_LOGGER: Final = logging.getLogger(__name__)
_DEFAULT_FILE: Final = "model.pt"


class PyTorchBackend:
    """Loads TorchScript and exported programs."""

    def complete_config(self, source: ModelSource) -> None:
        """Fill the tensors of a ``.pt2``; a TorchScript file doesn't know its own.

        Raises:
            NaiadError: the file can't be read, or the config has no tensors and the file's are
                unknown.
        """
        if source.config.input and source.config.output:
            return
        program = load_program(source.name, find_model_file(source, _DEFAULT_FILE))
        if program.signature is None:
            _refuse_missing_tensors(source)
        else:
            complete_config(source.config, program.signature)

    def load(self, source: ModelSource) -> "TorchModel":
        """Read the model and decide how the config's tensors map to its arguments.

        Raises:
            NaiadError: the file can't be read, or isn't what the config says.
        """
        path = find_model_file(source, _DEFAULT_FILE)
        options = TorchOptions.read(source)
        _set_inter_op_threads(source.name, options.inter_op_threads)
        program = load_program(source.name, path)
        if program.signature is not None:
            check_against_artifact(source.config, program.signature)
        _refuse_missing_tensors(source)
        return TorchModel(source, path, program, options)


class TorchModel:
    """A model file that was read, and how its instances call it."""

    def __init__(
        self, source: ModelSource, path: Path, program: Program, options: TorchOptions
    ) -> None:
        self._signature = ModelSignature.from_config(source.config)
        self._binding = bind_inputs(source.name, tuple(self._signature.inputs), program.arguments)
        self._output_indices = _bind_outputs(self._signature, program)
        self._path = path
        self._program: Program | None = program
        self._options = options

    def create_instance(self, index: int) -> "TorchInstance":
        """A copy of the module of its own, unless the config lets instances share one."""
        program = self._program
        if program is None:
            program = load_program(self._signature.name, self._path)
        elif not self._options.shares_weights:
            # The first instance takes what the check of the config read.
            self._program = None
        return TorchInstance(
            program.call, self._signature, self._binding, self._output_indices, self._options
        )

    def close(self) -> None:
        """Forget the module that instances shared, or that none took."""
        self._program = None


class TorchInstance:
    """A module and the thread settings it runs under."""

    __slots__ = (
        "_binding",
        "_call",
        "_has_threads",
        "_model_name",
        "_options",
        "_output_indices",
        "_signature",
    )

    def __init__(
        self,
        call: Callable[..., Any],
        signature: ModelSignature,
        binding: InputBinding,
        output_indices: Mapping[str, int],
        options: TorchOptions,
    ) -> None:
        self._call: Callable[..., Any] | None = call
        self._signature = signature
        self._binding = binding
        self._output_indices = output_indices
        self._options = options
        self._has_threads = False

    def execute(
        self, inputs: Mapping[str, npt.NDArray[Any]], output_names: Sequence[str]
    ) -> Sequence[Tensor]:
        """Call the module on one batch.

        Raises:
            InternalError: torch failed on this batch.
            InvalidArgumentError: the model's results are not what the config says, or text
                isn't UTF-8.
        """
        if not self._has_threads:
            # The number is the calling thread's own, so it can't be set before.
            torch.set_num_threads(self._options.intra_op_threads)
            self._has_threads = True
        arguments = {name: self._encode(name, array) for name, array in inputs.items()}
        try:
            results = self._run(arguments)
        except (RuntimeError, TypeError, ValueError, IndexError, KeyError) as error:
            raise InternalError(f"PyTorch execute failure: {error}") from error
        return [self._decode(name, results) for name in output_names]

    def close(self) -> None:
        """Forget the module."""
        self._call = None

    def _encode(self, name: str, array: npt.NDArray[Any]) -> torch.Tensor | list[str]:
        datatype = self._signature.inputs[name].datatype
        if datatype is datatypes.BYTES:
            return to_strings(name, array)
        return to_torch(array, datatype)

    def _run(self, arguments: Mapping[str, Result]) -> list[Result]:
        call = self._call
        if call is None:
            raise RuntimeError("the instance is closed")
        options = self._options
        gradients: AbstractContextManager[object] = (
            torch.inference_mode() if options.inference_mode else torch.no_grad()
        )
        optimization: AbstractContextManager[object] = (
            _plain_execution() if not options.optimized_execution else nullcontext()
        )
        with gradients, optimization:
            if self._binding.style is InputStyle.AS_DICT:
                value = call(arguments)
            elif self._binding.style is InputStyle.BY_NAME:
                value = call(**arguments)
            else:
                value = call(*(arguments[name] for name in self._binding.names))
            return list(flatten_results(value))

    def _decode(self, name: str, results: Sequence[Result]) -> Tensor:
        index = self._output_indices[name]
        if index >= len(results):
            raise InvalidArgumentError(
                f"The output {name} in the model configuration refers to an output index which "
                f"doesn't exist. This model has {len(results)} outputs"
            )
        result = results[index]
        spec = self._signature.outputs[name]
        if isinstance(result, list):
            data: npt.NDArray[Any] = from_strings(result)
            _check_datatype(spec, datatypes.BYTES.config_name)
        else:
            _check_result(spec, result)
            data = to_numpy(result)
        return Tensor(name, spec.datatype, data.shape, data)


def _check_result(spec: TensorSpec, result: torch.Tensor) -> None:
    datatype = DATATYPES.get(result.dtype)
    _check_datatype(spec, str(result.dtype) if datatype is None else datatype.config_name)
    if result.layout is not torch.strided:
        raise InvalidArgumentError(
            f"output '{spec.name}' is a sparse tensor; let the model call to_dense() on it"
        )
    if result.dim() == 0:
        raise InvalidArgumentError(f"output '{spec.name}' is a scalar which is not supported.")


def _check_datatype(spec: TensorSpec, provided: str) -> None:
    if spec.datatype.config_name != provided:
        raise InvalidArgumentError(
            f"configuration expects datatype {spec.datatype.config_name} for output "
            f"'{spec.name}', model provides {provided}"
        )


def _bind_outputs(signature: ModelSignature, program: Program) -> Mapping[str, int]:
    if program.signature is None:
        return bind_outputs(tuple(signature.outputs))
    # An exported program names its results, and the config was checked to use these names.
    names = [tensor.name for tensor in program.signature.outputs]
    return {name: names.index(name) for name in signature.outputs}


def _refuse_missing_tensors(source: ModelSource) -> None:
    for kind, tensors in (("input", source.config.input), ("output", source.config.output)):
        if not tensors:
            raise InvalidArgumentError(
                f"model configuration must contain at least one {kind}, none were specified. "
                f"A TorchScript file doesn't say what it takes and gives: name the {kind}s of "
                f"model '{source.name}' in its config.pbtxt"
            )


def _set_inter_op_threads(model_name: str, count: int | None) -> None:
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


def _plain_execution() -> AbstractContextManager[object]:
    context: AbstractContextManager[object] = torch.jit.optimized_execution(  # type: ignore[attr-defined]
        should_optimize=False
    )
    return context
