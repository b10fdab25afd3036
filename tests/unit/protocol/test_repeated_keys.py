"""Of a key that an object has twice the first counts, as in Triton."""

import numpy as np
import pytest
from tests.unit.protocol.test_v2_json import decode_raw

from naiad.protocol.json_text import find_repeated_keys

ENTRY = b'{"name":"IN","datatype":"FP32","shape":[1,1],"data":[%d]}'


@pytest.mark.parametrize(
    "text",
    [
        b'{"inputs":[%b],"inputs":[%b]}' % (ENTRY % 1, ENTRY % 2),
        b'{"inputs":[{"data":[1],%b]}' % (ENTRY % 2)[1:],
        b'{"inputs":[{"data":[1],"x":"a:b",%b]}' % (ENTRY % 2)[1:],
        b'{"inputs":[{"data":[1] ,\n%b], "x": {"y": 1}}' % (ENTRY % 2)[1:],
        b'{"inputs":[{"data":[1],%b],"parameters":{"nan":NaN}}' % (ENTRY % 2)[1:],
    ],
)
def test_the_first_counts(text: bytes) -> None:
    request, _ = decode_raw(text)
    np.testing.assert_array_equal(request.inputs["IN"].data, [[1]])


def test_of_parameters_too() -> None:
    request, _ = decode_raw(b'{"parameters":{"p":1,"p":2},"inputs":[%b]}' % (ENTRY % 1))
    assert request.parameters == {"p": 1}


@pytest.mark.parametrize("text", [b"{}", b'{"a":":::","b":{"a":1}}', b'[{"a":1},{"a":1}]'])
def test_nothing_is_repeated(text: bytes) -> None:
    assert find_repeated_keys(text) is None


def test_nested() -> None:
    assert find_repeated_keys(b'[{"a":{"b":1,"b":2}}]') == [{"a": {"b": 1}}]
