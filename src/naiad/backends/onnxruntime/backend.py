"""Models in ONNX files, run by onnxruntime."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import onnxruntime

from naiad.backends.base import ModelSource
from naiad.backends.borrowed import borrow_array
from naiad.backends.cores import kept_to
from naiad.backends.model_file import find_model_file
from naiad.backends.onnxruntime.failure import ORT_FAILURES, to_internal_error
from naiad.backends.onnxruntime.global_threads import GlobalThreads
from naiad.backends.onnxruntime.options import (
    make_inspection_options,
    make_run_options,
    make_session_options,
    read_default_max_batch_size,
    shares_session,
)
from naiad.backends.onnxruntime.providers import check_providers, find_gpu, select_providers
from naiad.backends.onnxruntime.session import open_session, read_signature
from naiad.backends.onnxruntime.text import to_bytes, to_text
from naiad.backends.output_shapes import OutputShapes
from naiad.errors import InternalError
from naiad.inference import datatypes
from naiad.inference.tensor import Tensor
from naiad.model_config.complete import check_against_artifact, complete_config
from naiad.model_config.signature import ModelSignature

_DEFAULT_FILE: Final = "model.onnx"
_ONNX_BFLOAT16: Final = 16  # TensorProto.DataType of onnx.proto
_DETOUR_DATATYPES: Final = (datatypes.BYTES, datatypes.BF16)

Session: TypeAlias = onnxruntime.InferenceSession
# The GPU, and the cores of the host policy.
_Place: TypeAlias = tuple[int | None, frozenset[int] | None]
_make_value = onnxruntime.OrtValue.ortvalue_from_numpy
_make_bf16_value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type


class OnnxRuntimeBackend:
    """Loads ONNX files."""

    def __init__(self) -> None:
        self._global_threads = GlobalThreads()

    def complete_config(self, source: ModelSource) -> None:
        """Fill the tensors, the batch size and the batcher that the config leaves open.

        Raises:
            NaiadError: the file can't be read, or the config can't fit it.
        """
        if source.config.input and source.config.output:
            return
        path = find_model_file(source, _DEFAULT_FILE)
        shares_threads = self._global_threads.is_asked_for(source)
        session = open_session(path, make_inspection_options(source, shares_threads=shares_threads))
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
        opener = _SessionOpener(source, shares_threads=self._global_threads.is_asked_for(source))
        session = opener.open(0)
        artifact = read_signature(source.name, session)
        check_against_artifact(source.config, artifact)
        scalars = {
            tensor.name
            for tensor in (*artifact.inputs, *artifact.overridable_inputs, *artifact.outputs)
            if not tensor.shape
        }
        return OnnxModel(source, opener, session, frozenset(scalars))


class _SessionOpener:
    """Opens the sessions of one model, each where the config puts its instance."""

    def __init__(self, source: ModelSource, *, shares_threads: bool) -> None:
        self._source = source
        self._shares_threads = shares_threads
        self._path = find_model_file(source, _DEFAULT_FILE)

    def regroup(self, source: ModelSource) -> None:
        """Open what this says from now on."""
        self._source = source

    def place(self, index: int) -> _Place:
        """Where instance number ``index`` runs; those of one place can share a session."""
        return find_gpu(self._source.config, index), self._source.cores_of(index)

    def open(self, index: int) -> Session:
        config = self._source.config
        gpu, cores = self.place(index)
        available = onnxruntime.get_available_providers()
        providers = select_providers(config, gpu, available)
        source = self._source.for_instance(index)
        options = make_session_options(source, shares_threads=self._shares_threads)
        # The session of the first instance is opened by the check of the file.
        with kept_to(cores):
            session = open_session(self._path, options, providers)
        check_providers(config.name, providers, session.get_providers())
        return session


class OnnxModel:
    """A file that fits its config, and the sessions that wait for an instance or are shared."""

    def __init__(
        self,
        source: ModelSource,
        opener: _SessionOpener,
        session: Session,
        scalars: frozenset[str],
    ) -> None:
        self._opener = opener
        self._traits = _Traits(source, scalars)
        self._is_shared = shares_session(source)
        # The check of the file opened one where the first instance will be.
        self._sessions: dict[_Place, Session] = {opener.place(0): session}
        self._lock = threading.Lock()

    def create_instance(self, index: int) -> "OnnxInstance":
        """An instance on the session of its place, or with one of its own if the config says so."""
        place = self._opener.place(index)
        with self._lock:
            session = self._sessions.pop(place, None) or self._opener.open(index)
            if self._is_shared:
                self._sessions[place] = session
        return OnnxInstance(session, self._traits)

    def regroup(self, source: ModelSource) -> None:
        """Open sessions where this says from now on; those that are shared stay."""
        self._opener.regroup(source)

    def close(self) -> None:
        """Forget the sessions; those that instances have live as long as they."""
        self._sessions.clear()


class OnnxInstance:
    """One session, or one thread's way to a session that instances share.

    onnxruntime reads a numpy array where it lies and gives new ones, so nothing is copied. Three
    kinds need a detour: text, which it holds as ``str``; BF16, which numpy hasn't got; and
    scalars, which a config can only call vectors of one.
    """

    __slots__ = ("_bf16_outputs", "_detours", "_session", "_traits")

    def __init__(self, session: Session, traits: "_Traits") -> None:
        self._session: Session | None = session
        self._traits = traits
        self._detours = traits.detours
        self._bf16_outputs = traits.bf16_outputs

    def execute(
        self, inputs: Mapping[str, npt.NDArray[Any]], output_names: Sequence[str]
    ) -> Sequence[Tensor]:
        """Run the session on one batch.

        Raises:
            InternalError: onnxruntime failed on this batch.
        """
        session = self._session
        if session is None:
            raise InternalError(f"an instance of model '{self._traits.model_name}' is closed")
        feed = self._encode(inputs) if self._detours else inputs
        try:
            if self._bf16_outputs.isdisjoint(output_names):
                arrays = session.run(output_names, feed, self._traits.run_options)
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
            array = given.reshape(()) if name in self._traits.scalars and given.size == 1 else given
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
            self._traits.run_options,
        )
        return [
            borrow_array(value.data_ptr(), value.shape(), np.uint16, value)
            if name in self._bf16_outputs
            else value.numpy()
            for name, value in zip(output_names, values, strict=True)
        ]

    def _make_tensor(self, name: str, array: npt.NDArray[Any]) -> Tensor:
        traits = self._traits
        datatype = traits.outputs[name]
        if datatype is datatypes.BYTES:
            array = _convert(array, to_bytes)
        if not array.ndim and name in traits.vectors:
            array = array.reshape(traits.vectors[name])
        traits.shapes.check(name, array.shape)
        return Tensor(name, datatype, array.shape, array)


class _Traits:
    """What the instances of a model need to know of it.

    Attributes:
        scalars: tensors that have no dims in the file.
        vectors: the dims of those outputs that the config calls vectors of one, or [1,1],
            without a reshape.
        detours: datatypes of the inputs that do not go to onnxruntime as they are.
    """

    def __init__(self, source: ModelSource, scalars: frozenset[str]) -> None:
        signature = ModelSignature.for_backend(source.config)
        self.model_name = signature.name
        self.run_options = make_run_options(source)
        self.shapes = OutputShapes(signature, source.config)
        self.scalars = scalars
        self.outputs = {spec.name: spec.datatype for spec in signature.outputs.values()}
        self.vectors = {
            spec.name: spec.dims
            for spec in signature.outputs.values()
            if spec.name in scalars and spec.reshape is None
        }
        self.detours = {
            spec.name: spec.datatype
            for spec in signature.inputs.values()
            if spec.datatype in _DETOUR_DATATYPES or spec.name in scalars
        }
        self.bf16_outputs = frozenset(
            name for name, datatype in self.outputs.items() if datatype is datatypes.BF16
        )


def _convert(
    array: npt.NDArray[Any], convert: Callable[[Any], bytes | str]
) -> npt.NDArray[np.object_]:
    converted = np.empty(array.size, np.object_)
    converted[:] = [convert(element) for element in array.ravel()]
    return converted.reshape(array.shape)
