"""Requests that a model answers before clients reach it, as its ``model_warmup`` says.

Frameworks do work at the first execution of a shape: they allocate, compile, choose kernels. A
warm-up pays for that while the model still loads. Source: Triton, ``backend_model_instance.cc``
(GenerateWarmupData, WarmUp).
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from naiad.engine.validation import validate_request
from naiad.errors import InternalError, InvalidArgumentError
from naiad.inference.datatypes import BF16, BOOL, BY_CONFIG_NUMBER, BYTES, Datatype, round_to_bf16
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor
from naiad.model_config.schema import DataType, ModelConfig, ModelWarmup
from naiad.model_config.signature import ModelSignature
from naiad.repository.paths import resolve_inside

_FOLDER: Final = "warmup"
_LENGTH_BYTES: Final = 4
# A config may come from a client, so what it makes the server allocate has an end.
_MAX_SAMPLE_BYTES: Final = 2 << 30
_MAX_REQUESTS: Final = 65536


@dataclass(frozen=True, slots=True)
class WarmupSample:
    """One entry of ``model_warmup``, with its data.

    Attributes:
        name: of the entry.
        count: how often each instance runs it.
        request_count: requests of one row that are executed together.
        inputs: of each of these requests; with a batch axis of 1 where the model has one.
    """

    name: str
    count: int
    request_count: int
    inputs: Mapping[str, Tensor]

    def make_requests(self) -> "WarmupRequests":
        """The requests of one run; called on the event loop."""
        return WarmupRequests(self)


class WarmupRequests:
    """The requests of one run of a sample, and the wait for their answers.

    Attributes:
        requests: of one row each.
    """

    def __init__(self, sample: WarmupSample) -> None:
        self._sample = sample
        self._errors: list[str] = []
        self._answered = 0
        self._progress = asyncio.Event()
        self.requests = [
            InferRequest("", dict(sample.inputs), None, self._take)
            for _ in range(sample.request_count)
        ]

    async def wait_for(self, count: int) -> None:
        """Return when ``count`` of the requests are answered."""
        while self._answered < count:
            self._progress.clear()
            await self._progress.wait()

    def raise_failures(self) -> None:
        """Say what the model failed on.

        Raises:
            InvalidArgumentError: any request of the run was answered by an error.
        """
        if self._errors:
            texts = "".join(f"{text}; " for text in self._errors)
            raise InvalidArgumentError(
                f"failed to run warmup sample '{self._sample.name}': {texts}"
            )

    def _take(self, response: InferResponse) -> None:
        if response.error is not None:
            self._errors.append(response.error.message)
        if response.is_final:
            self._answered += 1
            self._progress.set()


def make_samples(
    config: ModelConfig, signature: ModelSignature, model_folder: Path
) -> list[WarmupSample]:
    """The warm-up of a model, with its files read. Blocks.

    Args:
        config: complete.
        signature: of the config.
        model_folder: whose folder ``warmup`` has the files that samples name.

    Raises:
        InvalidArgumentError: a sample that no request could be, or larger than a warm-up may be.
        InternalError: a file can't be read.
    """
    samples = []
    for setting in config.model_warmup:
        if not setting.batch_size:  # Triton passes over these without a word.
            continue
        inputs = {
            name: _make_tensor(name, entry, signature, model_folder)
            for name, entry in setting.inputs.items()
        }
        _check_size(setting, inputs)
        sample = WarmupSample(setting.name, max(setting.count, 1), setting.batch_size, inputs)
        _check_request(sample, signature)
        samples.append(sample)
    return samples


def _check_size(setting: ModelWarmup, inputs: Mapping[str, Tensor]) -> None:
    row_bytes = sum(tensor.data.nbytes for tensor in inputs.values())
    if setting.batch_size > _MAX_REQUESTS or setting.batch_size * row_bytes > _MAX_SAMPLE_BYTES:
        raise InvalidArgumentError(
            f"warmup sample '{setting.name}' has a batch of {setting.batch_size} requests of "
            f"{row_bytes} bytes; at most {_MAX_REQUESTS} requests and {_MAX_SAMPLE_BYTES} bytes "
            "are taken"
        )


def _check_request(sample: WarmupSample, signature: ModelSignature) -> None:
    """Hold what a client could have sent against the model; the rest the scheduler would add."""
    given = {name: t for name, t in sample.inputs.items() if name in signature.inputs}
    validate_request(signature, InferRequest("", given, None, lambda _response: None))


def _make_tensor(
    name: str, entry: ModelWarmup.Input, signature: ModelSignature, model_folder: Path
) -> Tensor:
    dims = tuple(entry.dims)
    datatype = BY_CONFIG_NUMBER.get(entry.data_type)
    if datatype is None:
        raise InvalidArgumentError(
            f"warmup setting expects a data type for input '{name}', got "
            f"{DataType.Name(entry.data_type)}"
        )
    if any(dim < 0 for dim in dims):
        raise InvalidArgumentError(
            f"warmup setting expects all variable-size dimensions are specified for input '{name}'"
        )
    # An element of BYTES is at least the pointer that numpy keeps for it.
    byte_size = prod(dims) * max(datatype.byte_size, datatype.dtype.itemsize)
    if byte_size > _MAX_SAMPLE_BYTES:
        raise InvalidArgumentError(
            f"warmup setting expects {byte_size} bytes for input '{name}', more than "
            f"{_MAX_SAMPLE_BYTES}"
        )
    shape = (1, *dims) if signature.max_batch_size else dims
    data = _make_data(name, entry, datatype, model_folder).reshape(shape)
    data.flags.writeable = False
    return Tensor(name, datatype, shape, data)


def _make_data(
    name: str, entry: ModelWarmup.Input, datatype: Datatype, model_folder: Path
) -> npt.NDArray[Any]:
    kind = entry.WhichOneof("input_data_type")
    count = prod(entry.dims)
    if kind == "input_data_file":
        return _read_data(entry.input_data_file, datatype, count, model_folder)
    if kind is None:
        raise InvalidArgumentError(
            f"[request id: <id_unknown>] warmup setting expects input '{name}' to have "
            "input_data_type set"
        )
    if datatype is BYTES:
        # Triton, too, takes empty texts for random ones.
        return np.full(count, b"", np.object_)
    if kind == "zero_data":
        return np.zeros(count, datatype.dtype)
    return _random_data(datatype, count)


def _random_data(datatype: Datatype, count: int) -> npt.NDArray[Any]:
    """Numbers in [0, 1), and for whole numbers 0 or 1, which are legal indices of most tables.

    Triton takes random bytes, among them NaNs and indices that no table has.
    """
    generator = np.random.default_rng()
    if datatype is BF16:
        return round_to_bf16(generator.random(count, np.float32))
    if datatype.dtype.kind == "f":
        return generator.random(count).astype(datatype.dtype)
    return generator.integers(0, 2, count).astype(datatype.dtype)


def _read_data(file: str, datatype: Datatype, count: int, model_folder: Path) -> npt.NDArray[Any]:
    path = resolve_inside(model_folder / _FOLDER, file)
    try:
        size = path.stat().st_size
        if size > _MAX_SAMPLE_BYTES:
            raise InvalidArgumentError(
                f"warmup data {file} has {size} bytes, more than {_MAX_SAMPLE_BYTES}"
            )
        content = path.read_bytes()
    except OSError as error:
        raise InternalError(
            f"failed to open text file for read {path}: {error.strerror}"
        ) from error
    if datatype is BYTES:
        return _split_texts(content, count, file)
    wanted = count * datatype.byte_size
    if len(content) < wanted:
        raise InvalidArgumentError(
            f"[request id: <id_unknown>] warmup setting expects {wanted} bytes, but the data "
            f"provided from {file} only has {len(content)} bytes"
        )
    if datatype is BOOL:
        return np.not_equal(np.frombuffer(content, np.uint8, count), 0)
    return np.frombuffer(content, datatype.dtype, count).copy()


def _split_texts(content: bytes, count: int, file: str) -> npt.NDArray[np.object_]:
    """Elements that each begin with their length, 4 bytes, little-endian."""
    texts: list[bytes] = []
    position = 0
    while position < len(content) and len(texts) < count:
        start = position + _LENGTH_BYTES
        position = start + int.from_bytes(content[position:start], "little")
        if start > len(content) or position > len(content):
            break
        texts.append(content[start:position])
    if len(texts) != count or position != len(content):
        raise InvalidArgumentError(
            f"warmup setting expects {count} string elements, each after its length in 4 bytes, "
            f"but the data provided from {file} is no such list"
        )
    data = np.empty(count, np.object_)
    data[:] = texts
    return data
