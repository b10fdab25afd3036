"""What an ensemble runs next: the graph of its steps, and one request's way through it.

Nothing here knows what a tensor is, waits, or runs anything. A step can run when each tensor that
its input map names exists. A decoupled step answers any number of times, and each of its answers
makes one more *iteration* of the tensors behind it. Source: Triton's ensemble_scheduler.cc.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from naiad.model_config.schema import ModelConfig, ModelEnsembling

TensorT = TypeVar("TensorT")

# A client may ask for any subset of the outputs, so not every plan that was ever made is kept.
_MAX_PLANS: Final = 64


class EnsembleStep:
    """One step, as the config says it.

    Attributes:
        index: among the steps of the ensemble.
        model_name: of the composing model.
        model_version: that it asks for; -1 for the latest.
        model_namespace: of its repository; empty without model namespacing.
        inputs: pairs of the model's input and the ensemble tensor that it reads.
        outputs: the ensemble tensor that each of the model's outputs writes.
        sources: the ensemble tensors that it reads, each once.
    """

    __slots__ = (
        "index",
        "inputs",
        "model_name",
        "model_namespace",
        "model_version",
        "outputs",
        "sources",
    )

    def __init__(self, index: int, config: ModelEnsembling.Step) -> None:
        self.index = index
        self.model_name = config.model_name
        self.model_version = config.model_version
        self.model_namespace = config.model_namespace
        self.inputs = tuple(sorted(config.input_map.items()))
        self.outputs = dict(sorted(config.output_map.items()))
        self.sources = tuple(dict.fromkeys(tensor for _, tensor in self.inputs))


class EnsemblePlan:
    """The part of the graph that some of the outputs need.

    Attributes:
        output_names: the ensemble's outputs that are answered.
        steps: those that run, ascending.
        readers: the steps that wait for a tensor.
        uses: how often a tensor is taken: once by each step that reads it, once for the answer.
        wanted: by step, the outputs of its model that somebody takes.
    """

    __slots__ = ("output_names", "readers", "steps", "uses", "wanted")

    def __init__(self, output_names: Sequence[str], steps: Sequence[EnsembleStep]) -> None:
        self.output_names = tuple(output_names)
        self.steps = tuple(steps)
        self.readers: dict[str, list[EnsembleStep]] = {}
        self.uses: dict[str, int] = dict.fromkeys(output_names, 1)
        for step in steps:
            for tensor in step.sources:
                self.readers.setdefault(tensor, []).append(step)
                self.uses[tensor] = self.uses.get(tensor, 0) + 1
        self.wanted = {
            step.index: [name for name, tensor in step.outputs.items() if tensor in self.uses]
            for step in steps
        }


class EnsembleGraph:
    """The steps of one ensemble, and which of them write what.

    Attributes:
        steps: in the order of the config.
        writers: by ensemble tensor; the ensemble's own inputs have none.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.steps = tuple(
            EnsembleStep(index, step) for index, step in enumerate(config.ensemble_scheduling.step)
        )
        # Of each step, how many requests one request of the ensemble may have under way; 0 for any.
        self.max_inflight_requests = config.ensemble_scheduling.max_inflight_requests
        self.writers = {tensor: step for step in self.steps for tensor in step.outputs.values()}
        self._plans: dict[tuple[str, ...], EnsemblePlan] = {}

    def plan(self, output_names: Sequence[str]) -> EnsemblePlan:
        """What has to run for these outputs, and no more."""
        key = tuple(dict.fromkeys(output_names))
        plan = self._plans.get(key)
        if plan is None:
            plan = EnsemblePlan(key, self._needed(key))
            if len(self._plans) < _MAX_PLANS:
                self._plans[key] = plan
        return plan

    def _needed(self, output_names: Sequence[str]) -> list[EnsembleStep]:
        needed: set[int] = set()
        tensors = list(output_names)
        while tensors:
            step = self.writers.get(tensors.pop())
            if step is not None and step.index not in needed:
                needed.add(step.index)
                tensors.extend(step.sources)
        return [self.steps[index] for index in sorted(needed)]


class ReadyStep(NamedTuple, Generic[TensorT]):
    """A step that should run now.

    Attributes:
        step: which one.
        iteration: of its inputs; goes back into `EnsembleRun.add`.
        inputs: by input of the model; those that nobody gave are left out.
    """

    step: EnsembleStep
    iteration: int
    inputs: dict[str, TensorT]


class EnsembleRun(Generic[TensorT]):
    """One request's way through a plan.

    A tensor is let go of as soon as nobody will take it any more. Answers come in the order of
    their iterations, whichever step is the faster.

    Args:
        plan: what runs.
        given: the request's inputs; one that is left out counts as there, and empty.
        input_names: the inputs of the ensemble.
        max_inflight_requests: of each step, requests that may run or wait for their model at the
            same time; those that could be made besides are held back. 0 for any number.
    """

    __slots__ = (
        "_answers",
        "_counts",
        "_held",
        "_inflight",
        "_left",
        "_max_inflight",
        "_missing",
        "_next_answer",
        "_plan",
        "_ready",
        "_running",
        "_tensors",
        "answer_count",
    )

    def __init__(
        self,
        plan: EnsemblePlan,
        given: Mapping[str, TensorT],
        input_names: Sequence[str],
        max_inflight_requests: int = 0,
    ) -> None:
        self._plan = plan
        self._max_inflight = max_inflight_requests
        # By step, how many of its requests are under way, and the iterations held back.
        self._inflight: dict[int, int] = {}
        self._held: dict[int, deque[int]] = {}
        self._tensors: dict[tuple[str, int], TensorT | None] = {}
        self._left: dict[tuple[str, int], int] = {}
        # How many tensors a step still waits for, by step and iteration.
        self._missing: dict[tuple[int, int], int] = {}
        self._ready: deque[tuple[EnsembleStep, int]] = deque()
        self._running = 0
        # Answers that a decoupled step gave so far.
        self._counts: dict[int, int] = {}
        # How many outputs an answer still lacks, by iteration.
        self._answers: dict[int, int] = {}
        self._next_answer = 0
        self.answer_count = 0
        for name in input_names:
            self._put(name, 0, given.get(name))

    def next_step(self) -> ReadyStep[TensorT] | None:
        """A step that can run, which counts as running from now on; None while there is none."""
        while self._ready:
            step, iteration = self._ready.popleft()
            if self._is_let_through(step, iteration):
                return self._take(step, iteration)
        return None

    def _is_let_through(self, step: EnsembleStep, iteration: int) -> bool:
        if not self._max_inflight:
            return True
        inflight = self._inflight.get(step.index, 0)
        if inflight >= self._max_inflight:
            self._held.setdefault(step.index, deque()).append(iteration)
            return False
        self._inflight[step.index] = inflight + 1
        return True

    def _take(self, step: EnsembleStep, iteration: int) -> ReadyStep[TensorT]:
        inputs = {}
        for name, tensor in step.inputs:
            value = self._tensors[tensor, iteration]
            if value is not None:
                inputs[name] = value
        for tensor in step.sources:
            self._use((tensor, iteration))
        self._running += 1
        return ReadyStep(step, iteration, inputs)

    def add(
        self,
        step: EnsembleStep,
        iteration: int,
        outputs: Mapping[str, TensorT],
        *,
        is_decoupled: bool,
    ) -> None:
        """Take one answer of a running step.

        Args:
            step: as `next_step` gave it.
            iteration: likewise.
            outputs: by output of the model; what is left out counts as there, and empty, since
                the next model may do without.
            is_decoupled: the step may answer any number of times.
        """
        if is_decoupled:
            iteration = self._counts.get(step.index, 0)
            self._counts[step.index] = iteration + 1
        for name, tensor in step.outputs.items():
            self._put(tensor, iteration, outputs.get(name))

    def end(self, step: EnsembleStep) -> None:
        """A running step has given its last answer, or failed."""
        self._running -= 1
        if self._max_inflight:
            self._inflight[step.index] -= 1
            held = self._held.get(step.index)
            if held:
                self._ready.appendleft((step, held.popleft()))

    def is_held_up(self, step: EnsembleStep) -> bool:
        """Whether a step that reads what this one writes has no room for more."""
        held = self._held
        return bool(held) and any(
            held.get(reader.index)
            for tensor in step.outputs.values()
            for reader in self._plan.readers.get(tensor, ())
        )

    def next_answer(self) -> dict[str, TensorT] | None:
        """The ensemble's next answer, by output; None while it is not complete.

        What a model did not give is left out.
        """
        if self._answers.get(self._next_answer) != 0:
            return None
        iteration = self._next_answer
        del self._answers[iteration]
        self._next_answer += 1
        self.answer_count += 1
        outputs = {}
        for name in self._plan.output_names:
            value = self._tensors[name, iteration]
            if value is not None:
                outputs[name] = value
            self._use((name, iteration))
        return outputs

    def is_running(self) -> bool:
        """Whether a step has not given its last answer yet."""
        return self._running > 0

    def is_over(self) -> bool:
        """Whether nothing runs, nothing can run, and no answer waits to be taken."""
        return not (self._running or self._ready) and self._answers.get(self._next_answer) != 0

    def tensor_count(self) -> int:
        """How many tensors are held, those that are there and empty among them."""
        return len(self._tensors)

    def _put(self, tensor: str, iteration: int, value: TensorT | None) -> None:
        plan = self._plan
        uses = plan.uses.get(tensor)
        if uses is None:
            return
        self._tensors[tensor, iteration] = value
        self._left[tensor, iteration] = uses
        for step in plan.readers.get(tensor, ()):
            key = (step.index, iteration)
            missing = self._missing.pop(key, len(step.sources)) - 1
            if missing:
                self._missing[key] = missing
            else:
                self._ready.append((step, iteration))
        if tensor in plan.output_names:
            self._answers[iteration] = self._answers.get(iteration, len(plan.output_names)) - 1

    def _use(self, key: tuple[str, int]) -> None:
        left = self._left[key] - 1
        if left:
            self._left[key] = left
        else:
            del self._left[key]
            del self._tensors[key]


def fit_shape(
    shape: Sequence[int], dims: Sequence[int], *, from_batch: bool, to_batch: bool
) -> Sequence[int]:
    """The shape in which a tensor goes from one model to another.

    Args:
        shape: as it was made, with the batch axis where its model has one.
        dims: that the taker's config gives, without the batch axis.
        from_batch: its maker has a batch axis.
        to_batch: its taker has one.

    Returns:
        A batch axis of 1 in front where a maker without one made one item; without the batch axis
        where a batch of 1 goes to a taker that has none; otherwise ``shape``, whose first dim then
        is the batch for one of the two.
    """
    if from_batch == to_batch:
        return shape
    if to_batch:
        return (1, *shape) if _fits(shape, dims) else shape
    return shape if shape[0] != 1 or _fits(shape, dims) else tuple(shape[1:])


def _fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    return len(shape) == len(dims) and all(
        dim in (-1, size) for size, dim in zip(shape, dims, strict=True)
    )
