"""The config's ``reshape``: the client sees ``dims``, the backend sees other dims of equal size.

Source: Triton's model_configuration.md, "Reshape". Variable dims keep their order: the n-th -1 of
one side takes the length of the n-th -1 of the other.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from naiad.inference.tensor import Tensor
from naiad.model_config.signature import ModelSignature

_Dims = tuple[int, ...]


class Reshaper:
    """The reshapes of one model; falsy when it has none, which is the usual case."""

    def __init__(self, signature: ModelSignature) -> None:
        self._axis = 1 if signature.max_batch_size > 0 else 0
        self._inputs: dict[str, tuple[_Dims, _Dims]] = {
            name: (spec.dims, spec.reshape)
            for name, spec in signature.inputs.items()
            if spec.reshape is not None
        }
        self._outputs: dict[str, tuple[_Dims, _Dims]] = {
            name: (spec.reshape, spec.dims)
            for name, spec in signature.outputs.items()
            if spec.reshape is not None
        }

    def __bool__(self) -> bool:
        return bool(self._inputs or self._outputs)

    def to_backend(self, inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """The joined inputs in the shapes that the backend expects, as views."""
        return {
            name: self._apply(array, *self._inputs[name]) if name in self._inputs else array
            for name, array in inputs.items()
        }

    def to_client(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """The batched outputs in the shapes of the config, as views.

        One that the model gave in another shape than it declares stays as it is.
        """
        result = []
        for tensor in outputs:
            dims = self._outputs.get(tensor.name)
            if dims is None or not self._is_of(tensor.data.shape, dims[0]):
                result.append(tensor)
                continue
            data = self._apply(tensor.data, *dims)
            result.append(Tensor(tensor.name, tensor.datatype, data.shape, data))
        return result

    def _is_of(self, shape: tuple[int, ...], dims: _Dims) -> bool:
        rest = shape[self._axis :]
        return len(rest) == len(dims) and all(
            dim in (-1, length) for length, dim in zip(rest, dims, strict=True)
        )

    def _apply(self, array: npt.NDArray[Any], source: _Dims, target: _Dims) -> npt.NDArray[Any]:
        batch = array.shape[: self._axis]
        lengths = iter(
            size for size, dim in zip(array.shape[self._axis :], source, strict=False) if dim == -1
        )
        dims = tuple(next(lengths, -1) if dim == -1 else dim for dim in target)
        return array.reshape(batch + dims)
