"""The form in which responses lie in Redis."""

import numpy as np
import pytest
from tests.support.requests import tensor

from naiad.engine.redis_cache import decode_response, encode_response
from naiad.engine.response_cache import CachedResponse
from naiad.errors import NaiadError

KEY = bytes(range(32))


def test_a_response_comes_back_as_it_was() -> None:
    texts = np.array([[b"a", b""], [b"\0", "ü".encode()]], np.object_)
    response = CachedResponse(
        [
            tensor("F", np.array([[1.5, -2]], np.float32)),
            tensor("B", np.array([True, False])),
            tensor("T", texts),
            tensor("E", np.empty((0, 3), np.int64)),
            tensor("S", np.array(7, np.int8)),
        ],
        {"sequence_id": 3, "note": "x", "is": True, "part": 0.5},
    )
    found = decode_response(KEY, encode_response(KEY, response))
    assert found.parameters == response.parameters
    for got, put in zip(found.outputs, response.outputs, strict=True):
        assert (got.name, got.datatype, tuple(got.shape)) == (put.name, put.datatype, put.shape)
        assert got.data.dtype == put.data.dtype
        assert got.data.tolist() == put.data.tolist()
        assert not got.data.flags.writeable


@pytest.mark.parametrize("cut", [0, 2, 20, -1])
def test_what_is_cut_off_is_no_response(cut: int) -> None:
    data = encode_response(KEY, CachedResponse([tensor("F", np.ones(4, np.float32))], None))
    with pytest.raises((NaiadError, ValueError, KeyError, TypeError)):
        decode_response(KEY, data[:cut])


def test_the_response_of_another_request_is_none_of_this_one() -> None:
    data = encode_response(KEY, CachedResponse([tensor("F", np.ones(4, np.float32))], None))
    with pytest.raises(ValueError, match="another request"):
        decode_response(bytes(32), data)
