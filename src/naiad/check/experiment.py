"""Running a model to find what no declaration says: does it batch, and what does it answer?"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from naiad.check.evidence import Known
from naiad.check.model_log import find_frame
from naiad.check.trial import LENGTHS, Run, Shape, Trial, Trials, input_shapes
from naiad.errors import NaiadError
from naiad.model_config.config_text import FieldPath
from naiad.model_config.diagnose import Diagnosis, Finding, locate
from naiad.model_config.diagnose_tensors import drop_batching, set_dims, write_whole_shape
from naiad.model_config.load_errors import correct_by_error, is_about_datatype, read_model_shape
from naiad.model_config.schema import DataType, ModelConfig
from naiad.repository.diagnose_folder import Layout, Subject, find_model_file
from naiad.repository.diagnose_python import correct_names, explain_syntax_error

# Every round corrects something; a config with more to correct is beyond help.
_MAX_ROUNDS: Final = 8
_ANY: Final = -1
_GUESSED_TYPES: Final = (DataType.TYPE_INT64, DataType.TYPE_FP32, DataType.TYPE_INT32)


class Experiment:
    """Loads and runs one model, and corrects its diagnosis by what happens.

    Attributes:
        effective: the config as it would serve, of the last load that succeeded; or None.
        runs: of the last load.
        contradiction: a tensor that the loaded model has in another shape than the evidence says,
            because the graph is optimized when it is loaded; else None. Then nothing else holds.
    """

    def __init__(
        self,
        diagnosis: Diagnosis,
        trials: Trials,
        subject: Subject,
        known: Known,
        layout: Layout,
    ) -> None:
        self._diagnosis = diagnosis
        self._layout = layout
        self._trials = trials
        self._subject = subject
        self._known = known
        self._is_probed = False
        self._logged = 0
        self.effective: ModelConfig | None = None
        self.runs: list[Run] = []
        self.contradiction: tuple[str, Shape] | None = None

    def conduct(self) -> None:
        """Load and run until nothing is left to correct."""
        for _ in range(_MAX_ROUNDS):
            before = self._state()
            self.runs = self._round()
            if self._state() == before:
                return

    def _state(self) -> bytes:
        return self._diagnosis.result().SerializeToString(deterministic=True)

    def _round(self) -> list[Run]:
        config = self._diagnosis.result()
        self._logged = self._trials.log.count
        try:
            trial = self._trials.load(config, self._subject)
        except NaiadError as error:
            self.effective = None
            if self._is_explained(error.message):
                return []
            path = locate(error.message, config)
            self._report("load-failed", "The model does not load.", error.message, path)
            return []
        with trial:
            self.effective = trial.config
            if trial.config.batch_input or trial.config.model_transaction_policy.decoupled:
                return []
            if self._may_have_doubled_axis(trial.config) and self._probe_rank(trial):
                return []
            first = self._first_run(trial)
            if first.error:
                if first.is_tried:
                    self._explain(trial, first)
                return [first]
            return self._run_batches(trial, first)

    def _add(self, code: str, problem: str, why: str, path: FieldPath, block: str = "") -> None:
        self._diagnosis.add(Finding(code, problem, why, path, block, is_fixable=False))

    def _report(self, code: str, problem: str, why: str, path: FieldPath) -> None:
        """Note a failure at the line of the model's code that it comes from, where one is known."""
        frame = find_frame(self._trials.log.since(self._logged), self._subject.directory.parent)
        if frame is None:
            self._add(code, problem, why, path)
        else:
            self._layout.add(Finding(code, problem, why, is_fixable=False), *frame)

    def _shapes(self, config: ModelConfig, batch_size: int, length: int) -> dict[str, Shape]:
        shapes = input_shapes(config, batch_size, length)
        for name, shape in self._known.samples.shapes.items():
            if name in shapes and len(shape) == len(shapes[name]):
                shapes[name] = (batch_size, *shape[1:]) if config.max_batch_size else shape
        return shapes

    def _run(self, trial: Trial, batch_size: int, length: int) -> Run:
        data = self._known.samples.of_batch(trial.config, batch_size)
        if data is not None:
            return trial.run({name: a.shape for name, a in data.items()}, batch_size, data)
        return trial.run(self._shapes(trial.config, batch_size, length), batch_size)

    def _first_run(self, trial: Trial) -> Run:
        """The first length that the model takes; the error of the first where it takes none."""
        size = 1 if trial.config.max_batch_size else 0
        runs = []
        for length in LENGTHS:
            run = self._run(trial, size, length)
            if not run.error:
                return run
            runs.append(run)
            if not _has_open_dims(trial.config):
                break
        return runs[0]

    def _run_batches(self, trial: Trial, first: Run) -> list[Run]:
        limit = trial.config.max_batch_size
        length = _length_of(trial.config, first)
        runs = [first]
        for size in (2, limit):
            if 1 < size <= limit and size not in {run.batch_size for run in runs}:
                runs.append(self._run(trial, size, length))
        if limit:
            # A limit of 1 row says that the model batches, too; two rows show whether it does.
            pair = runs[1] if len(runs) > 1 else self._run(trial, 2, length)
            if not self._judge_batch(trial.config, first, pair):
                return runs
        if self._known.inferred is None:
            self._judge_outputs(trial, first)
        return runs

    def _judge_batch(self, config: ModelConfig, first: Run, pair: Run) -> bool:
        """Whether two rows in are two rows out, in every output."""
        without = [n for n, s in pair.outputs.items() if not s or s[0] != pair.batch_size]
        if not pair.is_tried or not (pair.error or without):
            return True
        if pair.error and pair.batch_size > config.max_batch_size:
            return True
        if pair.error:
            code = "cannot-batch"
            why = f"It answers a batch of 1, and a batch of 2 fails: {_first_line(pair.error)}."
        else:
            code = "output-without-batch"
            shapes = ", ".join(f"'{name}' {list(pair.outputs[name])}" for name in without)
            why = f"A batch of 2 rows gives the outputs {shapes}: the first axis is not the batch."
        size = config.max_batch_size
        drop_batching(self._diagnosis)
        self._diagnosis.add(
            Finding(
                code,
                f"max_batch_size is {size}, and the model can't batch.",
                f"{why} Export the model again so that every size comes from its inputs, or serve "
                "it without batches.",
                ("max_batch_size",),
            )
        )
        self._unbatch(first)
        return False

    def _unbatch(self, first: Run) -> None:
        """Write whole shapes into the dims, as one row has them."""
        declared = self._declared()
        for role, shapes in (("input", first.inputs), ("output", first.outputs)):
            for index, tensor in self._diagnosis.kept(role):
                if tensor.name not in shapes:
                    continue
                observed = _open(shapes[tensor.name], tuple(tensor.dims))
                shape = declared.get(tensor.name) if role == "output" else None
                write_whole_shape(self._diagnosis, role, index, shape or observed, "the run")

    def _declared(self) -> dict[str, Shape]:
        """Whole shapes by name, as far as they are known without a run."""
        evidence = self._known.evidence
        if evidence is None:
            return {}
        tensors = (*evidence.signature.inputs, *evidence.signature.outputs)
        return {tensor.name: tensor.shape for tensor in tensors if tensor.shape is not None}

    def _note_contradiction(self, error: str) -> bool:
        """Whether the loaded model has another shape than the evidence says."""
        found = read_model_shape(error)
        if found is None or self._declared().get(found[0], found[1]) == found[1]:
            return False
        self.contradiction = found
        return True

    def _judge_outputs(self, trial: Trial, first: Run) -> None:
        """Hold the config's output dims against the answers, where no file declares them."""
        other = self._other_length(trial, first)
        for index, tensor in self._diagnosis.kept("output"):
            observed = first.outputs.get(tensor.name)
            if observed is None or tensor.HasField("reshape"):
                continue
            varied = other.outputs.get(tensor.name, observed) if other else observed
            shape = _varying(observed, varied)
            self._judge_datatype(index, tensor, first.datatypes[tensor.name])
            self._judge_output(index, tensor, shape)

    def _judge_datatype(self, index: int, tensor: Any, observed: str) -> None:
        given = DataType.Name(tensor.data_type)
        if observed == given:
            return
        tensor.data_type = DataType.Value(observed)
        self._diagnosis.add(
            Finding(
                "datatype-differs",
                f"The output '{tensor.name}' has {given}.",
                f"The model answers with {observed}, and clients get that.",
                ("output", index, "data_type"),
            )
        )

    def _judge_output(self, index: int, tensor: Any, shape: Shape) -> None:
        limit = self._diagnosis.wanted.max_batch_size
        expected = shape[1:] if limit else shape
        dims = tuple(tensor.dims)
        if _agrees(dims, expected):
            return
        if limit and len(dims) == len(shape) and _agrees(dims[1:], expected):
            code = "batch-axis-in-dims"
            why = (
                f"It answers with the shape {list(shape)}, and max_batch_size {limit} puts the "
                "batch axis in front of the dims by itself."
            )
        else:
            code = "dims-differ" if len(dims) == len(expected) else "rank-differs"
            why = f"It answers with the shape {list(shape)}."
        aligned = dims[len(dims) - len(expected) :] if len(dims) >= len(expected) else ()
        merged = _open(expected, aligned) if len(aligned) == len(expected) else expected
        set_dims(self._diagnosis, "output", index, merged)
        self._diagnosis.add(
            Finding(
                code,
                f"The output '{tensor.name}' has the dims {list(dims)}.",
                why,
                ("output", index, "dims"),
            )
        )

    def _other_length(self, trial: Trial, first: Run) -> Run | None:
        if not _has_open_dims(trial.config) or self._known.samples.of_batch(trial.config, 1):
            return None
        taken = _length_of(trial.config, first)
        for length in LENGTHS:
            if length != taken:
                run = trial.run(
                    input_shapes(trial.config, first.batch_size, length), first.batch_size
                )
                if not run.error:
                    return run
        return None

    def _explain(self, trial: Trial, failed: Run) -> None:
        """Correct what the error names; else try other names or datatypes; else report it."""
        is_corrected = (
            correct_by_error(self._diagnosis, failed.error)
            or self._correct_names()
            or self._guess_input_type(trial)
        )
        if not is_corrected:
            why = f"Inputs {_format(failed.inputs)}: {_first_line(failed.error)}"
            problem = "The model loads and fails on generated inputs."
            self._report("run-failed", problem, why, ("input",))

    def _is_explained(self, error: str) -> bool:
        return (
            self._note_contradiction(error)
            or correct_by_error(self._diagnosis, error)
            or self._explain_code(error)
        )

    def _code(self) -> Path | None:
        """The file of a Python model; None of another."""
        file = find_model_file(self._diagnosis.result(), self._subject)
        return file if file is not None and file.suffix == ".py" else None

    def _explain_code(self, error: str) -> bool:
        file = self._code()
        return file is not None and explain_syntax_error(self._layout, file, error)

    def _correct_names(self) -> bool:
        file = self._code()
        return file is not None and correct_names(self._diagnosis, file)

    def _guess_input_type(self, trial: Trial) -> bool:
        """Whether another datatype of one input makes the model run."""
        if self._known.inferred is not None or self._known.samples.data:
            return False
        for index, tensor in self._diagnosis.kept("input"):
            given = tensor.data_type
            for guess in _GUESSED_TYPES:
                if guess != given and self._runs_with(index, guess):
                    tensor.data_type = guess
                    self._diagnosis.add(
                        Finding(
                            "datatype-differs",
                            f"The input '{tensor.name}' has {DataType.Name(given)}.",
                            f"The model fails on it, and runs with {DataType.Name(guess)}.",
                            ("input", index, "data_type"),
                        )
                    )
                    return True
        return False

    def _runs_with(self, index: int, datatype: DataType) -> bool:
        config = ModelConfig()
        config.CopyFrom(self._diagnosis.wanted)
        config.input[index].data_type = datatype
        try:
            trial = self._trials.load(config, self._subject)
        except NaiadError:
            return False
        with trial:
            run = self._first_run(trial)
            # Results of another datatype than the config says are the next round's.
            return not run.error or is_about_datatype(run.error)

    def _may_have_doubled_axis(self, config: ModelConfig) -> bool:
        """Nothing is known but the config, and dropping the first of all dims leaves some."""
        return (
            self._known.evidence is None
            and not self._is_probed
            and not self._known.samples.data
            and config.max_batch_size > 0
            and bool(config.input)
            and all(len(t.dims) > 1 and t.dims[0] == _ANY for t in config.input)
            and not self._diagnosis.is_ignored("batch-axis-twice")
        )

    def _probe_rank(self, trial: Trial) -> bool:
        """Run one rank lower; whether the config was corrected."""
        self._is_probed = True
        lower = next((run for run in self._lower_runs(trial) if not run.error), None)
        if lower is None or any(not s or s[0] != 2 for s in lower.outputs.values()):
            return False
        full = self._first_run(trial)
        if full.error:
            self._drop_first_dims(full.error)
            return True
        shown = [tensor.name for _, tensor in self._diagnosis.kept("input")]
        first = self._diagnosis.wanted.input[0]
        dims = list(first.dims)
        self._add(
            "batch-axis-twice",
            f"The batch axis is probably written twice: the inputs {', '.join(shown)} have dims "
            "that begin with -1.",
            f"max_batch_size puts a batch axis in front of the dims {dims}; the model runs on "
            f"{_format(lower.inputs)} as well as on {_format(full.inputs)}. If the first reading "
            "is right, leave the first -1 out of the dims. If the second is, keep them and add "
            "the parameter below, or golden cases.",
            ("input", 0, "dims"),
            _both_readings(dims),
        )
        return False

    def _lower_runs(self, trial: Trial) -> Any:
        for length in LENGTHS:
            shapes = input_shapes(trial.config, 2, length)
            yield trial.run({n: (2, *shape[2:]) for n, shape in shapes.items()}, 2)

    def _drop_first_dims(self, error: str) -> None:
        for index, tensor in self._diagnosis.kept("input"):
            dims = list(tensor.dims)
            set_dims(self._diagnosis, "input", index, dims[1:])
            self._diagnosis.add(
                Finding(
                    "batch-axis-in-dims",
                    f"The input '{tensor.name}' has the dims {dims}.",
                    "max_batch_size puts the batch axis in front of them by itself; so the model "
                    f"fails ({_first_line(error)}), and one axis less runs.",
                    ("input", index, "dims"),
                )
            )


def _both_readings(dims: Sequence[int]) -> str:
    without = f"dims: {list(dims[1:])}".replace("[", "[ ").replace("]", " ]")
    whole = f"dims: {list(dims)}".replace("[", "[ ").replace("]", " ]")
    return (
        f"{without}  # the model takes [batch, ...]\n"
        f"{whole}  # the model takes [batch, any, ...]; then also:\n"
        'parameters { key: "naiad.check.ignore" value { string_value: "batch-axis-twice" } }'
    )


def _has_open_dims(config: ModelConfig) -> bool:
    return any(_ANY in (*t.dims, *t.reshape.shape) for t in config.input)


def _length_of(config: ModelConfig, run: Run) -> int:
    """The length that the run had for dims of any length."""
    axis = 1 if config.max_batch_size else 0
    for tensor in config.input:
        dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
        shape = run.inputs.get(tensor.name, ())[axis:]
        for dim, length in zip(dims, shape, strict=False):
            if dim == _ANY:
                return length
    return LENGTHS[0]


def _varying(observed: Shape, other: Shape) -> Shape:
    if len(observed) != len(other):
        return observed
    return tuple(a if a == b else _ANY for a, b in zip(observed, other, strict=True))


def _agrees(dims: Shape, expected: Shape) -> bool:
    """Whether the config's dims take the model's answer: -1 of the config takes any length."""
    return len(dims) == len(expected) and all(
        dim in {_ANY, length} for dim, length in zip(dims, expected, strict=True)
    )


def _open(observed: Shape, dims: Shape) -> Shape:
    """Observed lengths, but -1 where the config leaves them open."""
    if len(dims) == len(observed) - 1:
        dims = (observed[0], *dims)
    if len(dims) != len(observed):
        return observed
    return tuple(_ANY if dim == _ANY else o for dim, o in zip(dims, observed, strict=True))


def _format(shapes: Mapping[str, Shape]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())


def _first_line(text: str) -> str:
    """The line that says what happened: torch prints the model's own traceback above it."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    if not lines:
        return ""
    chosen = lines[-1] if "Traceback" in text or "The following operation" in text else lines[0]
    return chosen.rstrip(".")
