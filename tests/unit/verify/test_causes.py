from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
from tests.support.fake_clock import FakeClock

from naiad.inference.comparison import Array, Outputs
from naiad.repository.golden import GoldenCase
from naiad.verify.causes import Suspicion, find_causes
from naiad.verify.explanation import Cause
from naiad.verify.hops import HopFailedError
from naiad.verify.judge import Judge

INPUTS = {
    "a": np.array([[1.0], [2.0]], dtype=np.float32),
    "b": np.array([[5.0], [8.0]], dtype=np.float32),
}


class CallableHop:
    """A hop that is a plain function."""

    def __init__(self, name: str, answer: Callable[[GoldenCase], Outputs]) -> None:
        self.name = name
        self.run = answer

    def refusal(self) -> str:
        return ""


def case(outputs: Outputs, batch: int = 2) -> GoldenCase:
    return GoldenCase("case", batch, "made up", INPUTS, outputs)


def hop(answer: Callable[[Array, Array], Array], name: str = "exported file alone") -> CallableHop:
    return CallableHop(name, lambda c: {"y": answer(c.inputs["a"], c.inputs["b"])})


def suspect(culprit: CallableHop, outputs: Outputs, base: CallableHop | None = None) -> list[str]:
    judge = Judge({"y": "FP32", "z": "FP32"}, {})
    suspicion = Suspicion(culprit, [case(outputs)], judge, FakeClock(), base=base)
    return [found.sentence for found in find_causes(suspicion)]


def test_swapped_inputs_are_shown_by_swapping_them_back() -> None:
    golden = {"y": INPUTS["a"] - 2 * INPUTS["b"]}
    causes = suspect(hop(lambda a, b: b - 2 * a), golden)
    assert causes == [
        "inputs are swapped: with 'b' in the place of 'a', 'a' in the place of 'b' the difference "
        "at 'exported file alone' is gone"
    ]


def test_swapped_outputs_are_shown_by_swapping_them_back() -> None:
    golden = {"y": INPUTS["a"], "z": 2 * INPUTS["b"]}
    culprit = CallableHop("served", lambda c: {"y": 2 * c.inputs["b"], "z": c.inputs["a"]})
    assert any(cause.startswith("outputs are swapped") for cause in suspect(culprit, golden))


def _answers_once_each() -> Iterator[int]:
    return count(1)


def test_an_answer_that_changes_each_time_holds_a_random_operation() -> None:
    numbers = _answers_once_each()
    (cause,) = suspect(hop(lambda a, _b: a + next(numbers)), {"y": INPUTS["a"]})
    assert "random operation" in cause


def test_rows_that_influence_each_other_are_right_one_by_one() -> None:
    golden = {"y": INPUTS["a"]}
    (cause,) = suspect(hop(lambda a, _b: np.broadcast_to(a[:1], a.shape)), golden)
    assert cause.startswith("the batch is the cause")


def test_what_no_experiment_shows_is_unexplained_with_its_numbers() -> None:
    (cause,) = suspect(hop(lambda a, _b: a * 2), {"y": INPUTS["a"]})
    assert cause.startswith("unexplained: 'exported file alone', output 'y', batch 2: max abs 2.0")
    assert "(1, 0)" in cause


def test_a_hop_that_fails_is_unexplained_with_its_error() -> None:
    def fail(_case: GoldenCase) -> Outputs:
        raise HopFailedError("no such operator")

    (cause,) = suspect(CallableHop("exported file alone", fail), {"y": INPUTS["a"]})
    assert cause.startswith(
        "unexplained: 'exported file alone' failed at batch 2: no such operator"
    )


def test_a_served_hop_is_compared_with_the_file_that_is_right() -> None:
    numbers = np.array([[1.25], [-2.5]], dtype=np.float32)

    def right(a: Array, b: Array) -> Array:
        return a + b

    asked = GoldenCase("case", 2, "made up", {"a": numbers, "b": numbers}, {"y": numbers * 2})
    suspicion = Suspicion(
        hop(lambda a, b: right(np.trunc(a), b), "served"), [asked],
        Judge({"y": "FP32"}, {}), FakeClock(), base=hop(right),
    )  # fmt: skip
    (found,) = find_causes(suspicion)
    assert found.cause is Cause.WRONG_DATATYPE
    assert "input 'a' is cast to int64" in found.sentence


def test_the_search_ends_with_its_budget() -> None:
    class Impatient(FakeClock):
        def now_ns(self) -> int:
            self.advance_us(10_000_000)
            return self.time_ns

    golden = {"y": INPUTS["a"] - 2 * INPUTS["b"]}
    suspicion = Suspicion(
        hop(lambda a, b: b - 2 * a), [case(golden)], Judge({"y": "FP32"}, {}), Impatient(),
        budget_s=5,
    )  # fmt: skip
    (found,) = find_causes(suspicion)
    assert found.cause is Cause.UNEXPLAINED
