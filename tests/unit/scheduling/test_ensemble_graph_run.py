"""The graph of an ensemble, without models: which step runs when, and what is kept until when."""

from collections.abc import Mapping, Sequence

import pytest

from naiad.model_config.schema import ModelConfig
from naiad.scheduling.ensemble import EnsembleGraph, EnsembleRun, ReadyStep, fit_shape


def graph(*steps: tuple[Mapping[str, str], Mapping[str, str]]) -> EnsembleGraph:
    config = ModelConfig(name="e")
    for index, (inputs, outputs) in enumerate(steps):
        config.ensemble_scheduling.step.add(
            model_name=f"m{index}", model_version=-1, input_map=inputs, output_map=outputs
        )
    return EnsembleGraph(config)


# X -> m0 -> M; M -> m1 -> A; X, M -> m2 -> B
FAN = graph(
    ({"IN": "X"}, {"OUT": "M"}),
    ({"IN": "M"}, {"OUT": "A"}),
    ({"L": "X", "R": "M"}, {"OUT": "B"}),
)


def begin(made: EnsembleGraph, outputs: Sequence[str], **given: str) -> EnsembleRun[str]:
    return EnsembleRun(made.plan(outputs), given, ["X"])


def take(run: EnsembleRun[str]) -> list[ReadyStep[str]]:
    found = []
    while (step := run.next_step()) is not None:
        found.append(step)
    return found


def answer(
    run: EnsembleRun[str], ready: ReadyStep[str], value: str | None, *, ends: bool = True
) -> None:
    outputs = {} if value is None else dict.fromkeys(ready.step.outputs, value)
    run.add(ready.step, ready.iteration, outputs, is_decoupled=not ends)
    if ends:
        run.end(ready.step)


def test_a_step_runs_once_all_of_its_inputs_exist_and_branches_run_together() -> None:
    run = begin(FAN, ["A", "B"], X="x")
    (first,) = take(run)
    assert (first.step.model_name, first.inputs) == ("m0", {"IN": "x"})
    assert not run.is_over()
    answer(run, first, "m")
    second, third = take(run)
    assert second.inputs == {"IN": "m"}
    assert third.inputs == {"L": "x", "R": "m"}
    answer(run, third, "b")
    assert run.next_answer() is None
    answer(run, second, "a")
    assert run.next_answer() == {"A": "a", "B": "b"}
    assert run.is_over()
    assert run.tensor_count() == 0


def test_a_tensor_is_dropped_when_its_last_reader_has_it() -> None:
    run = begin(FAN, ["A", "B"], X="x")
    (first,) = take(run)
    assert run.tensor_count() == 1  # m2 still needs X
    answer(run, first, "m")
    take(run)
    assert run.tensor_count() == 0


@pytest.mark.parametrize(
    ("outputs", "models"),
    [(["A"], ["m0", "m1"]), (["B"], ["m0", "m2"]), (["M"], ["m0"]), (["A", "A"], ["m0", "m1"])],
)
def test_only_what_the_outputs_need_runs(outputs: Sequence[str], models: Sequence[str]) -> None:
    run = begin(FAN, outputs, X="x")
    ran = []
    while ready := take(run):
        for step in ready:
            ran.append(step.step.model_name)
            answer(run, step, "v")
    assert ran == models
    assert run.next_answer() == dict.fromkeys(outputs, "v")
    assert run.is_over()


def test_an_intermediate_tensor_can_be_an_output_too() -> None:
    run = begin(FAN, ["A", "B", "M"], X="x")
    for value in ("m", "v"):
        for step in take(run):
            answer(run, step, value)
    assert run.next_answer() == {"A": "v", "B": "v", "M": "m"}


def test_an_input_that_nobody_gave_counts_as_there_and_empty() -> None:
    run = begin(graph(({"IN": "X", "MORE": "O"}, {"OUT": "Y"})), ["Y"])
    assert take(run) == []
    made = graph(({"IN": "X", "MORE": "O"}, {"OUT": "Y"}))
    run = EnsembleRun(made.plan(["Y"]), {"X": "x"}, ["X", "O"])
    (step,) = take(run)
    assert step.inputs == {"IN": "x"}


def test_an_output_that_a_model_left_out_is_left_out_of_the_answer() -> None:
    run = begin(graph(({"IN": "X"}, {"P": "A", "Q": "B"})), ["A", "B"], X="x")
    (step,) = take(run)
    run.add(step.step, step.iteration, {"P": "p"}, is_decoupled=False)
    run.end(step.step)
    assert run.next_answer() == {"A": "p"}


def test_each_answer_of_a_decoupled_step_is_one_answer_of_the_ensemble() -> None:
    made = graph(({"IN": "X"}, {"OUT": "T"}), ({"IN": "T"}, {"OUT": "Y"}))
    run = begin(made, ["Y"], X="x")
    (source,) = take(run)
    answer(run, source, "t0", ends=False)
    answer(run, source, "t1", ends=False)
    run.end(source.step)
    first, second = take(run)
    assert [first.inputs, second.inputs] == [{"IN": "t0"}, {"IN": "t1"}]
    # The second is faster, and waits for the first.
    answer(run, second, "y1")
    assert run.next_answer() is None
    answer(run, first, "y0")
    assert [run.next_answer(), run.next_answer()] == [{"Y": "y0"}, {"Y": "y1"}]
    assert run.is_over()
    assert (run.answer_count, run.tensor_count()) == (2, 0)


def test_a_diamond_behind_a_decoupled_step_joins_what_belongs_together() -> None:
    made = graph(
        ({"IN": "X"}, {"OUT": "T"}),
        ({"IN": "T"}, {"OUT": "L"}),
        ({"IN": "T"}, {"OUT": "R"}),
        ({"L": "L", "R": "R"}, {"OUT": "Y"}),
    )
    run = begin(made, ["Y"], X="x")
    (source,) = take(run)
    for value in "01":
        answer(run, source, value, ends=False)
    run.end(source.step)
    left0, right0, left1, right1 = take(run)
    for step in (left1, right0, left0, right1):
        answer(run, step, step.step.model_name + step.inputs["IN"])
    joined = {step.inputs["L"]: step.inputs["R"] for step in take(run)}
    assert joined == {"m10": "m20", "m11": "m21"}


def test_a_decoupled_step_that_answers_nothing_ends_the_run_without_an_answer() -> None:
    run = begin(graph(({"IN": "X"}, {"OUT": "Y"})), ["Y"], X="x")
    (step,) = take(run)
    assert run.is_running()
    run.end(step.step)
    assert run.is_over()
    assert (run.next_answer(), run.answer_count) == (None, 0)


@pytest.mark.parametrize(
    ("shape", "dims", "from_batch", "to_batch", "fitted"),
    [
        ((2, 4), (4,), True, True, (2, 4)),
        ((4,), (4,), False, False, (4,)),
        ((4,), (4,), False, True, (1, 4)),  # one item becomes a batch of one
        ((4,), (-1,), False, True, (1, 4)),
        ((3, 4), (4,), False, True, (3, 4)),  # its first dim is the batch
        ((1, 4), (4,), True, False, (4,)),  # a batch of one loses its axis
        ((3, 4), (-1, 4), True, False, (3, 4)),  # the batch as one item
        ((1, 4), (-1, 4), True, False, (1, 4)),
        ((3, 4), (4,), True, False, (3, 4)),  # refused by the model that takes it
    ],
)
def test_shapes_between_models_with_and_without_a_batch_axis(
    shape: Sequence[int],
    dims: Sequence[int],
    from_batch: bool,
    to_batch: bool,
    fitted: Sequence[int],
) -> None:
    assert fit_shape(shape, dims, from_batch=from_batch, to_batch=to_batch) == fitted


def test_no_more_requests_of_a_step_are_under_way_than_the_config_allows() -> None:
    made = graph(
        ({"IN": "X"}, {"OUT": "T"}), ({"IN": "T"}, {"OUT": "Y"}), ({"IN": "T"}, {"OUT": "Z"})
    )
    run = EnsembleRun(made.plan(["Y", "Z"]), {"X": "x"}, ["X"], max_inflight_requests=2)
    (source,) = take(run)
    for number in range(4):
        answer(run, source, f"t{number}", ends=False)
    steps = take(run)
    assert [(s.step.index, s.inputs["IN"]) for s in steps] == [
        (1, "t0"),
        (2, "t0"),
        (1, "t1"),
        (2, "t1"),
    ]
    run.end(source.step)
    answer(run, steps[0], "y0")
    (third,) = take(run)
    assert (third.step.index, third.inputs) == (1, {"IN": "t2"})
    # A failure makes room, too.
    run.end(steps[3].step)
    (other,) = take(run)
    assert (other.step.index, other.inputs) == (2, {"IN": "t2"})
    assert not run.is_over()
