"""Opening an ONNX file and reading what it takes and gives."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import onnxruntime

from naiad.backends.onnxruntime.failure import ORT_FAILURES, to_internal_error
from naiad.backends.onnxruntime.providers import CPU_ONLY, Provider
from naiad.errors import UnsupportedError
from naiad.inference import datatypes
from naiad.inference.datatypes import Datatype
from naiad.model_config.complete import ArtifactSignature, ArtifactTensor

_DATATYPES: Final[Mapping[str, Datatype]] = MappingProxyType(
    {
        "tensor(bool)": datatypes.BOOL,
        "tensor(uint8)": datatypes.UINT8,
        "tensor(uint16)": datatypes.UINT16,
        "tensor(uint32)": datatypes.UINT32,
        "tensor(uint64)": datatypes.UINT64,
        "tensor(int8)": datatypes.INT8,
        "tensor(int16)": datatypes.INT16,
        "tensor(int32)": datatypes.INT32,
        "tensor(int64)": datatypes.INT64,
        "tensor(float16)": datatypes.FP16,
        "tensor(float)": datatypes.FP32,
        "tensor(double)": datatypes.FP64,
        "tensor(string)": datatypes.BYTES,
        "tensor(bfloat16)": datatypes.BF16,
    }
)


def open_session(
    path: Path, options: onnxruntime.SessionOptions, providers: Sequence[Provider] = CPU_ONLY
) -> onnxruntime.InferenceSession:
    """Read and prepare the file; its external data is looked for beside it.

    Raises:
        InternalError: onnxruntime can't read or run it.
    """
    try:
        # Else a provider that fails is reported on stdout, and the model runs on the CPU unseen.
        return onnxruntime.InferenceSession(
            path, options, providers=list(providers), enable_fallback=0
        )
    except ORT_FAILURES as error:
        raise to_internal_error(error) from error


def read_signature(model_name: str, session: onnxruntime.InferenceSession) -> ArtifactSignature:
    """The tensors of the model, with the batch axis where it has one.

    Raises:
        UnsupportedError: it takes or gives something that isn't a tensor of a known datatype.
    """
    inputs = [_describe(model_name, "input", value) for value in session.get_inputs()]
    # An initializer that may be fed instead: what an optional input of the config stands for.
    overridable = [
        _describe(model_name, "input", value)
        for value in session.get_overridable_initializers()
        if value.type in _DATATYPES
    ]
    outputs = [_describe(model_name, "output", value) for value in session.get_outputs()]
    return ArtifactSignature(inputs, outputs, overridable)


def _describe(model_name: str, kind: str, value: Any) -> ArtifactTensor:
    datatype = _DATATYPES.get(value.type)
    if datatype is None:
        raise UnsupportedError(
            f"unable to load model '{model_name}', {kind} '{value.name}' is a {value.type}; only "
            "tensors of the protocol's datatypes can be served. Change the graph to take and "
            "give plain tensors (for a classifier of skl2onnx: the option zipmap=False)"
        )
    # A dynamic dim is a name, or None. No dims may mean an unknown rank too: onnxruntime doesn't
    # tell the two apart, and Triton takes both for scalars.
    shape = tuple(length if isinstance(length, int) else -1 for length in value.shape)
    return ArtifactTensor(value.name, datatype, shape)
