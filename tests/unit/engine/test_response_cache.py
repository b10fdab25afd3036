from collections.abc import Callable

import numpy as np
import pytest
from tests.support.requests import make_request, tensor

from naiad.engine.response_cache import (
    MAX_TEXT_ELEMENTS,
    CachedResponse,
    RequestKeys,
    ResponseCache,
    entry_bytes,
    is_cacheable,
    own_inputs,
)
from naiad.inference.datatypes import BYTES, FP32, INT32
from naiad.inference.request import InferRequest
from naiad.inference.tensor import SharedTensor, Tensor

KEYS = RequestKeys("m", 1, 1, ["OUT", "MORE"])


def floats(name: str, *values: float) -> Tensor:
    return tensor(name, np.array(values, np.float32))


def texts(name: str, *values: bytes) -> Tensor:
    return tensor(name, np.array(values, np.object_))


def response(size: int) -> CachedResponse:
    return CachedResponse([tensor("OUT", np.zeros(size, np.uint8))], None)


def key_of(request: InferRequest, keys: RequestKeys = KEYS) -> bytes:
    return keys.make(request, request.inputs)


def test_the_least_recently_asked_goes_first() -> None:
    size = response(1000).size_bytes
    cache = ResponseCache(3 * size)
    for key in (b"a", b"b", b"c"):
        cache.insert(key, response(1000))
    assert cache.find(b"a") is not None
    cache.insert(b"d", response(1000))
    assert [cache.find(key) is not None for key in (b"a", b"b", b"c", b"d")] == [
        True,
        False,
        True,
        True,
    ]
    statistics = cache.statistics
    assert (statistics.entry_count, statistics.used_bytes) == (3, 3 * size)
    assert statistics.eviction_count == 1


def test_lookups_are_counted_with_their_time() -> None:
    statistics = ResponseCache(1).statistics
    for ns, is_hit in ((5, True), (7, False), (9, True)):
        statistics.add_lookup(ns, is_hit=is_hit)
    assert (statistics.hit_count, statistics.miss_count, statistics.lookup_ns) == (2, 1, 21)


def test_one_large_response_takes_the_place_of_several() -> None:
    cache = ResponseCache(4 * response(1000).size_bytes)
    for key in (b"a", b"b", b"c", b"d"):
        cache.insert(key, response(1000))
    cache.insert(b"large", response(4000))
    assert cache.find(b"large") is not None
    assert cache.find(b"d") is not None
    assert cache.statistics.entry_count == 2
    assert cache.statistics.used_bytes <= cache.statistics.capacity_bytes


def test_what_has_no_room_at_all_drops_nothing() -> None:
    cache = ResponseCache(response(1000).size_bytes)
    cache.insert(b"a", response(1000))
    cache.insert(b"b", response(1001))
    assert cache.find(b"a") is not None
    assert cache.find(b"b") is None
    assert not cache.takes(response(1001).size_bytes)


def test_a_response_replaces_the_one_under_its_key() -> None:
    cache = ResponseCache(10_000)
    cache.insert(b"a", response(10))
    cache.insert(b"a", response(20))
    assert cache.statistics.entry_count == 1
    assert cache.statistics.used_bytes == response(20).size_bytes


def test_kept_outputs_are_copies_that_nobody_can_change() -> None:
    data = np.array([1, 2], np.float32)
    kept = CachedResponse([Tensor("OUT", FP32, [2], data)], {"a": 1})
    data[0] = 9
    assert kept.outputs[0].data.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        kept.outputs[0].data[0] = 5


def test_the_size_counts_text_and_what_holds_it() -> None:
    assert entry_bytes([texts("T", b"x" * 1000)]) > entry_bytes([texts("T", b"")]) + 999
    assert entry_bytes([floats("F")]) > 300


def test_equal_requests_have_equal_keys() -> None:
    first = make_request(floats("A", 1), texts("B", b"x", b"yz"), request_id="1")
    second = make_request(texts("B", b"x", b"yz"), floats("A", 1), request_id="2")
    second.priority, second.timeout_us = 3, 50
    assert key_of(first) == key_of(second)


def test_naming_all_outputs_is_naming_none() -> None:
    all_named = make_request(floats("A", 1), output_names=["OUT", "MORE"])
    assert key_of(all_named) == key_of(make_request(floats("A", 1)))


def with_parameter(request: InferRequest) -> InferRequest:
    request.parameters = {"temperature": 1}
    return request


def with_correlation(request: InferRequest) -> InferRequest:
    request.correlation_id = "1"
    return request


@pytest.mark.parametrize(
    "make",
    [
        lambda: make_request(floats("A", 2, 2)),
        lambda: make_request(floats("B", 1, 2)),
        lambda: make_request(floats("A", 1, 2, 0)),
        lambda: make_request(tensor("A", np.array([[1, 2]], np.float32))),
        lambda: make_request(Tensor("A", INT32, [2], np.array([1, 2], "<f4").view("<i4"))),
        lambda: make_request(floats("A", 1, 2), output_names=["OUT"]),
        lambda: make_request(floats("A", 1, 2), floats("B", 1)),
        lambda: with_parameter(make_request(floats("A", 1, 2))),
        lambda: with_correlation(make_request(floats("A", 1, 2))),
    ],
)
def test_what_an_answer_may_depend_on_changes_the_key(make: Callable[[], InferRequest]) -> None:
    assert key_of(make()) != key_of(make_request(floats("A", 1, 2)))


def test_texts_are_told_apart_where_they_end() -> None:
    assert key_of(make_request(texts("A", b"ab", b"c"))) != key_of(
        make_request(texts("A", b"a", b"bc"))
    )
    large = 600_000
    assert key_of(make_request(texts("A", b"a" * large, b"b"))) != key_of(
        make_request(texts("A", b"a" * (large - 1), b"ab"))
    )


@pytest.mark.parametrize(("name", "version", "generation"), [("n", 1, 1), ("m", 2, 1), ("m", 1, 2)])
def test_another_model_version_or_load_has_other_keys(
    name: str, version: int, generation: int
) -> None:
    request = make_request(floats("A", 1))
    other = RequestKeys(name, version, generation, ["OUT", "MORE"])
    assert key_of(request, other) != key_of(request)


def test_too_many_texts_are_not_cached() -> None:
    assert is_cacheable([Tensor("T", BYTES, [1], np.full(MAX_TEXT_ELEMENTS, b"", np.object_))])
    assert not is_cacheable(
        [Tensor("T", BYTES, [1], np.full(MAX_TEXT_ELEMENTS + 1, b"", np.object_))]
    )
    assert is_cacheable([floats("A", *range(MAX_TEXT_ELEMENTS + 1))])


def test_shared_inputs_are_copied_and_others_are_not() -> None:
    data = np.array([1], np.float32)
    inputs: dict[str, Tensor] = {
        "S": SharedTensor("S", FP32, [1], data),
        "A": Tensor("A", FP32, [1], data),
    }
    owned = own_inputs(inputs)
    data[0] = 2
    assert owned["S"].data[0] == 1
    assert owned["A"] is inputs["A"]
    assert type(owned["S"]) is Tensor
