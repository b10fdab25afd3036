from collections.abc import Callable, Iterator, Sequence
from itertools import count

import numpy as np

from naiad.inference.comparison import Array, Difference, Outputs, compare_outputs
from naiad.repository.golden import GoldenCase
from naiad.verify.causes import Suspicion, find_causes
from naiad.verify.hops import HopFailedError

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


def compare(expected: Outputs, actual: Outputs) -> list[Difference]:
    return compare_outputs(expected, actual, {"y": "FP32", "z": "FP32"}, {})


def is_equal(expected: Outputs, actual: Outputs) -> bool:
    return all(d.equal for d in compare(expected, actual))


def case(outputs: Outputs, batch: int = 2) -> GoldenCase:
    return GoldenCase("case", batch, "made up", INPUTS, outputs)


def hop(answer: Callable[[Array, Array], Array], name: str = "exported file alone") -> CallableHop:
    return CallableHop(name, lambda c: {"y": answer(c.inputs["a"], c.inputs["b"])})


def suspect(
    culprit: CallableHop,
    outputs: Outputs,
    eager: CallableHop | None = None,
    train: CallableHop | None = None,
) -> Sequence[str]:
    return find_causes(Suspicion(culprit, [case(outputs)], is_equal, compare, eager, train))


def test_swapped_inputs_are_shown_by_swapping_them_back() -> None:
    golden = {"y": INPUTS["a"] - 2 * INPUTS["b"]}
    causes = suspect(hop(lambda a, b: b - 2 * a), golden)
    assert causes == [
        "inputs are swapped: with 'b' in the place of 'a', 'a' in the place of 'b' the difference "
        "at 'exported file alone' is gone"
    ]


def test_swapped_outputs_are_shown_by_swapping_them_back() -> None:
    golden = {"y": INPUTS["a"], "z": INPUTS["b"]}
    culprit = CallableHop("served", lambda c: {"y": c.inputs["b"], "z": c.inputs["a"]})
    assert any(cause.startswith("outputs are swapped") for cause in suspect(culprit, golden))


def test_train_mode_is_named_only_when_it_reproduces_the_difference() -> None:
    golden = {"y": INPUTS["a"]}
    culprit = hop(lambda a, _b: a * 3 + 1)
    (cause,) = suspect(culprit, golden, train=hop(lambda a, _b: a * 3 + 1))
    assert "exported in train mode" in cause
    (cause,) = suspect(culprit, golden, train=hop(lambda a, _b: a * 7))
    assert cause.startswith("unexplained")


def test_a_stale_golden_file_is_named_when_eager_disagrees_with_it() -> None:
    tampered = {"y": INPUTS["a"] + 1}
    right = hop(lambda a, _b: a)
    (cause,) = suspect(right, tampered, eager=hop(lambda a, _b: a, "PyTorch eager again"))
    assert cause.startswith("the golden outputs are not what the model answers")


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
    assert cause == "unexplained: 'exported file alone' failed at batch 2: no such operator"
