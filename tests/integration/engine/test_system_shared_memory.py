"""Regions over real shared memory objects, as a client in another process would make them."""

import os
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory

import numpy as np
import pytest
from tests.support.requests import tensor

from naiad.engine.shared_memory import SharedMemoryRegions
from naiad.errors import InvalidArgumentError
from naiad.inference.datatypes import BYTES, FP32
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor
from naiad.model_config.signature import ModelSignature, TensorSpec
from naiad.protocol.v2_json import DecodeLimits, decode_infer_request
from naiad.protocol.v2_json_response import InferResponseEncoder

SIGNATURE = ModelSignature(
    "m", 8, [TensorSpec("IN", FP32, (-1,))], [TensorSpec("OUT", FP32, (-1,))]
)


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    memory = SharedMemory(create=True, size=8192)
    yield memory
    memory.close()
    memory.unlink()


@pytest.fixture
def regions(memory: SharedMemory) -> SharedMemoryRegions:
    regions = SharedMemoryRegions(is_client_use_allowed=True)
    regions.register_system("r", f"/{memory.name}", 4096, 64)
    return regions


def limits(regions: SharedMemoryRegions) -> DecodeLimits:
    return DecodeLimits(regions=regions)


def decode(regions: SharedMemoryRegions, body: bytes) -> Tensor:
    request, _ = decode_infer_request(SIGNATURE, body, b"", limits(regions), print, 0)
    return request.inputs["IN"]


def test_a_request_reads_the_memory_of_the_client(
    regions: SharedMemoryRegions, memory: SharedMemory
) -> None:
    assert memory.buf is not None
    memory.buf[4100:4108] = np.array([5, 7], np.float32).tobytes()
    body = (
        b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[1,2],"parameters":'
        b'{"shared_memory_region":"r","shared_memory_offset":4,"shared_memory_byte_size":8}}]}'
    )
    data = decode(regions, body).data
    assert data.tolist() == [[5, 7]]
    memory.buf[4100:4104] = np.array([9], np.float32).tobytes()
    assert data.tolist() == [[9, 7]], "the input is the memory, not a copy"
    regions.unregister_system()
    assert data.tolist() == [[9, 7]]


def test_strings_are_copied_out(regions: SharedMemoryRegions, memory: SharedMemory) -> None:
    assert memory.buf is not None
    memory.buf[4096:4103] = b"\x03\x00\x00\x00abc"
    body = (
        b'{"inputs":[{"name":"IN","datatype":"BYTES","shape":[1,1],"parameters":'
        b'{"shared_memory_region":"r","shared_memory_byte_size":7}}]}'
    )
    tensor_in = decode(regions, body)
    memory.buf[4096:4103] = b"\xff" * 7
    assert tensor_in.datatype is BYTES
    assert tensor_in.data.tolist() == [[b"abc"]]
    with pytest.raises(InvalidArgumentError, match="incomplete string data"):
        decode(regions, body)


def test_a_response_is_written_to_the_memory_of_the_client(
    regions: SharedMemoryRegions, memory: SharedMemory
) -> None:
    body = (
        b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[1,2],"data":[1,2]}],"outputs":'
        b'[{"name":"OUT","parameters":{"shared_memory_region":"r","shared_memory_byte_size":64}}]}'
    )
    _, outputs = decode_infer_request(SIGNATURE, body, b"", limits(regions), print, 0)
    regions.unregister_system("r")
    encoder = InferResponseEncoder("m", 1, {}, has_batch_axis=True)
    result = np.array([[1.5, 2.5]], np.float32)
    text, tail, size = encoder.encode(InferResponse("m", 1, "", [tensor("OUT", result)]), outputs)
    assert text == (
        b'{"model_name":"m","model_version":"1","outputs":[{"name":"OUT","datatype":"FP32",'
        b'"shape":[1,2]}]}'
    )
    assert (list(tail), size) == ([], 0)
    assert memory.buf is not None
    assert bytes(memory.buf[4096:4104]) == result.tobytes()
    assert bytes(memory.buf[:8]) == bytes(8)


def test_no_descriptor_is_lost(memory: SharedMemory) -> None:
    regions = SharedMemoryRegions(is_client_use_allowed=True)

    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = count()
    for _ in range(40):
        regions.register_system("r", memory.name, 0, 64)
        regions.unregister_system("r")
        with pytest.raises(InvalidArgumentError):
            regions.register_system("r", memory.name, 1, 64)
    # Threads of tests before this one may still open and close some of their own.
    assert count() < before + 40
