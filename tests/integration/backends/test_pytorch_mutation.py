"""Models that compute in place: what the request brought stays as it was."""

import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.integration.backends.pytorch_models import fp32, make_source, row, run, save_script

from naiad.backends.base import ModelSource
from naiad.backends.pytorch.backend import PyTorchBackend
from naiad.backends.pytorch.mutation import program_writes, script_writes

pytestmark = pytest.mark.slow


class AddInPlace(torch.nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        rows.add_(1)
        return rows * 2


class ThroughView(torch.nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        flat = rows.view(-1)
        flat.mul_(2)
        return rows + 0


class SetItem(torch.nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        rows[:, 0] = 5
        return rows


class AfterDropout(torch.nn.Module):
    """In eval mode, dropout gives back what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = torch.nn.Dropout()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        kept: torch.Tensor = self.dropout(rows)
        return kept.add_(1)


class InSubmodule(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = AddInPlace()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = self.inner(rows)
        return inner + 0


class DictInPlace(torch.nn.Module):
    def forward(self, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        tensors["rows"].add_(1)
        return tensors["rows"] * 2


class ListInPlace(torch.nn.Module):
    def forward(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        for tensor in tensors:
            tensor.add_(1)
        return tensors[0] * 2


class InFork(torch.nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        future = torch.jit.fork(torch.neg_, rows)  # type: ignore[no-untyped-call]
        negative: torch.Tensor = torch.jit.wait(future)  # type: ignore[no-untyped-call]
        return negative


class Counter(torch.nn.Module):
    """Gives out the memory that its next call writes into."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 2))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.total.add_(rows)
        return self.total


class Convolution(torch.nn.Module):
    """In place, and only on what it made itself: as most networks are."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(inplace=True))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.layers(rows)
        return answer


WRITERS = [
    AddInPlace,
    ThroughView,
    SetItem,
    AfterDropout,
    InSubmodule,
    DictInPlace,
    ListInPlace,
    InFork,
]
EXPORTED_WRITERS = [AddInPlace, ThroughView, SetItem, AfterDropout, InSubmodule]


def script(module: torch.nn.Module) -> torch.jit.ScriptModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted: torch.jit.ScriptModule = torch.jit.script(module.eval())
        return scripted


def export(directory: Path, module: torch.nn.Module) -> ModelSource:
    rows = torch.ones(1, 2)
    program = torch.export.export(module.eval(), (rows,), strict=False)
    torch.export.save(program, directory / "model.pt2")
    shape = [("INPUT__0", "TYPE_FP32", [1, 2])]
    source = make_source(directory, shape, [("OUTPUT__0", "TYPE_FP32", [1, 2])])
    source.config.max_batch_size = 0
    source.config.default_model_filename = "model.pt2"
    return source


@pytest.mark.parametrize("build", WRITERS)
@pytest.mark.parametrize("is_writable", [False, True])
def test_a_scripted_model_leaves_its_inputs_alone(
    build: Callable[[], torch.nn.Module], is_writable: bool, tmp_path: Path
) -> None:
    save_script(tmp_path, build().eval())
    body = row(3, 4)
    body.flags.writeable = is_writable
    run(make_source(tmp_path, fp32("rows"), fp32("OUT")), "OUT", rows=body)
    np.testing.assert_array_equal(body, row(3, 4))


@pytest.mark.parametrize("build", EXPORTED_WRITERS)
def test_an_exported_program_leaves_its_inputs_alone(
    build: Callable[[], torch.nn.Module], tmp_path: Path
) -> None:
    source = export(tmp_path, build())
    body = row(3, 4)
    (output,) = run(source, "OUTPUT__0", INPUT__0=body)
    np.testing.assert_array_equal(body, row(3, 4))
    with torch.no_grad():
        expected = build().eval()(torch.tensor([[3.0, 4.0]]))
    np.testing.assert_array_equal(output.data, expected.numpy())


# torch's own use of a class that it has deprecated.
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning")
def test_a_decomposed_program_leaves_its_inputs_alone() -> None:
    program = torch.export.export(AddInPlace(), (torch.ones(1, 2),)).run_decompositions()
    assert program.graph_signature.user_inputs_to_mutate
    assert program_writes(program)


@pytest.mark.parametrize("is_scripted", [True, False], ids=["scripted", "exported"])
def test_an_answer_stays_when_the_model_writes_into_its_state(
    is_scripted: bool, tmp_path: Path
) -> None:
    if is_scripted:
        save_script(tmp_path, Counter())
        source = make_source(tmp_path, fp32("INPUT__0"), fp32("OUTPUT__0"))
    else:
        source = export(tmp_path, Counter())
    instance = PyTorchBackend().load(source).create_instance(0)
    (first,) = instance.execute({"INPUT__0": row(1, 1)}, ["OUTPUT__0"])
    (second,) = instance.execute({"INPUT__0": row(1, 1)}, ["OUTPUT__0"])
    assert (first.data.tolist(), second.data.tolist()) == ([[1, 1]], [[2, 2]])


def test_what_writes_into_its_own_tensors_only_gets_no_copies() -> None:
    assert not script_writes(script(Convolution()))
    assert not script_writes(script(torch.nn.Identity()))
    program = torch.export.export(Convolution(), (torch.ones(1, 2),))
    assert not program_writes(program)


@pytest.mark.parametrize("build", [*WRITERS, Counter])
def test_writing_is_found(build: Callable[[], torch.nn.Module]) -> None:
    assert script_writes(script(build()))


def test_shared_weights_are_one_module(tmp_path: Path) -> None:
    """A counter tells: instances that share it count together, others each for themselves."""
    save_script(tmp_path, Counter())
    for shared, expected in (("true", 3), ("false", 1)):
        source = make_source(tmp_path, fp32("rows"), fp32("OUT"), ENABLE_WEIGHT_SHARING=shared)
        source.config.instance_group.add(name="g", count=3, kind="KIND_CPU")
        model = PyTorchBackend().load(source)
        instances = [model.create_instance(index) for index in range(3)]
        totals = [i.execute({"rows": row(1, 1)}, ["OUT"])[0].data[0, 0] for i in instances]
        assert totals[-1] == expected


def test_instances_that_share_run_side_by_side(tmp_path: Path) -> None:
    save_script(tmp_path, Convolution())
    source = make_source(tmp_path, fp32("rows"), fp32("OUT"), ENABLE_WEIGHT_SHARING="true")
    source.config.instance_group.add(name="g", count=2, kind="KIND_CPU")
    model = PyTorchBackend().load(source)
    expected = model.create_instance(0).execute({"rows": row(1, 2)}, ["OUT"])[0].data
    failures: list[str] = []

    def work(index: int) -> None:
        instance = model.create_instance(index)
        for _ in range(50):
            (output,) = instance.execute({"rows": row(1, 2)}, ["OUT"])
            if not np.array_equal(output.data, expected):
                failures.append(str(output.data))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
