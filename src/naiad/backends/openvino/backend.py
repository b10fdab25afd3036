"""Models in OpenVINO's IR (``model.xml`` with ``model.bin``) and in ONNX files, on the CPU."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy.typing as npt
import openvino

from naiad.backends.base import ModelSource
from naiad.backends.model_file import find_model_file
from naiad.backends.openvino.options import find_extension, make_properties, read_switch
from naiad.backends.openvino.tensors import DATATYPES, from_openvino, to_openvino
from naiad.backends.output_shapes import OutputShapes
from naiad.errors import InternalError, InvalidArgumentError, UnsupportedError
from naiad.inference.tensor import Tensor
from naiad.model_config.complete import (
    ArtifactSignature,
    ArtifactTensor,
    check_against_artifact,
    complete_config,
)
from naiad.model_config.signature import ModelSignature

_DEFAULT_FILE: Final = "model.xml"
_DEVICE: Final = "CPU"
_ANY_LENGTH: Final = -1
# What OpenVINO's Python API raises: its own failures, and those of turning values into its own.
_FAILURES: Final = (RuntimeError, ValueError, TypeError)


class OpenVinoBackend:
    """Loads what OpenVINO reads."""

    def complete_config(self, source: ModelSource) -> None:
        """Fill the tensors, the batch size and the batcher that the config leaves open.

        Raises:
            NaiadError: the file can't be read, or the config can't fit it.
        """
        if source.config.input and source.config.output:
            return
        complete_config(source.config, _read_signature(source, _read_model(source)))

    def load(self, source: ModelSource) -> "OpenVinoModel":
        """Read the model, open its batch axis where the config batches, and compile it.

        Raises:
            NaiadError: the file can't be read or isn't what the config says.
        """
        make_properties(source)
        model = _read_model(source)
        _open_batch_axis(source, model)
        check_against_artifact(source.config, _read_signature(source, model))
        return OpenVinoModel(source, model)


class OpenVinoModel:
    """A model that fits its config."""

    def __init__(self, source: ModelSource, model: openvino.Model) -> None:
        self._source = source
        self._model = model
        self._signature = ModelSignature.for_backend(source.config)
        self._shapes = OutputShapes(self._signature, source.config)

    def create_instance(self, index: int) -> "OpenVinoInstance":
        """An instance with a compiled model, and so with threads, of its own."""
        source = self._source
        is_kept = source.cores_of(index) is not None
        properties = make_properties(source.for_instance(index), is_kept=is_kept)
        try:
            compiled = openvino.Core().compile_model(self._model, _DEVICE, properties)
            request = compiled.create_infer_request()
        except _FAILURES as error:
            raise _to_internal_error(error) from error
        return OpenVinoInstance(request, self._signature, self._shapes)

    def regroup(self, source: ModelSource) -> None:
        """Make instances of so many threads from now on."""
        self._source = source

    def close(self) -> None:
        """Nothing is held that the instances do not hold themselves."""


class OpenVinoInstance:
    """One infer request of a compiled model of its own; inputs are not copied, outputs are."""

    __slots__ = ("_inputs", "_model_name", "_outputs", "_request", "_shapes")

    def __init__(
        self, request: openvino.InferRequest, signature: ModelSignature, shapes: OutputShapes
    ) -> None:
        self._request: openvino.InferRequest | None = request
        self._shapes = shapes
        self._model_name = signature.name
        self._inputs = {spec.name: spec.datatype for spec in signature.inputs.values()}
        self._outputs = {spec.name: spec.datatype for spec in signature.outputs.values()}

    def execute(
        self, inputs: Mapping[str, npt.NDArray[Any]], output_names: Sequence[str]
    ) -> Sequence[Tensor]:
        """Infer one batch.

        Raises:
            InvalidArgumentError: an input is missing.
            InternalError: OpenVINO failed on this batch.
        """
        request = self._request
        if request is None:
            raise InternalError(f"an instance of model '{self._model_name}' is closed")
        for name in self._inputs:
            # The request would take the tensor of the batch before.
            if name not in inputs:
                raise InvalidArgumentError(
                    f"input '{name}' of model '{self._model_name}' is missing"
                )
        try:
            for name, array in inputs.items():
                request.set_tensor(name, to_openvino(array, self._inputs[name]))
            request.infer()
            return [self._read(request, name) for name in output_names]
        except _FAILURES as error:
            raise _to_internal_error(error) from error

    def close(self) -> None:
        """Free the compiled model and its threads."""
        self._request = None

    def _read(self, request: openvino.InferRequest, name: str) -> Tensor:
        datatype = self._outputs[name]
        array = from_openvino(request.get_tensor(name), datatype)
        self._shapes.check(name, array.shape)
        return Tensor(name, datatype, array.shape, array)


def _read_model(source: ModelSource) -> openvino.Model:
    path = find_model_file(source, _DEFAULT_FILE)
    extension = find_extension(source)
    core = openvino.Core()
    try:
        if extension is not None:
            core.add_extension(str(extension))
        return core.read_model(path)
    except _FAILURES as error:
        raise _to_internal_error(error) from error


def _open_batch_axis(source: ModelSource, model: openvino.Model) -> None:
    """Let a model whose files fix the batch at one take batches, where its config says so.

    Many IR files are made so. With SKIP_OV_DYNAMIC_BATCHSIZE the model stays as it is.
    """
    if source.config.max_batch_size == 0 or read_switch(source, "SKIP_OV_DYNAMIC_BATCHSIZE"):
        return
    shapes = {port.any_name: port.partial_shape for port in model.inputs}
    if not all(shape.rank.is_static and len(shape) and shape[0] == 1 for shape in shapes.values()):
        return
    opened = {
        name: openvino.PartialShape([openvino.Dimension.dynamic(), *list(shape)[1:]])
        for name, shape in shapes.items()
    }
    try:
        model.reshape(opened)
    except _FAILURES as error:
        raise InvalidArgumentError(
            f"unable to load model '{source.name}', its batch dimension is fixed at 1 and can't be "
            f"opened: {_reason(error)}. Set max_batch_size to 0"
        ) from error


def _read_signature(source: ModelSource, model: openvino.Model) -> ArtifactSignature:
    return ArtifactSignature(
        [_describe(source, "input", port) for port in model.inputs],
        [_describe(source, "output", port) for port in model.outputs],
    )


def _describe(source: ModelSource, role: str, port: Any) -> ArtifactTensor:
    if not port.names:
        raise UnsupportedError(
            f"unable to load model '{source.name}', an {role} of it has no name that a request "
            "could give; name it when the model is converted"
        )
    kind = port.element_type.get_type_name()
    datatype = DATATYPES.get(kind)
    if datatype is None:
        raise UnsupportedError(
            f"unable to load model '{source.name}', {role} '{port.any_name}' is a tensor of "
            f"{kind}, which this backend does not serve. An ONNX file with strings can be served "
            "by the backend onnxruntime"
        )
    shape = port.partial_shape
    if shape.rank.is_dynamic:
        return ArtifactTensor(port.any_name, datatype, None)
    lengths = tuple(
        _ANY_LENGTH if length.is_dynamic else int(length.get_length()) for length in shape
    )
    return ArtifactTensor(port.any_name, datatype, lengths)


def _to_internal_error(error: Exception) -> InternalError:
    return InternalError(f"openvino error: {_reason(error)}")


def _reason(error: Exception) -> str:
    """The last thing that OpenVINO says, without the places in its source that lead there."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and not line.startswith("Exception from ")]
    return " ".join(told) or type(error).__name__
