"""What the engine looks up for every request: the tensors of a model, in plain slotted classes.

Built once when a model is loaded, because reading a protobuf message costs more than the rest of
the checks together.
"""

from collections.abc import Iterable

from naiad.errors import InvalidArgumentError
from naiad.inference.datatypes import BY_CONFIG_NUMBER, Datatype
from naiad.model_config.schema import DataType, ModelConfig, ModelInput, ModelOutput
from naiad.model_config.sequence_controls import CONTROL_DIMS, control_datatype, list_controls


class TensorSpec:
    """What a model says about one input or output.

    Attributes:
        name: as in the model config.
        datatype: of the elements.
        dims: without the batch axis; -1 for any length.
        reshape: the dims that the backend sees instead, without the batch axis, of as many
            elements; None where it sees ``dims``.
        is_optional: a request may leave the input out.
        allow_ragged_batch: requests of different shape may share a batch.
        is_fixed: no dim is -1, so equal shapes need no test before requests are joined.
    """

    __slots__ = (
        "allow_ragged_batch",
        "datatype",
        "dims",
        "is_fixed",
        "is_optional",
        "name",
        "reshape",
    )

    def __init__(
        self,
        name: str,
        datatype: Datatype,
        dims: tuple[int, ...],
        *,
        reshape: tuple[int, ...] | None = None,
        is_optional: bool = False,
        allow_ragged_batch: bool = False,
    ) -> None:
        self.name = name
        self.datatype = datatype
        self.dims = dims
        self.reshape = reshape
        self.is_optional = is_optional
        self.allow_ragged_batch = allow_ragged_batch
        self.is_fixed = -1 not in dims

    def __repr__(self) -> str:
        return f"TensorSpec({self.name!r}, {self.datatype.name}, {list(self.dims)})"


class ModelSignature:
    """The tensors and the batch limit of one loaded model.

    Attributes:
        name: of the model.
        max_batch_size: rows of an execution; 0 where the model has no batch axis.
        inputs: by name, in the order of the config.
        outputs: by name, in the order of the config.
        required_inputs: names that a request must bring.
        is_uniform: every request has the same inputs, of dims that are the same or don't matter,
            so any may share a batch.
        is_decoupled: a request may have any number of responses.
    """

    __slots__ = (
        "inputs",
        "is_decoupled",
        "is_uniform",
        "max_batch_size",
        "name",
        "outputs",
        "required_inputs",
    )

    def __init__(
        self,
        name: str,
        max_batch_size: int,
        inputs: Iterable[TensorSpec],
        outputs: Iterable[TensorSpec],
        *,
        is_decoupled: bool = False,
    ) -> None:
        self.name = name
        self.max_batch_size = max_batch_size
        self.inputs = {spec.name: spec for spec in inputs}
        self.outputs = {spec.name: spec for spec in outputs}
        self.required_inputs = frozenset(
            spec.name for spec in self.inputs.values() if not spec.is_optional
        )
        self.is_decoupled = is_decoupled
        self.is_uniform = all(
            (spec.is_fixed or spec.allow_ragged_batch) and not spec.is_optional
            for spec in self.inputs.values()
        )

    @classmethod
    def from_config(cls, config: ModelConfig) -> "ModelSignature":
        """The signature of a complete config.

        Raises:
            InvalidArgumentError: a tensor has no datatype; the config was not completed.
        """
        return cls(
            config.name,
            config.max_batch_size,
            (_input_spec(tensor, config.name) for tensor in config.input),
            (_output_spec(tensor, config.name) for tensor in config.output),
            is_decoupled=config.model_transaction_policy.decoupled,
        )

    @classmethod
    def for_backend(cls, config: ModelConfig) -> "ModelSignature":
        """The signature of a complete config, with what the server itself gives to the model.

        No request brings controls, states and batch inputs and no answer holds them, but the
        model takes and gives them.

        Raises:
            InvalidArgumentError: a tensor has no datatype.
        """
        signature = cls.from_config(config)
        for name, control in list_controls(config.sequence_batching):
            datatype = control_datatype(control)
            if datatype is not None:
                signature.inputs[name] = TensorSpec(name, datatype, CONTROL_DIMS)
        for setting in config.batch_input:
            datatype = _datatype(setting.data_type, "batch input", config.name)
            for name in setting.target_name:
                signature.inputs[name] = TensorSpec(name, datatype, (-1,))
        for state in config.sequence_batching.state:
            datatype = _datatype(state.data_type, f"state '{state.input_name}'", config.name)
            dims = tuple(state.dims)
            signature.inputs[state.input_name] = TensorSpec(state.input_name, datatype, dims)
            # A state that is an output too has that output's dims.
            signature.outputs.setdefault(
                state.output_name, TensorSpec(state.output_name, datatype, dims)
            )
        return signature


def _input_spec(tensor: ModelInput, model_name: str) -> TensorSpec:
    return TensorSpec(
        tensor.name,
        _datatype(tensor.data_type, f"model input '{tensor.name}'", model_name),
        tuple(tensor.dims),
        reshape=tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None,
        is_optional=tensor.optional,
        allow_ragged_batch=tensor.allow_ragged_batch,
    )


def _output_spec(tensor: ModelOutput, model_name: str) -> TensorSpec:
    return TensorSpec(
        tensor.name,
        _datatype(tensor.data_type, f"model output '{tensor.name}'", model_name),
        tuple(tensor.dims),
        reshape=tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None,
    )


def _datatype(number: DataType, tensor: str, model_name: str) -> Datatype:
    datatype = BY_CONFIG_NUMBER.get(number)
    if datatype is None:
        raise InvalidArgumentError(f"{tensor} must specify 'data_type' for {model_name}")
    return datatype
