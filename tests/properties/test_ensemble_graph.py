"""Random graphs of steps give what computing them directly gives, in whatever order steps end."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.model_config.schema import ModelConfig
from naiad.scheduling.ensemble import EnsembleGraph, EnsembleRun, ReadyStep

INPUTS = ("x0", "x1")
# A step reads these tensors and adds its number to their sum; an identity step adds nothing.
Step = tuple[Sequence[str], int]


@st.composite
def graphs(draw: st.DrawFn) -> list[Step]:
    steps: list[Step] = []
    for index in range(draw(st.integers(1, 8))):
        there = [*INPUTS, *(f"t{earlier}" for earlier in range(index))]
        read = draw(st.lists(st.sampled_from(there), min_size=1, max_size=3))
        steps.append((read, draw(st.integers(0, 5))))
    return steps


def make_graph(steps: Sequence[Step], order: Sequence[int]) -> EnsembleGraph:
    """The graph, whose config lists the steps in any order."""
    config = ModelConfig(name="e")
    for index in order:
        read, _ = steps[index]
        config.ensemble_scheduling.step.add(
            model_name=f"m{index}",
            input_map={f"IN{number}": tensor for number, tensor in enumerate(read)},
            output_map={"OUT": f"t{index}"},
        )
    return EnsembleGraph(config)


def compute(steps: Sequence[Step], given_values: dict[str, int]) -> dict[str, int]:
    """Every tensor of the graph, one step after the other."""
    values = dict(given_values)
    for index, (read, number) in enumerate(steps):
        values[f"t{index}"] = sum(values[tensor] for tensor in read) + number
    return values


@pytest.mark.slow
@given(graphs(), st.data())
@settings(max_examples=300, deadline=None)
def test_a_random_graph_gives_what_computing_it_gives(
    steps: list[Step], data: st.DataObject
) -> None:
    tensors = [f"t{index}" for index in range(len(steps))]
    wanted = data.draw(st.lists(st.sampled_from(tensors), min_size=1, unique=True))
    graph = make_graph(steps, data.draw(st.permutations(range(len(steps)))))
    plan = graph.plan(wanted)
    inputs = {name: data.draw(st.integers(0, 100)) for name in INPUTS}
    run = EnsembleRun(plan, inputs, INPUTS, data.draw(st.integers(0, 2)))
    running: list[ReadyStep[int]] = []
    count = 0
    while not run.is_over():
        while (ready := run.next_step()) is not None:
            running.append(ready)
            count += 1
        if not running:
            break
        ready = running.pop(data.draw(st.integers(0, len(running) - 1)))
        number = steps[int(ready.step.model_name[1:])][1]
        result = sum(ready.inputs.values()) + number
        run.add(ready.step, ready.iteration, {"OUT": result}, is_decoupled=False)
        run.end(ready.step)
    expected = compute(steps, inputs)
    assert run.next_answer() == {name: expected[name] for name in wanted}
    assert run.is_over()
    assert count == len(plan.steps)
    assert run.tensor_count() == 0


@pytest.mark.slow
@given(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.data())
@settings(max_examples=200, deadline=None)
def test_answers_of_decoupled_steps_are_neither_lost_nor_mixed(
    counts: list[int], data: st.DataObject
) -> None:
    """Step 0 answers often, and each answer makes step 1 answer ``counts[n]`` times."""
    config = ModelConfig(name="e")
    for index, (read, written) in enumerate((("x", "t"), ("t", "u"), ("u", "y"))):
        config.ensemble_scheduling.step.add(
            model_name=f"m{index}", input_map={"IN": read}, output_map={"OUT": written}
        )
    graph = EnsembleGraph(config)
    limit = data.draw(st.integers(0, 2))
    run: EnsembleRun[object] = EnsembleRun(graph.plan(["y"]), {"x": "x"}, ["x"], limit)
    source = run.next_step()
    assert source is not None
    todo: list[tuple[ReadyStep[object], list[object]]] = [(source, list(range(len(counts))))]
    order: list[object] = []
    answers = []
    while todo:
        position = data.draw(st.integers(0, len(todo) - 1))
        ready, left = todo[position]
        if left:
            value = left.pop(0)
            if ready.step.index == 1:
                order.append(value)
            run.add(ready.step, ready.iteration, {"OUT": value}, is_decoupled=ready.step.index < 2)
        if not left:
            del todo[position]
            run.end(ready.step)
        while (new := run.next_step()) is not None:
            under_way = [known for known, _ in todo if known.step is new.step]
            assert not limit or len(under_way) < limit
            value = new.inputs["IN"]
            if new.step.index == 1:
                assert isinstance(value, int)
                todo.append((new, [(value, number) for number in range(counts[value])]))
            else:
                todo.append((new, [value]))
        while (answer := run.next_answer()) is not None:
            answers.append(answer["y"])
    assert answers == order
    assert len(answers) == sum(counts)
    assert run.is_over()
    assert run.tensor_count() == 0
