"""``MODULE:CALLABLE``: each form that is accepted, and a clear word for each that is not."""

import sys
from collections.abc import Iterator

import pytest
import torch

from naiad.errors import InvalidArgumentError, NaiadError, NotFoundError
from naiad.source_model.reference import load_source

SOURCE = """
from collections import namedtuple
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x, y=None):
        return x if y is None else x + y

x = torch.ones(2, 3)
net = Net()

class Makers:
    @staticmethod
    def make():
        return net, (x,)

def alone(): return Net()
def with_args(): return net, (x, x)
def with_one(): return net, x
def with_kwargs(): return net, (x,), {"y": x}
def needs(path, *, device): return net
def returns_dict(): return net.state_dict()
def returns_text(): return "net"
def returns_wrong(): return net, 3
def raises(): raise OSError("no weights here")

def example_tensor(): return x
def example_tuple(): return x, x
def example_dict(): return {"x": x, "y": x}
def example_both(): return (x,), {"y": x}
def example_text(): return "x"
number = 3
"""


@pytest.fixture(scope="module", autouse=True)
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("source")
    (folder / "source_nets.py").write_text(SOURCE)
    (folder / "source_broken.py").write_text("import not_installed_anywhere")
    (folder / "source_raising.py").write_text("raise RuntimeError('at import')")
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


@pytest.mark.parametrize(
    ("model", "examples", "names"),
    [
        ("source_nets:with_args", None, ("x", "y")),
        ("source_nets:with_one", None, ("x",)),
        ("source_nets:with_kwargs", None, ("x", "y")),
        ("source_nets:Makers.make", None, ("x",)),
        ("source_nets:alone", "source_nets:example_tensor", ("x",)),
        ("source_nets:net", "source_nets:example_tuple", ("x", "y")),
        ("source_nets:Net", "source_nets:example_dict", ("x", "y")),
        ("source_nets:with_one", "source_nets:example_both", ("x", "y")),
    ],
)
def test_what_a_reference_may_give(
    model: str, examples: str | None, names: tuple[str, ...]
) -> None:
    source = load_source(model, examples)
    assert source.input_names == names
    assert source.origin == model
    assert all(torch.equal(tensor, torch.ones(2, 3)) for tensor in source.example)
    storages = {tensor.data_ptr() for tensor in source.example}
    assert len(storages) == len(names)


@pytest.mark.parametrize(
    ("model", "examples", "kind", "message"),
    [
        ("source_nets", None, InvalidArgumentError, "not of the form MODULE:CALLABLE"),
        (":make", None, InvalidArgumentError, "not of the form MODULE:CALLABLE"),
        ("source_nets.py:make", None, InvalidArgumentError, "such as source_nets:make"),
        ("nets/source.py:make", None, InvalidArgumentError, "such as nets.source:make"),
        ("no_such:make", None, NotFoundError, "there is no Python module 'no_such'"),
        ("source_nets.sub:make", None, NotFoundError, "no Python module|importing"),
        ("source_broken:make", None, InvalidArgumentError, "not_installed_anywhere"),
        ("source_raising:make", None, InvalidArgumentError, "raised RuntimeError: at import"),
        ("source_nets:missing", None, NotFoundError, "'source_nets' has no 'missing'"),
        ("source_nets:needs", None, InvalidArgumentError, "needs the arguments path, device"),
        ("source_nets:number", None, InvalidArgumentError, "is a int, not a callable"),
        ("source_nets:returns_dict", None, InvalidArgumentError, "a state dict is not a module"),
        ("source_nets:returns_text", None, InvalidArgumentError, "returned a str; it must"),
        ("source_nets:returns_wrong", None, InvalidArgumentError, "args must be a tuple"),
        ("source_nets:raises", None, InvalidArgumentError, "raised OSError: no weights here"),
        ("source_nets:alone", None, InvalidArgumentError, "without example inputs"),
        ("source_nets:alone", "source_nets:example_text", InvalidArgumentError, "returned a str"),
        ("source_nets:alone", "source_nets:missing", NotFoundError, "has no 'missing'"),
    ],
)
def test_what_it_may_not(
    model: str, examples: str | None, kind: type[NaiadError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        load_source(model, examples)
