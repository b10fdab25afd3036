from collections.abc import Generator

import numpy as np
import pytest

from naiad.inference.datatypes import BOOL, BYTES, FP16, FP32, FP64
from naiad.protocol.binary_data import (
    CutOffLengthError,
    MalformedElementsError,
    decode_elements,
    decode_elements_in_steps,
    encode_elements,
    encode_tensor,
    view_tensor,
)


def test_elements_survive_the_round_trip() -> None:
    elements = [b"", b"a\0", b"\xff\xfe", b"x" * 300]
    array = np.empty(4, np.object_)
    array[:] = elements
    assert decode_elements(encode_elements(array.reshape(2, 2)), "IN") == elements


def test_an_empty_element_is_four_zero_bytes() -> None:
    assert decode_elements(b"\0\0\0\0", "IN") == [b""]


def test_cut_lengths_and_elements_are_refused_in_triton_s_words() -> None:
    with pytest.raises(CutOffLengthError) as cut_off:
        decode_elements(b"\1\0\0\0a\2\0", "IN")
    assert cut_off.value.message == (
        "incomplete string length indicator for inference input 'IN', expecting 4 bytes but only 2 "
        "bytes available"
    )
    assert cut_off.value.of_request("m", "").message == (
        "[request id: <id_unknown>] incomplete string length indicator for inference input 'IN' "
        "for model 'm', expecting 4 bytes but only 2 bytes available. Please make sure the string "
        "length indicator is in one buffer."
    )
    with pytest.raises(MalformedElementsError) as caught:
        decode_elements(b"d\0\0\0ab", "IN")
    assert caught.value.message == (
        "incomplete string data for inference input 'IN', expecting string of length 100 but only "
        "2 bytes available"
    )


def finish(steps: Generator[None, None, list[bytes]]) -> list[bytes]:
    """What steps return when all of them are done."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


def test_no_more_elements_are_made_than_needed_to_see_that_there_are_too_many() -> None:
    zeros = bytes(1_000_000)
    assert decode_elements(zeros, "IN", 3) == [b""] * 4
    assert finish(decode_elements_in_steps(zeros, "IN", 3)) == [b""] * 4
    assert finish(decode_elements_in_steps(zeros, "IN", 250_000)) == [b""] * 250_000


def test_a_tensor_is_a_read_only_view_of_its_bytes() -> None:
    data = bytes(64)
    array = view_tensor(FP32, [2, 3], data, 8)
    assert array.shape == (2, 3)
    assert not array.flags.writeable
    assert np.shares_memory(array, np.frombuffer(data, np.uint8))


def test_a_small_tensor_at_an_odd_address_is_copied_to_an_even_one() -> None:
    data = b"x" + np.arange(4, dtype=np.float64).tobytes()
    array = view_tensor(FP64, [4], data, 1)
    assert array.flags.aligned
    assert array.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_large_tensor_is_never_copied() -> None:
    data = memoryview(np.zeros((1 << 21) + 1, np.uint8).data)
    array = view_tensor(FP16, [1 << 20], data, 1)
    assert np.shares_memory(array, np.frombuffer(data, np.uint8))


def test_bool_bytes_other_than_0_and_1_mean_true() -> None:
    array = view_tensor(BOOL, [3], b"\0\2\1", 0)
    assert array.tolist() == [False, True, True]
    assert array.view(np.uint8).tolist() == [0, 1, 1]


def test_a_tensor_is_sent_from_where_it_lies() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    data, size = encode_tensor(FP32, array)
    assert size == 24
    assert np.shares_memory(np.frombuffer(data, np.uint8), array)
    assert bytes(data) == array.tobytes()


def test_tensors_without_elements_have_no_bytes() -> None:
    assert encode_tensor(FP32, np.empty((1, 0), np.float32)) == (b"", 0)
    assert encode_tensor(BYTES, np.empty((0,), np.object_)) == (b"", 0)
