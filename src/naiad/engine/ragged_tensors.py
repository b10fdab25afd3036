"""Ragged batches: requests of different shapes in one execution, and what tells them apart.

An input with ``allow_ragged_batch`` reaches the model as one vector, the elements of all requests
one after the other. The config's ``batch_input`` says what else the model is given so that it can
find the requests in it, and ``batch_output`` which outputs are such vectors themselves.

Source: Triton's ragged_batching.md, ``backend_input_collector.cc`` and
``backend_output_responder.cc``. As there, counts of elements are those of whole requests, and
shapes of items those of rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from naiad.engine.reshape import Reshaper
from naiad.errors import InternalError
from naiad.inference.datatypes import BY_CONFIG_NUMBER, Datatype
from naiad.inference.tensor import Tensor
from naiad.model_config.schema import BatchInput, ModelConfig
from naiad.model_config.signature import ModelSignature
from naiad.scheduling.batch import join_flat, join_rows, split_flat, split_rows

_Array = npt.NDArray[Any]
_Shape = tuple[int, ...]
_Filler = Callable[[Sequence[_Shape], npt.DTypeLike], _Array]

# The shape of an input of each request of a batch, with the batch axis.
Shapes = Mapping[str, Sequence[_Shape]]
# Name, datatype, and one array for each request of the batch.
Pieces = list[tuple[str, Datatype, list[_Array]]]


class RaggedTensors:
    """How the requests of one model version are joined and cut apart; shared by its threads.

    Args:
        signature: of the model.
        batch_inputs: source input, how to fill the tensor from its shapes, and the tensor's
            datatype, by name of the model's input.
        scattered: source input by name of the output that is cut by that input's shapes.
    """

    def __init__(
        self,
        signature: ModelSignature,
        batch_inputs: Mapping[str, tuple[str, _Filler, Datatype]],
        scattered: Mapping[str, str],
    ) -> None:
        self._ragged = frozenset(
            name for name, spec in signature.inputs.items() if spec.allow_ragged_batch
        )
        self._batch_inputs = batch_inputs
        self._scattered = scattered
        self._has_batch_axis = signature.max_batch_size > 0
        self._reshaper = Reshaper(signature)
        self._output_dims: dict[str, _Shape] = {}
        for name in scattered:
            spec = signature.outputs[name]
            dims = spec.dims if spec.reshape is None else spec.reshape
            self._output_dims[name] = (-1, *dims) if self._has_batch_axis else dims
        self._sources = {source for source, _, _ in batch_inputs.values()} | set(scattered.values())

    @classmethod
    def from_config(cls, config: ModelConfig, signature: ModelSignature) -> "RaggedTensors | None":
        """Those of a complete and valid config; None where its requests are joined row by row."""
        scattered = {
            target: setting.source_input[0]
            for setting in config.batch_output
            for target in setting.target_name
        }
        batch_inputs = {
            target: (
                setting.source_input[0],
                _FILLERS[setting.kind],
                BY_CONFIG_NUMBER[setting.data_type],
            )
            for setting in config.batch_input
            for target in setting.target_name
        }
        is_ragged = any(spec.allow_ragged_batch for spec in signature.inputs.values())
        if not (is_ragged or scattered or batch_inputs):
            return None
        return cls(signature, batch_inputs, scattered)

    def join(self, requests: Sequence[dict[str, _Array]]) -> tuple[dict[str, _Array], Shapes]:
        """Make one batch of the inputs of several requests.

        Args:
            requests: by name of the input, in the shapes of the config; at least one.

        Returns:
            What the model gets, and what `split` needs to know about it.
        """
        if self._reshaper:
            requests = [self._reshaper.to_backend(inputs) for inputs in requests]
        joined = {
            name: (join_flat if name in self._ragged else join_rows)(
                [inputs[name] for inputs in requests]
            )
            for name in requests[0]
        }
        shapes = {
            source: [inputs[source].shape for inputs in requests if source in inputs]
            for source in self._sources
        }
        for name, (source, fill, datatype) in self._batch_inputs.items():
            joined[name] = fill(shapes[source], datatype.dtype)
        return joined, shapes

    def split(self, outputs: Sequence[Tensor], rows: Sequence[int], shapes: Shapes) -> Pieces:
        """Cut the outputs of a batch into one piece for each request.

        Args:
            outputs: of the model.
            rows: of each request.
            shapes: from `join`.

        Raises:
            InternalError: an output has not as many rows or elements as the requests have.
        """
        return [
            (tensor.name, tensor.datatype, self._cut(tensor, rows, shapes)) for tensor in outputs
        ]

    def _cut(self, tensor: Tensor, rows: Sequence[int], shapes: Shapes) -> list[_Array]:
        source = self._scattered.get(tensor.name)
        if source is not None:
            dims = self._output_dims[tensor.name]
            wanted = [_fill_open(dims, shape, tensor.name, source) for shape in shapes[source]]
            pieces = split_flat(tensor.data, wanted, tensor.name)
        elif self._has_batch_axis:
            pieces = split_rows(tensor.data, rows)
        else:
            pieces = [tensor.data]
        if not self._reshaper:
            return pieces
        return [self._to_client(tensor, piece) for piece in pieces]

    def _to_client(self, tensor: Tensor, piece: _Array) -> _Array:
        whole = Tensor(tensor.name, tensor.datatype, piece.shape, piece)
        return self._reshaper.to_client([whole])[0].data


def _fill_open(dims: _Shape, shape: _Shape, name: str, source: str) -> _Shape:
    """The dims of an output, its open ones taken from the same places of an input."""
    if len(shape) < len(dims) and -1 in dims[len(shape) :]:
        raise InternalError(
            f"output '{name}' has an open dim where its source input '{source}' of shape "
            f"{list(shape)} has none; give the output as many dims as the input in the config"
        )
    return tuple(shape[index] if dim == -1 else dim for index, dim in enumerate(dims))


def _count_elements(shapes: Sequence[_Shape], dtype: npt.DTypeLike) -> _Array:
    return np.array([prod(shape) for shape in shapes], dtype)


def _accumulate(shapes: Sequence[_Shape], dtype: npt.DTypeLike) -> _Array:
    return np.cumsum(_count_elements(shapes, np.int64)).astype(dtype)


def _accumulate_from_zero(shapes: Sequence[_Shape], dtype: npt.DTypeLike) -> _Array:
    return np.concatenate([np.zeros(1, dtype), _accumulate(shapes, dtype)])


def _largest_as_shape(shapes: Sequence[_Shape], dtype: npt.DTypeLike) -> _Array:
    """A tensor whose shape is what it says; its elements mean nothing."""
    return np.zeros(max(prod(shape) for shape in shapes), dtype)


def _list_item_shapes(shapes: Sequence[_Shape]) -> Iterator[_Shape]:
    for shape in shapes:
        for _ in range(shape[0]):
            yield shape[1:]


def _item_shapes(shapes: Sequence[_Shape], dtype: npt.DTypeLike) -> _Array:
    return np.array(list(_list_item_shapes(shapes)), dtype)


def _flat_item_shapes(shapes: Sequence[_Shape], dtype: npt.DTypeLike) -> _Array:
    return np.array([dim for shape in _list_item_shapes(shapes) for dim in shape], dtype)


_FILLERS: Final[Mapping[BatchInput.Kind, _Filler]] = {
    BatchInput.BATCH_ELEMENT_COUNT: _count_elements,
    BatchInput.BATCH_ACCUMULATED_ELEMENT_COUNT: _accumulate,
    BatchInput.BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO: _accumulate_from_zero,
    BatchInput.BATCH_MAX_ELEMENT_COUNT_AS_SHAPE: _largest_as_shape,
    BatchInput.BATCH_ITEM_SHAPE: _item_shapes,
    BatchInput.BATCH_ITEM_SHAPE_FLATTEN: _flat_item_shapes,
}
