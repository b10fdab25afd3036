"""Small models of several kinds, and exports of them that each have a fault that users have met."""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


class ConvNet(nn.Module):
    """Images, batch norm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.4)
        self.head = nn.Linear(8 * 4, 6)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(image)))
        x = torch.nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)
        logits: torch.Tensor = self.head(self.drop(x))
        return logits


class Encoder(nn.Module):
    """Tokens of a dynamic length; layer norm and dropout, no batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.inner = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.drop = nn.Dropout(0.3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        x = self.norm(x + self.drop(torch.tanh(self.inner(x))))
        out: torch.Tensor = x
        return out


class Detector(nn.Module):
    """Two inputs of one shape, two outputs of one shape, as a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 4)
        self.right = nn.Linear(4, 4)

    def forward(self, query: torch.Tensor, key: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "match": self.left(query) - 2 * self.right(key),
            "score": torch.sigmoid(self.left(query)) * self.right(key),
        }


class Flow(nn.Module):
    """An image in, an image out of the same shape: layouts can be mistaken unseen."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.tanh(self.conv(image))
        return out


class Labeler(nn.Module):
    """Only the index of the best class, and ties among the classes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.round(x @ self.weight.T)
        return scores.argmax(1)


class Gate(nn.Module):
    """Decides by a value, which tracing freezes."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 3)
        self.other = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 0):
            return torch.relu(self.one(x))
        return torch.tanh(self.other(x))


class Unstable(nn.Module):
    """Small differences of large numbers: rounding alone moves the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        large = x * 1e5
        out: torch.Tensor = (large @ self.weight) - (large @ (self.weight + 1e-6))
        return out


class Doubled(nn.Module):
    """In FP64 by the user's own wish."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x.double())
        return out


class Clip(nn.Module):
    """Five axes, and batch norm over three of them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm3d(4)

    def forward(self, clip: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.relu(self.norm(self.conv(clip)))
        return out


class Tabular(nn.Module):
    """Rows of numbers, and batch norm over them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3)
        )

    def forward(self, row: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(row)
        return out


class Scaled(nn.Module):
    """Two inputs, the second of which is easily taken for a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch.log(self.linear(x).abs() + 1e-3) * scale


class Recurrent(nn.Module):
    """A sequence of any length; its steps and its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(5, 7, 2, batch_first=True, dropout=0.3)
        self.head = nn.Linear(7, 4)

    def forward(self, sequence: torch.Tensor) -> dict[str, torch.Tensor]:
        steps, last = self.gru(sequence)
        return {"steps": self.head(steps), "last": last[-1]}


class Triple(nn.Module):
    """Three inputs of one shape, none of which may stand for another."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(
        self, anchor: torch.Tensor, near: torch.Tensor, far: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        a, n, f = (torch.tanh(self.linear(part)) for part in (anchor, near, far))
        return {"pull": a * n, "push": a - 2 * f}


def _seeded(make: Callable[[], nn.Module], *example: torch.Tensor) -> Made:
    model = make()
    for part in model.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            assert part.running_mean is not None
            assert part.running_var is not None
            part.running_mean.uniform_(-0.5, 0.5)
            part.running_var.uniform_(0.5, 2)
    return model.eval(), example


def conv_net() -> Made:
    torch.manual_seed(1)
    return _seeded(ConvNet, torch.randn(2, 3, 8, 8))


def encoder() -> Made:
    torch.manual_seed(2)
    return _seeded(Encoder, torch.randint(0, 50, (2, 7)))


def detector() -> Made:
    torch.manual_seed(3)
    return _seeded(Detector, torch.randn(2, 5, 4), torch.randn(2, 5, 4))


def flow() -> Made:
    torch.manual_seed(4)
    return _seeded(Flow, torch.randn(2, 4, 6, 6))


def labeler() -> Made:
    torch.manual_seed(5)
    return _seeded(Labeler, torch.randn(2, 4))


def gate() -> Made:
    torch.manual_seed(6)
    return _seeded(Gate, torch.rand(2, 4))


def unstable() -> Made:
    torch.manual_seed(7)
    return _seeded(Unstable, torch.randn(2, 64))


def doubled() -> Made:
    torch.manual_seed(8)
    return _seeded(Doubled, torch.randn(2, 4))


def clip() -> Made:
    torch.manual_seed(9)
    return _seeded(Clip, torch.randn(2, 2, 4, 6, 6))


def tabular() -> Made:
    torch.manual_seed(10)
    return _seeded(Tabular, torch.randn(2, 10))


def scaled() -> Made:
    torch.manual_seed(11)
    return _seeded(Scaled, torch.randn(2, 4), torch.rand(2, 4))


def recurrent() -> Made:
    torch.manual_seed(12)
    return _seeded(Recurrent, torch.randn(2, 6, 5))


def triple() -> Made:
    torch.manual_seed(13)
    return _seeded(Triple, torch.randn(2, 6), torch.randn(2, 6), torch.randn(2, 6))


MODELS: dict[str, Callable[[], Made]] = {
    made.__name__: made
    for made in (
        conv_net,
        encoder,
        detector,
        flow,
        labeler,
        gate,
        unstable,
        doubled,
        clip,
        tabular,
        scaled,
        recurrent,
        triple,
    )
}
DYNAMIC: dict[str, dict[str, dict[int, str]]] = {
    "encoder": {"ids": {0: "batch", 1: "tokens"}},
    "recurrent": {"sequence": {0: "batch", 1: "steps"}},
}


class Wrapped(nn.Module):
    """A model with something done to its inputs and its outputs; outputs become a tuple."""

    def __init__(self, model: nn.Module, ask: Callable[..., Any], read: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model
        self.ask = ask
        self.read = read

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = self.model(*self.ask(*tensors))
        if isinstance(found, dict):
            found = tuple(found.values())
        outputs = found if isinstance(found, tuple) else (found,)
        changed = self.read(*outputs)
        return changed if isinstance(changed, tuple) else (changed,)


def _same(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tensors


def asking(change: Callable[..., Any]) -> Callable[[nn.Module], nn.Module]:
    """A fault in the way of the inputs."""
    return lambda model: Wrapped(model, change, _same)


def reading(change: Callable[..., Any]) -> Callable[[nn.Module], nn.Module]:
    """A fault in the way of the outputs."""
    return lambda model: Wrapped(model, _same, change)


def trained(*kinds: type[nn.Module]) -> Callable[[nn.Module], nn.Module]:
    """Some of the layers, or the whole model, left in train mode."""

    def leave(model: nn.Module) -> nn.Module:
        for part in model.modules():
            part.training = not kinds or isinstance(part, kinds)
        return model

    return leave


def without_layer(name: str) -> Callable[[nn.Module], nn.Module]:
    """One layer's weight forgotten, as a checkpoint without it leaves it."""

    def forget(model: nn.Module) -> nn.Module:
        weight = model.get_submodule(name).weight
        assert isinstance(weight, torch.Tensor)
        nn.init.zeros_(weight)
        return model

    return forget


def of_another_epoch(model: nn.Module) -> nn.Module:
    """All weights a step of training further."""
    torch.manual_seed(99)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    return model


def rounded_to_half(model: nn.Module) -> nn.Module:
    """Weights stored in FP16, as a converter leaves them."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.half().float())
    return model


def computed_in_half(model: nn.Module) -> nn.Module:
    """All arithmetic in FP16, between inputs and outputs of FP32."""
    return Wrapped(
        model.half(),
        lambda *xs: tuple(x.half() if x.is_floating_point() else x for x in xs),
        lambda *ys: tuple(y.float() for y in ys),
    )


def quantised(model: nn.Module) -> nn.Module:
    """Weights of linear and convolution layers in eight bits, a scale for each tensor."""
    with torch.no_grad():
        for part in model.modules():
            if isinstance(part, nn.Linear | nn.Conv2d):
                scale = part.weight.abs().max() / 127
                part.weight.copy_((part.weight / scale).round().clamp(-127, 127) * scale)
    return model


def trace(
    name: str,
    fault: Callable[[nn.Module], nn.Module] | None,
    change: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> torch.jit.ScriptModule:
    """The TorchScript file of a model with a fault in it.

    Args:
        name: of the model.
        fault: done to it; None for the tracing alone.
        change: done to its example first.
    """
    model, example = MODELS[name]()
    if change is not None:
        example = tuple(change(tensor) for tensor in example)
    faulty = copy.deepcopy(model) if fault is None else fault(copy.deepcopy(model))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced: torch.jit.ScriptModule = torch.jit.trace(
            faulty, example, check_trace=False, strict=False
        )  # type: ignore[no-untyped-call]
        return traced


def write_onnx(model: nn.Module, example: torch.Tensor, path: Path, name: str) -> None:
    """An ONNX file whose layers keep the mode that they are in, as torch's older exporter can."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, (example,), path, dynamo=False, training=torch.onnx.TrainingMode.PRESERVE,
            input_names=[name], output_names=["output__0"], dynamic_axes={name: {0: "batch"}},
        )  # fmt: skip


def write_program(model: nn.Module, example: torch.Tensor, path: Path, _name: str) -> None:
    """A program of torch.export."""
    _write_program(model, example, path, is_core=False)


def write_core_program(model: nn.Module, example: torch.Tensor, path: Path, _name: str) -> None:
    """The same in the smaller set of operators that compilers ask for."""
    _write_program(model, example, path, is_core=True)


def _write_program(model: nn.Module, example: torch.Tensor, path: Path, *, is_core: bool) -> None:
    batch = ({0: torch.export.Dim("batch")},)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The wrappers take any number of tensors, which is one argument for the shapes.
        shapes = (batch,) if isinstance(model, Wrapped) else batch
        program = torch.export.export(model, (example,), dynamic_shapes=shapes)
        torch.export.save(program.run_decompositions() if is_core else program, path)
