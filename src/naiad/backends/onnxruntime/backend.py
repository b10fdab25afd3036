"""Models in ONNX files, run by onnxruntime on the CPU."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import onnxruntime

from naiad.backends.base import ModelSource
from naiad.backends.borrowed import borrow_array
from naiad.backends.model_file import find_model_file
from naiad.backends.onnxruntime.failure import ORT_FAILURES, to_internal_error
from naiad.backends.onnxruntime.options import (
    make_inspection_options,
    make_run_options,
    make_session_options,
    read_default_max_batch_size,
)
from naiad.backends.onnxruntime.session import open_session, read_signature
from naiad.backends.onnxruntime.text import to_bytes, to_text
from naiad.errors import InternalError
from naiad.inference import datatypes
from naiad.inference.tensor import Tensor
from naiad.model_config.complete import check_against_artifact, complete_config
from naiad.model_config.signature import ModelSignature

_DEFAULT_FILE: Final = "model.onnx"
_ONNX_BFLOAT16: Final = 16  # TensorProto.DataType of onnx.proto
_DETOUR_DATATYPES: Final = (datatypes.BYTES, datatypes.BF16)

Session: TypeAlias = onnxruntime.InferenceSession
_make_value = onnxruntime.OrtValue.ortvalue_from_numpy
_make_bf16_value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type


class OnnxRuntimeBackend:
    """Loads ONNX files."""

    def complete_config(self, source: ModelSource) -> None:
        """Fill the tensors, the batch size and the batcher that the config leaves open.

        Raises:
            NaiadError: the file can't be read, or the config can't fit it.
        """
        if source.config.input and source.config.output:
            return
        path = find_model_file(source, _DEFAULT_FILE)
        session = open_session(path, make_inspection_options())
        complete_config(
            source.config,
            read_signature(source.name, session),
            default_max_batch_size=read_default_max_batch_size(source),
        )

    def load(self, source: ModelSource) -> "OnnxModel":
        """Open the file and hold its tensors against the config.

        Raises:
            NaiadError: the file can't be read or isn't what the config says.
        """
        path = find_model_file(source, _DEFAULT_FILE)
        session = open_session(path, make_session_options(source))
        artifact = read_signature(source.name, session)
        check_against_artifact(source.config, artifact)
        scalars = {
            tensor.name
            for tensor in (*artifact.inputs, *artifact.overridable_inputs, *artifact.outputs)
            if not tensor.shape
        }
        return OnnxModel(source, path, session, frozenset(scalars))


class OnnxModel:
    """A file that fits its config, and the session that the check of it opened."""

    def __init__(
        self, source: ModelSource, path: Path, session: Session, scalars: frozenset[str]
    ) -> None:
        self._source = source
        self._scalars = scalars
        self._path = path
        self._session: Session | None = session
        self._signature = ModelSignature.from_config(source.config)

    def create_instance(self, index: int) -> "OnnxInstance":
        """An instance with a session, and so a thread pool, of its own."""
        session = self._session
        self._session = None
        if session is None:
            session = open_session(self._path, make_session_options(self._source))
        return OnnxInstance(session, self._signature, self._scalars, make_run_options(self._source))

    def close(self) -> None:
        """Forget the session if no instance took it."""
        self._session = None


class OnnxInstance:
    """One session.

    onnxruntime reads a numpy array where it lies and gives new ones, so nothing is copied. Three
    kinds need a detour: text, which it holds as ``str``; BF16, which numpy hasn't got; and
    scalars, which a config can only call vectors of one.
    """

    __slots__ = (
        "_bf16_outputs",
        "_detours",
        "_model_name",
        "_outputs",
        "_run_options",
        "_scalars",
        "_session",
    )

    def __init__(
        self,
        session: Session,
        signature: ModelSignature,
        scalars: frozenset[str],
        run_options: onnxruntime.RunOptions | None,
    ) -> None:
        self._session: Session | None = session
        self._run_options = run_options
        self._scalars = scalars
        self._model_name = signature.name
        self._outputs = {spec.name: spec.datatype for spec in signature.outputs.values()}
        self._detours = {
            spec.name: spec.datatype
            for spec in signature.inputs.values()
            if spec.datatype in _DETOUR_DATATYPES or spec.name in scalars
        }
        self._bf16_outputs = frozenset(
            name for name, datatype in self._outputs.items() if datatype is datatypes.BF16
        )

    def execute(
        self, inputs: Mapping[str, npt.NDArray[Any]], output_names: Sequence[str]
    ) -> Sequence[Tensor]:
        """Run the session on one batch.

        Raises:
            InternalError: onnxruntime failed on this batch.
        """
        session = self._session
        if session is None:
            raise InternalError(f"an instance of model '{self._model_name}' is closed")
        feed = self._encode(inputs) if self._detours else inputs
        try:
            if self._bf16_outputs.isdisjoint(output_names):
                arrays = session.run(output_names, feed, self._run_options)
            else:
                arrays = self._run_with_values(session, feed, output_names)
        except ORT_FAILURES as error:
            raise to_internal_error(error) from error
        return [
            self._make_tensor(name, array) for name, array in zip(output_names, arrays, strict=True)
        ]

    def close(self) -> None:
        """Free the session, its threads and its memory."""
        self._session = None

    def _encode(self, inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
        feed: dict[str, Any] = {}
        for name, given in inputs.items():
            datatype = self._detours.get(name)
            array = given.reshape(()) if name in self._scalars and given.size == 1 else given
            if datatype is datatypes.BYTES:
                feed[name] = _convert(array, to_text)
            elif datatype is datatypes.BF16:
                feed[name] = _make_bf16_value(array, _ONNX_BFLOAT16)
            else:
                feed[name] = array
        return feed

    def _run_with_values(
        self, session: Session, feed: Mapping[str, Any], output_names: Sequence[str]
    ) -> list[npt.NDArray[Any]]:
        values = session.run_with_ort_values(
            output_names,
            {
                name: _make_value(value) if isinstance(value, np.ndarray) else value
                for name, value in feed.items()
            },
            self._run_options,
        )
        return [
            borrow_array(value.data_ptr(), value.shape(), np.uint16, value)
            if name in self._bf16_outputs
            else value.numpy()
            for name, value in zip(output_names, values, strict=True)
        ]

    def _make_tensor(self, name: str, array: npt.NDArray[Any]) -> Tensor:
        datatype = self._outputs[name]
        if datatype is datatypes.BYTES:
            array = _convert(array, to_bytes)
        if not array.ndim and name in self._scalars:
            array = array.reshape(1)
        return Tensor(name, datatype, array.shape, array)


def _convert(
    array: npt.NDArray[Any], convert: Callable[[Any], bytes | str]
) -> npt.NDArray[np.object_]:
    converted = np.empty(array.size, np.object_)
    converted[:] = [convert(element) for element in array.ravel()]
    return converted.reshape(array.shape)
