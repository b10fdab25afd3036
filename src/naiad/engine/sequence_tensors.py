"""What a sequence model is given besides its requests' inputs: controls, and implicit state.

Source: Triton's model_configuration.md ("Control Inputs", "Implicit State Management") and
``sequence_batch_scheduler.cc``. The state that an execution puts out for a sequence is what its
next execution takes in; it never leaves the server unless it is an output of the config too.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from naiad.errors import InternalError, InvalidArgumentError
from naiad.inference.datatypes import BY_CONFIG_NUMBER, BYTES, Datatype
from naiad.inference.sequence import SequenceRow
from naiad.inference.tensor import Tensor
from naiad.model_config.schema import ModelConfig, ModelSequenceBatching
from naiad.model_config.sequence_controls import (
    CONTROL_DIMS,
    control_datatype,
    control_values,
    list_controls,
)
from naiad.protocol.binary_data import decode_elements
from naiad.repository.paths import resolve_inside
from naiad.scheduling.batch import join_rows, make_blank, split_rows

_FOLDER: Final = "initial_state"
# A config may come from a client, so what it makes the server allocate has an end.
_MAX_STATE_BYTES: Final = 2 << 30
_LENGTH_BYTES: Final = 4
_UINT64_BYTES: Final = 8
_UINT64_MASK: Final = (1 << 64) - 1

_Array = npt.NDArray[Any]
_Control = ModelSequenceBatching.Control


class SequenceTensors:
    """The controls and states of one model version; its instances' threads share it.

    Args:
        controls: by name of the input.
        states: in the order of the config.
        has_batch_axis: of the model.
    """

    def __init__(
        self,
        controls: "Mapping[str, _ControlValues]",
        states: "Sequence[_State]",
        *,
        has_batch_axis: bool,
    ) -> None:
        self._controls = controls
        self._states = states
        self._has_batch_axis = has_batch_axis
        self._has_open_dims = any(-1 in state.dims for state in states)

    @classmethod
    def from_config(cls, config: ModelConfig, model_folder: Path) -> "SequenceTensors | None":
        """Those of a complete and valid config, with its files read; None without sequences.

        Args:
            config: of the model.
            model_folder: whose folder ``initial_state`` has the files that states name.

        Raises:
            InvalidArgumentError: a state can't be what the config says of it.
            InternalError: a file can't be read.
        """
        if not config.HasField("sequence_batching"):
            return None
        batching = config.sequence_batching
        has_batch_axis = config.max_batch_size > 0
        return cls(
            {name: _make_control(control) for name, control in list_controls(batching)},
            [
                _make_state(state, model_folder, has_batch_axis=has_batch_axis)
                for state in batching.state
            ],
            has_batch_axis=has_batch_axis,
        )

    def add_inputs(self, inputs: dict[str, _Array], rows: Sequence[SequenceRow]) -> None:
        """Put the controls and states of the rows beside the joined inputs.

        What is there already, as a warm-up may bring it, stays.
        """
        shape = (len(rows), *CONTROL_DIMS) if self._has_batch_axis else CONTROL_DIMS
        for name, make_values in self._controls.items():
            if name not in inputs:
                inputs[name] = make_values(rows).reshape(shape)
        for state in self._states:
            if state.input_name not in inputs:
                inputs[state.input_name] = state.join(rows)

    def output_names(self, wanted: Sequence[str]) -> Sequence[str]:
        """The outputs to compute: those that are wanted, then the states that aren't."""
        hidden = [s.output_name for s in self._states if s.output_name not in wanted]
        return [*wanted, *hidden] if hidden else wanted

    def keep_states(self, outputs: Sequence[Tensor], rows: Sequence[SequenceRow]) -> None:
        """Take the states out of an execution's outputs, for the next one of each sequence.

        Raises:
            InternalError: a state is of another datatype or number of rows than it must be; no
                sequence's state has changed then.
        """
        if not self._states:
            return
        by_name = {tensor.name: tensor for tensor in outputs}
        pieces = {
            state.input_name: self._split(state, by_name[state.output_name], len(rows))
            for state in self._states
        }
        for index, row in enumerate(rows):
            if row.request is None or row.state is None or row.request.sequence_end:
                continue
            row.state.tensors = {name: _own(arrays[index]) for name, arrays in pieces.items()}
            if self._has_open_dims:
                row.state.key = self._key(row.state.tensors)

    def _split(self, state: "_State", tensor: Tensor, row_count: int) -> list[_Array]:
        if tensor.datatype is not state.datatype:
            raise InternalError(
                f"state '{state.output_name}' is of datatype {tensor.datatype.name}, and the "
                f"config says {state.datatype.name}"
            )
        if not self._has_batch_axis:
            return [tensor.data]
        rows = split_rows(tensor.data, [1] * row_count)
        return [tensor.data] if row_count == 1 else rows

    def _key(self, tensors: Mapping[str, _Array]) -> object:
        shapes = tuple(tensors[state.input_name].shape for state in self._states)
        initial = tuple(state.initial.shape for state in self._states)
        return None if shapes == initial else shapes


class _State:
    """One tensor that a model keeps over the requests of a sequence."""

    def __init__(
        self, setting: ModelSequenceBatching.State, datatype: Datatype, initial: _Array
    ) -> None:
        self.input_name = setting.input_name
        self.output_name = setting.output_name
        self.dims = tuple(setting.dims)
        self.datatype = datatype
        initial.flags.writeable = False
        self.initial = initial

    def join(self, rows: Sequence[SequenceRow]) -> _Array:
        found = [self._of(row) for row in rows]
        model = next((array for array in found if array is not None), self.initial)
        return join_rows([make_blank(model) if array is None else array for array in found])

    def _of(self, row: SequenceRow) -> _Array | None:
        if row.state is None:
            return None
        return self.initial if row.state.tensors is None else row.state.tensors[self.input_name]


def _own(array: _Array) -> _Array:
    """The array, or a copy where it would keep others' rows, or a client's memory, from going."""
    return array if array.base is None else array.copy()


# From rows to one value each.
_ControlValues = Callable[[Sequence[SequenceRow]], _Array]

_FLAGS: Final[Mapping[int, Callable[[SequenceRow], bool]]] = {
    _Control.CONTROL_SEQUENCE_START: lambda row: bool(row.request and row.request.sequence_start),
    _Control.CONTROL_SEQUENCE_END: lambda row: bool(row.request and row.request.sequence_end),
    _Control.CONTROL_SEQUENCE_READY: lambda row: row.request is not None,
}


def _make_control(control: _Control) -> _ControlValues:
    datatype = control_datatype(control)
    if datatype is None:
        raise InvalidArgumentError("a sequence control has no datatype")
    if control.kind == _Control.CONTROL_SEQUENCE_CORRID:
        return _make_text_ids if datatype is BYTES else _number_ids(datatype)
    false_true = np.array(control_values(control), datatype.dtype)
    is_on = _FLAGS[control.kind]

    def make_values(rows: Sequence[SequenceRow]) -> _Array:
        return false_true[[int(is_on(row)) for row in rows]]

    return make_values


def _number_ids(datatype: Datatype) -> _ControlValues:
    def make_values(rows: Sequence[SequenceRow]) -> _Array:
        # The id's lowest bytes, where it has more than the datatype; Triton copies as many.
        return np.array([_to_number(row) for row in rows], np.uint64).astype(datatype.dtype)

    return make_values


def _to_number(row: SequenceRow) -> int:
    if row.request is None:
        return 0
    key = row.request.correlation_id
    if isinstance(key, int):
        return key & _UINT64_MASK
    # What Triton's models get to see: the length of the text, then its first bytes.
    text = key.encode()
    content = len(text).to_bytes(_LENGTH_BYTES, "little") + text
    return int.from_bytes(content[:_UINT64_BYTES], "little")


def _make_text_ids(rows: Sequence[SequenceRow]) -> _Array:
    ids = np.empty(len(rows), np.object_)
    ids[:] = [
        b"" if row.request is None else str(row.request.correlation_id).encode() for row in rows
    ]
    return ids


def _make_state(
    setting: ModelSequenceBatching.State, model_folder: Path, *, has_batch_axis: bool
) -> _State:
    name = setting.input_name
    datatype = BY_CONFIG_NUMBER.get(setting.data_type)
    if datatype is None:
        raise InvalidArgumentError(f"state '{name}' must specify 'data_type'")
    if len(setting.initial_state) > 1:
        raise InvalidArgumentError(
            f"initial_state field for state input '{name}' must contain exactly one or zero "
            f"element. Found '{len(setting.initial_state)}' elements."
        )
    # Open dims begin with one element.
    dims = tuple(1 if dim == -1 else dim for dim in setting.dims)
    content = _zeros(name, datatype, dims)
    for initial in setting.initial_state:
        _check_initial(initial, setting)
        dims = tuple(initial.dims)
        content = _zeros(name, datatype, dims)
        if initial.WhichOneof("state_data") == "data_file":
            content = _read_state(initial, datatype, content.size, model_folder)
    return _State(setting, datatype, content.reshape((1, *dims) if has_batch_axis else dims))


def _zeros(name: str, datatype: Datatype, dims: Sequence[int]) -> _Array:
    size = prod(dims)
    if size * datatype.dtype.itemsize > _MAX_STATE_BYTES:
        raise InvalidArgumentError(
            f"the initial state '{name}' has more than {_MAX_STATE_BYTES} bytes"
        )
    return make_blank(np.empty(size, datatype.dtype))


def _check_initial(
    initial: ModelSequenceBatching.InitialState, setting: ModelSequenceBatching.State
) -> None:
    name = setting.input_name
    if initial.data_type != setting.data_type:
        raise InvalidArgumentError(
            f"The data type used for 'initial_state' field of state '{name}' does not match the "
            "state data type."
        )
    if not initial.name:
        raise InvalidArgumentError(
            f"Field 'name' must be set when using initial_state for state input '{name}'."
        )
    if len(initial.dims) != len(setting.dims):
        raise InvalidArgumentError(
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions "
            f"for state input '{name}'. {len(initial.dims)} != {len(setting.dims)}"
        )
    for dim, state_dim in zip(initial.dims, setting.dims, strict=True):
        if dim < 0:
            raise InvalidArgumentError(
                f"'initial_state' field for state input name '{name}' contains variable dimensions."
            )
        if state_dim not in (-1, dim):
            raise InvalidArgumentError(
                f"'initial_state' dim for input name '{name}' doesn't match 'state' dim "
                f"description. {dim} != {state_dim}"
            )
    if initial.WhichOneof("state_data") is None:
        raise InvalidArgumentError(
            f"initial_state setting expects state'{name}' to have state_data set"
        )


def _read_state(
    initial: ModelSequenceBatching.InitialState, datatype: Datatype, count: int, model_folder: Path
) -> _Array:
    path = resolve_inside(model_folder / _FOLDER, initial.data_file)
    try:
        if path.stat().st_size > _MAX_STATE_BYTES:
            raise InvalidArgumentError(
                f"initial state {initial.data_file} has more than {_MAX_STATE_BYTES} bytes"
            )
        content = path.read_bytes()
    except OSError as error:
        raise InternalError(
            f"failed to open text file for read {path}: {error.strerror}"
        ) from error
    if datatype is BYTES:
        elements = decode_elements(content, initial.name)
        if len(elements) != count:
            raise InvalidArgumentError(
                f"initial_state setting expects {count} string elements, but the data provided "
                f"from {initial.data_file} has {len(elements)}"
            )
        texts = np.empty(count, np.object_)
        texts[:] = elements
        return texts
    wanted = count * datatype.byte_size
    if len(content) < wanted:
        raise InvalidArgumentError(
            f"initial_state setting expects {wanted} bytes, but the data provided from "
            f"{initial.data_file} only has {len(content)} bytes."
        )
    if datatype.dtype.kind == "b":
        return np.not_equal(np.frombuffer(content, np.uint8, count), 0)
    return np.frombuffer(content, datatype.dtype, count).copy()
