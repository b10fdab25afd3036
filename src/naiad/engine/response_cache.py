"""Answers kept for requests that ask the same again: a table bounded in bytes, and its keys.

Source of what is cached at all: Triton's ``docs/user_guide/response_cache.md``. Its key is model,
version and inputs; ours has the rest of what an answer may depend on too, see `RequestKeys`.
"""

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from naiad.inference.datatypes import BYTES
from naiad.inference.request import InferRequest, ParameterValue
from naiad.inference.statistics import CacheStatistics
from naiad.inference.tensor import SharedTensor, Tensor

# What may be hashed or copied on the event loop: 0.4 ms at the 1.3 GB/s that blake2b does here.
# Beyond, a thread does it; both release the GIL.
INLINE_BYTES: Final = 512 * 1024
# Text is hashed element by element under the GIL, 0.2 us each: beyond this it would hold the loop
# from a thread, too, and is not cached.
MAX_TEXT_ELEMENTS: Final = 8192
# Measured with sys.getsizeof over an entry, a tensor with its array, and one bytes object.
_ENTRY_BYTES: Final = 400
_TENSOR_BYTES: Final = 300
_TEXT_BYTES: Final = 41
_PERSON: Final = b"naiad response"

CacheKey = bytes


class CachedResponse:
    """What is kept of a response; nobody can change it.

    Attributes:
        outputs: read-only copies.
        parameters: of the response.
        size_bytes: what it takes of the cache.
    """

    __slots__ = ("outputs", "parameters", "size_bytes")

    def __init__(
        self, outputs: Sequence[Tensor], parameters: Mapping[str, ParameterValue] | None
    ) -> None:
        self.outputs = tuple(_keep(tensor) for tensor in outputs)
        self.parameters = dict(parameters) if parameters else None
        self.size_bytes = entry_bytes(outputs)


class ResponseStore(Protocol):
    """What keeps responses; shared by all models."""

    statistics: CacheStatistics
    is_remote: bool

    def generation(self, fingerprint: str) -> int | str:
        """What tells one load of a model version from another."""
        ...

    def takes(self, size_bytes: int) -> bool:
        """Whether a response of this size has room at all."""
        ...

    def find(self, key: CacheKey) -> "CachedResponse | None":
        """The response kept under ``key``."""
        ...

    def insert(self, key: CacheKey, response: "CachedResponse") -> None:
        """Keep a response."""
        ...


class ResponseCache:
    """The responses asked for most recently, up to a number of bytes; belongs to the event loop.

    Args:
        capacity_bytes: of all responses together.

    Attributes:
        statistics: of all models together.
        is_remote: a find takes no time worth a thread.
    """

    is_remote = False

    def __init__(self, capacity_bytes: int) -> None:
        self.statistics = CacheStatistics(capacity_bytes)
        self._entries: OrderedDict[CacheKey, CachedResponse] = OrderedDict()
        self._generation = 0

    def generation(self, fingerprint: str) -> int:
        """A number that no other model version, and no other load of this one, has.

        Args:
            fingerprint: of the model's files; answers are dropped by a load in any case.
        """
        self._generation += 1
        return self._generation

    def find(self, key: CacheKey) -> CachedResponse | None:
        """The response kept under ``key``, which is now the last to be dropped."""
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key)
        return found

    def takes(self, size_bytes: int) -> bool:
        """Whether a response of this size has room at all."""
        return size_bytes <= self.statistics.capacity_bytes

    def insert(self, key: CacheKey, response: CachedResponse) -> None:
        """Keep a response, in place of those that nobody asked for longest; not one too large."""
        if not self.takes(response.size_bytes):
            return
        statistics = self.statistics
        previous = self._entries.pop(key, None)
        if previous is not None:
            statistics.used_bytes -= previous.size_bytes
        self._entries[key] = response
        statistics.used_bytes += response.size_bytes
        while statistics.used_bytes > statistics.capacity_bytes:
            _, dropped = self._entries.popitem(last=False)
            statistics.used_bytes -= dropped.size_bytes
            statistics.eviction_count += 1
        statistics.entry_count = len(self._entries)


class RequestKeys:
    """Keys of the requests of one model version, as it was loaded.

    Equal keys mean that model, load, inputs (name, datatype, shape, value; in any order), outputs,
    parameters and correlation id are equal. The id of a request, its priority and its timeout
    don't change an answer, and aren't in it.

    Args:
        name: of the model.
        version: of it.
        generation: from `ResponseStore.generation`; what was reloaded may answer otherwise.
        output_names: what a request gets that names none.

    Attributes:
        version: the same.
    """

    def __init__(
        self, name: str, version: int, generation: int | str, output_names: Iterable[str]
    ) -> None:
        self.version = version
        self._head = repr((name, version, generation)).encode()
        self._output_names = sorted(output_names)

    def make(self, request: InferRequest, inputs: Mapping[str, Tensor]) -> CacheKey:
        """The key of a validated request; reads all values, and may run in a thread.

        Args:
            request: all but its inputs.
            inputs: from `own_inputs`, so that no client changes them meanwhile.
        """
        digest = hashlib.blake2b(self._head, digest_size=32, person=_PERSON)
        names = request.output_names
        parameters = request.parameters
        digest.update(
            repr(
                (
                    self._output_names if names is None else sorted(set(names)),
                    sorted(parameters.items()) if parameters else (),
                    request.correlation_id,
                    request.sequence_start,
                    request.sequence_end,
                )
            ).encode()
        )
        for name in sorted(inputs):
            tensor = inputs[name]
            head = repr((name, tensor.datatype.name, tuple(tensor.shape))).encode()
            digest.update(struct.pack("<q", len(head)) + head)
            if tensor.datatype is BYTES:
                _hash_text(digest, tensor)
            else:
                digest.update(tensor.data.data)
        return digest.digest()


def is_cacheable(tensors: Iterable[Tensor]) -> bool:
    """Whether tensors can be hashed or copied without holding the loop."""
    return all(t.datatype is not BYTES or t.data.size <= MAX_TEXT_ELEMENTS for t in tensors)


def value_bytes(tensors: Iterable[Tensor]) -> int:
    """What the elements take."""
    return sum(_value_bytes(tensor) for tensor in tensors)


def entry_bytes(outputs: Sequence[Tensor]) -> int:
    """What outputs would take of the cache, with the objects that hold them."""
    return _ENTRY_BYTES + value_bytes(outputs) + _TENSOR_BYTES * len(outputs)


def own_inputs(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Inputs with copies of those that their client shares.

    It may write to them at any time, and what was hashed must be what runs.
    """
    return {
        name: Tensor(name, tensor.datatype, tensor.shape, tensor.data.copy())
        if isinstance(tensor, SharedTensor)
        else tensor
        for name, tensor in inputs.items()
    }


def _value_bytes(tensor: Tensor) -> int:
    if tensor.datatype is not BYTES:
        return tensor.data.nbytes
    return sum(map(len, tensor.data.ravel())) + _TEXT_BYTES * tensor.data.size


def _hash_text(digest: "hashlib.blake2b", tensor: Tensor) -> None:
    elements = tensor.data.ravel().tolist()
    lengths = np.fromiter(map(len, elements), np.int64, len(elements))
    digest.update(lengths.data)
    if int(lengths.sum()) <= INLINE_BYTES:
        digest.update(b"".join(elements))
        return
    for element in elements:
        digest.update(element)


def _keep(tensor: Tensor) -> Tensor:
    # Outputs are views of their batch and some backends use their memory again.
    data: Any = tensor.data.copy()
    data.flags.writeable = False
    return Tensor(tensor.name, tensor.datatype, tuple(tensor.shape), data)
