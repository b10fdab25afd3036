"""Sequences: a Python model sees the controls, and its states are kept for it."""

from pathlib import Path

import numpy as np
import pytest
from tests.support.python_models import Asked, serving, write_model
from tests.support.requests import tensor

from naiad.engine.engine import Engine
from naiad.inference.request import InferRequest

pytestmark = pytest.mark.slow

CONTROLS = """
sequence_batching {
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "ID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
  ]
  state [ { input_name: "SUM" output_name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] } ]
}
"""

# Adds up, in a state that the server keeps.
ADD = """
class TritonPythonModel:
    def execute(self, requests):
        found = []
        for r in requests:
            def get(name):
                return pb_utils.get_input_tensor_by_name(r, name).as_numpy()
            total = (get("IN") + get("SUM")).astype(np.float32)
            answer = np.array([[total[0, 0], get("START")[0, 0], get("ID")[0, 0],
                                r.correlation_id(), r.flags()]], np.float32)
            found.append(pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", answer), pb_utils.Tensor("SUM", total)]))
        return found
"""


async def step(engine: Engine, sequence: int, number: float, flags: int = 0) -> list[float]:
    asked = Asked(engine, "add", tensor("IN", np.array([[number]], np.float32)))
    request: InferRequest = asked.request
    request.correlation_id = sequence
    request.sequence_start = bool(flags & 1)
    request.sequence_end = bool(flags & 2)
    (response,) = await asked.send().all()
    assert response.error is None, response.error
    assert [output.name for output in response.outputs] == ["OUT"]
    return [float(x) for x in response.outputs[0].data[0]]


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 4 }"])
async def test_states_and_controls_reach_a_python_model(tmp_path: Path, strategy: str) -> None:
    extra = CONTROLS.rstrip().removesuffix("}") + strategy + " }\n"
    write_model(tmp_path, "add", ADD, extra=extra, max_batch_size=4)
    async with serving(tmp_path) as engine:
        assert await step(engine, 7, 1, 1) == [1, 1, 7, 7, 1]
        assert await step(engine, 8, 10, 1) == [10, 1, 8, 8, 1]
        assert await step(engine, 7, 2) == [3, 0, 7, 7, 0]
        assert await step(engine, 8, 20, 2) == [30, 0, 8, 8, 2]
        assert await step(engine, 7, 3, 2) == [6, 0, 7, 7, 2]
        assert await step(engine, 7, 5, 1) == [5, 1, 7, 7, 1]
