"""A loaded PyTorch model and the settings it runs under."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy.typing as npt
import torch

from naiad.backends.pytorch.binding import Binding
from naiad.backends.pytorch.naming import InputStyle, Slot, missing_result
from naiad.backends.pytorch.options import TorchOptions
from naiad.backends.pytorch.placement import CPU
from naiad.backends.pytorch.program import Program
from naiad.backends.pytorch.tensors import (
    DATATYPES,
    Result,
    copy_to_torch,
    flatten_results,
    from_strings,
    to_numpy,
    to_strings,
    to_torch,
    to_value,
)
from naiad.errors import InternalError, InvalidArgumentError
from naiad.inference import datatypes
from naiad.inference.tensor import Tensor
from naiad.model_config.signature import ModelSignature, TensorSpec

# What torch and Python raise when a model fails on a batch.
_FAILURES = (
    RuntimeError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    AssertionError,
)


class TorchInstance:
    """One runnable copy of a model; used by one thread."""

    __slots__ = (
        "_binding",
        "_device",
        "_has_threads",
        "_options",
        "_program",
        "_signature",
    )

    def __init__(
        self,
        program: Program,
        signature: ModelSignature,
        binding: Binding,
        options: TorchOptions,
        device: torch.device | None,
    ) -> None:
        self._program: Program | None = program
        self._signature = signature
        self._binding = binding
        self._options = options
        self._device = device or program.device or CPU
        self._has_threads = False

    def execute(
        self, inputs: Mapping[str, npt.NDArray[Any]], output_names: Sequence[str]
    ) -> Sequence[Tensor]:
        """Call the model on one batch.

        Raises:
            InternalError: torch failed on this batch.
            InvalidArgumentError: the model's results are not what the config says, text isn't
                UTF-8, or the rows differ in what is one value to the model.
        """
        program = self._program
        if program is None:
            raise InternalError("the instance is closed")
        if not self._has_threads:
            # The number is the calling thread's own, so it can't be set before.
            torch.set_num_threads(self._options.intra_op_threads)
            self._has_threads = True
        given = [slot for slot in self._binding.inputs.slots if slot.name in inputs]
        values = [self._encode(slot, inputs[slot.name], program) for slot in given]
        try:
            value = self._call(program, given, values)
            keys = self._binding.result_keys
            by_key = bool(keys) and type(value) is dict and keys.issubset(value)
            results: Any = value if by_key else list(flatten_results(value))
        except _FAILURES as error:
            raise InternalError(f"PyTorch execute failure: {error}") from error
        outputs = [
            self._decode(name, results[name] if by_key else self._pick(name, results), program)
            for name in output_names
        ]
        if self._options.cleans_cache and self._device.type == "cuda":
            torch.cuda.empty_cache()
        return outputs

    def close(self) -> None:
        """Forget the model."""
        self._program = None

    def _encode(self, slot: Slot, array: npt.NDArray[Any], program: Program) -> Any:
        datatype = self._signature.inputs[slot.name].datatype
        if slot.takes_one_value:
            return to_value(slot.name, array)
        if datatype is datatypes.BYTES:
            return to_strings(slot.name, array)
        if self._device.type != "cpu":
            return to_torch(array, datatype).to(self._device)
        return (copy_to_torch if program.writes else to_torch)(array, datatype)

    def _call(self, program: Program, given: Sequence[Slot], values: Sequence[Any]) -> Any:
        options = self._options
        gradients: AbstractContextManager[object] = (
            torch.inference_mode() if options.inference_mode else torch.no_grad()
        )
        optimization: AbstractContextManager[object] = (
            nullcontext() if options.optimized_execution else _plain_execution()
        )
        call = program.call
        with gradients, optimization:
            style = self._binding.inputs.style
            if style is InputStyle.BY_POSITION:
                return call(*values)
            if style is InputStyle.AS_LIST:
                return call(values)
            arguments = {slot.argument: value for slot, value in zip(given, values, strict=True)}
            return call(arguments) if style is InputStyle.AS_DICT else call(**arguments)

    def _pick(self, name: str, results: Sequence[Result]) -> Result:
        index = self._binding.outputs[name]
        if index >= len(results):
            raise InvalidArgumentError(missing_result(name, len(results)))
        return results[index]

    def _decode(self, name: str, result: Any, program: Program) -> Tensor:
        spec = self._signature.outputs[name]
        if isinstance(result, list):
            _check_datatype(spec, datatypes.BYTES.config_name)
            data: npt.NDArray[Any] = from_strings(result)
            if self._signature.max_batch_size and spec.dims == (1,) and spec.reshape is None:
                # One text a row is a list to the model.
                data = data.reshape(-1, 1)
        elif not isinstance(result, torch.Tensor):
            raise InvalidArgumentError(
                f"output '{name}' is a {type(result).__name__}; only tensors and lists of text "
                "can be served"
            )
        else:
            _check_result(spec, result)
            # The next batch may write into the memory that this result is in.
            data = to_numpy(result.clone() if program.writes else result)
        self._binding.shapes.check(name, data.shape)
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


def _plain_execution() -> AbstractContextManager[object]:
    context: AbstractContextManager[object] = torch.jit.optimized_execution(  # type: ignore[attr-defined]
        should_optimize=False
    )
    return context
