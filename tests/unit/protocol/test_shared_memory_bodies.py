"""Bodies of the shared memory extensions."""

import base64

import orjson
import pytest

from naiad.engine.shared_memory import SystemRegion
from naiad.errors import InvalidArgumentError
from naiad.protocol.shared_memory import (
    CudaRegistration,
    SystemRegistration,
    decode_cuda_registration,
    decode_system_registration,
    encode_region_status,
)

HANDLE = base64.b64encode(bytes(64)).decode()


def test_a_system_registration_is_decoded() -> None:
    body = b'{"key": "/k", "offset": 4096, "byte_size": 64}'
    assert decode_system_registration(body) == SystemRegistration("/k", 4096, 64)


def test_the_offset_may_be_left_out() -> None:
    assert decode_system_registration(b'{"key":"k","byte_size":1}') == SystemRegistration("k", 0, 1)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "failed to parse the request JSON buffer: The document is empty. at 0"),
        (b"x", "failed to parse the request JSON buffer: Invalid value. at 0"),
        (b'{"offset": 0, "byte_size": 64}', "request has no 'key' field"),
        (b'{"key": "/k"}', "request has no 'byte_size' field"),
        (b"[]", "request has no 'key' field"),
        (b'{"key": 5, "byte_size": 64}', "non-string as string: 'key'"),
        (b'{"key": "k", "byte_size": -1}', "non-unsigned-integer as unsigned-integer: 'byte_size'"),
        (b'{"key": "k", "byte_size": 1.0}', "unsigned-integer: 'byte_size'"),
        (b'{"key": "k", "byte_size": true}', "unsigned-integer: 'byte_size'"),
        (b'{"key": "k", "byte_size": 18446744073709551616}', "unsigned-integer: 'byte_size'"),
        (b'{"key": "k", "byte_size": 1, "offset": -1}', "unsigned-integer: 'offset'"),
    ],
)
def test_a_bad_system_registration_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        decode_system_registration(body)
    assert text in caught.value.message


def test_a_cuda_registration_is_decoded() -> None:
    body = orjson.dumps({"raw_handle": {"b64": HANDLE}, "device_id": 1, "byte_size": 64})
    assert decode_cuda_registration(body) == CudaRegistration(bytes(64), 1, 64)


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({}, "attempt to access non-existing object member 'raw_handle'"),
        ({"raw_handle": "x"}, "attempt to access JSON non-object as object: 'raw_handle'"),
        ({"raw_handle": {}}, "attempt to access non-existing object member 'b64'"),
        (
            {"raw_handle": {"b64": HANDLE}, "device_id": 0},
            "attempt to access non-existing object member 'byte_size'",
        ),
        (
            {"raw_handle": {"b64": "!!"}, "device_id": 0, "byte_size": 64},
            "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t",
        ),
        (
            {"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 64},
            "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t",
        ),
    ],
)
def test_a_bad_cuda_registration_is_refused(document: object, text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        decode_cuda_registration(orjson.dumps(document))
    assert caught.value.message == text


def test_the_status_lists_regions() -> None:
    assert encode_region_status([]) == b"[]"
    assert encode_region_status([SystemRegion("b", "/k", 4096, 64)]) == (
        b'[{"name":"b","key":"/k","offset":4096,"byte_size":64}]'
    )
