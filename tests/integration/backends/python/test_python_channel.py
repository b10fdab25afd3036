"""Frames that may not wait, and batches on either side of what goes without a thread."""

import socket
from pathlib import Path

import numpy as np
import pytest
from tests.support.python_models import ECHO, Asked, ask, floats, serving, texts, write_model
from tests.support.requests import tensor

from naiad.backends.python.stub.naiad_stub import wire
from naiad.backends.python.stub.naiad_stub.channel import Channel, ChannelClosedError
from naiad.inference.tensor import Tensor

pytestmark = pytest.mark.slow

PAYLOAD = b"x" * 20_000
NOTED = """
import json

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", np.array([len(json.loads(r.parameters())["note"])], "f4"))]
            )
            for r in requests
        ]
"""


def test_a_frame_that_may_not_wait_is_sent_whole_or_not_at_all() -> None:
    ends = socket.socketpair()
    ours, theirs = (Channel(end, -1, -1, 0) for end in ends)
    count = 0
    while ours.try_send(wire.EXECUTE, count, PAYLOAD):
        count += 1
    assert count > 1
    for key in range(count):
        assert theirs.receive() == (wire.EXECUTE, 0, key, bytearray(PAYLOAD))
    assert ours.try_send(wire.EXECUTE, count, PAYLOAD)
    assert theirs.receive().key == count
    theirs.close()
    assert not ours.try_send(wire.EXECUTE, count, PAYLOAD)
    with pytest.raises(ChannelClosedError):
        ours.send(wire.EXECUTE, count, PAYLOAD)
    ours.close()
    assert not ours.try_send(wire.EXECUTE, count, PAYLOAD)


@pytest.mark.parametrize(
    ("given", "datatype"),
    [
        (floats(1.0), "TYPE_FP32"),
        (floats(*range(wire.INLINE_BYTES // 4)), "TYPE_FP32"),
        (floats(*range(wire.INLINE_BYTES // 4 + 1)), "TYPE_FP32"),
        (texts("a", ""), "TYPE_STRING"),
        (texts("a" * (wire.INLINE_BYTES + 1)), "TYPE_STRING"),
        (texts(*"abcdefghijklmnopq"), "TYPE_STRING"),
        (tensor("IN", np.zeros(0, np.float32)), "TYPE_FP32"),
    ],
)
async def test_inputs_of_any_size_arrive(tmp_path: Path, given: Tensor, datatype: str) -> None:
    write_model(tmp_path, "m", ECHO, datatype=datatype)
    async with serving(tmp_path) as engine:
        for _ in range(2):
            response = await ask(engine, "m", given)
            assert response.error is None, response.error
            np.testing.assert_array_equal(response.outputs[0].data, given.data)


async def test_a_frame_that_turns_out_large_goes_by_the_thread(tmp_path: Path) -> None:
    write_model(tmp_path, "m", NOTED)
    async with serving(tmp_path) as engine:
        for length in (10, 100_000, 10):
            asked = Asked(engine, "m", floats(1.0))
            asked.request.parameters = {"note": "n" * length}
            (response,) = await asked.send().all()
            assert response.error is None, response.error
            assert response.outputs[0].data.tolist() == [length]
        assert engine.find("m").statistics.pending_count == 0
