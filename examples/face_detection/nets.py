"""The three networks of the cascade MTCNN, as the weights of facenet-pytorch want them.

Source of the method: Zhang et al., "Joint Face Detection and Alignment using Multi-task Cascaded
Convolutional Networks", 2016.
"""

from pathlib import Path

import torch
from torch import nn

Answers = tuple[torch.Tensor, ...]


def load(net: nn.Module, folder: Path) -> nn.Module:
    """A network with the weights that facenet-pytorch 2.6.0, below a folder, carries for it."""
    path = folder / "facenet_pytorch" / "data" / f"{type(net).__name__.lower()}.pt"
    net.load_state_dict(torch.load(path, weights_only=True))
    return net.eval()


def _columns_first(features: torch.Tensor) -> torch.Tensor:
    """Flatten in the order that the weights were trained with: columns, rows, channels."""
    return features.permute(0, 3, 2, 1).flatten(1)


class PNet(nn.Module):
    """Proposes: slides over an image of any size, 12 pixels at a time in steps of 2."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 10, 3), nn.PReLU(10)
        self.pool1 = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.conv2, self.prelu2 = nn.Conv2d(10, 16, 3), nn.PReLU(16)
        self.conv3, self.prelu3 = nn.Conv2d(16, 32, 3), nn.PReLU(32)
        self.conv4_1, self.conv4_2 = nn.Conv2d(32, 2, 1), nn.Conv2d(32, 4, 1)

    def forward(self, image: torch.Tensor) -> Answers:
        """Probabilities ``[1, 2, rows, columns]`` and moved edges ``[1, 4, rows, columns]``."""
        x = self.pool1(self.prelu1(self.conv1(image)))
        x = self.prelu3(self.conv3(self.prelu2(self.conv2(x))))
        return self.conv4_1(x).softmax(1), self.conv4_2(x)


class RNet(nn.Module):
    """Refines: looks at cut-outs of 24 by 24 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 28, 3), nn.PReLU(28)
        self.conv2, self.prelu2 = nn.Conv2d(28, 48, 3), nn.PReLU(48)
        self.pool1 = self.pool2 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv3, self.prelu3 = nn.Conv2d(48, 64, 2), nn.PReLU(64)
        self.dense4, self.prelu4 = nn.Linear(576, 128), nn.PReLU(128)
        self.dense5_1, self.dense5_2 = nn.Linear(128, 2), nn.Linear(128, 4)

    def forward(self, crops: torch.Tensor) -> Answers:
        """Probabilities ``[n, 2]`` and moved edges ``[n, 4]``."""
        x = self.pool1(self.prelu1(self.conv1(crops)))
        x = self.pool2(self.prelu2(self.conv2(x)))
        x = self.prelu4(self.dense4(_columns_first(self.prelu3(self.conv3(x)))))
        return self.dense5_1(x).softmax(1), self.dense5_2(x)


class ONet(nn.Module):
    """Answers: looks at cut-outs of 48 by 48 pixels, and finds eyes, nose and mouth in them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 32, 3), nn.PReLU(32)
        self.conv2, self.prelu2 = nn.Conv2d(32, 64, 3), nn.PReLU(64)
        self.conv3, self.prelu3 = nn.Conv2d(64, 64, 3), nn.PReLU(64)
        self.pool1 = self.pool2 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.pool3 = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.conv4, self.prelu4 = nn.Conv2d(64, 128, 2), nn.PReLU(128)
        self.dense5, self.prelu5 = nn.Linear(1152, 256), nn.PReLU(256)
        self.dense6_1, self.dense6_2 = nn.Linear(256, 2), nn.Linear(256, 4)
        self.dense6_3 = nn.Linear(256, 10)

    def forward(self, crops: torch.Tensor) -> Answers:
        """Probabilities ``[n, 2]``, moved edges ``[n, 4]`` and five points ``[n, 10]``."""
        x = self.pool1(self.prelu1(self.conv1(crops)))
        x = self.pool2(self.prelu2(self.conv2(x)))
        x = self.pool3(self.prelu3(self.conv3(x)))
        x = self.prelu5(self.dense5(_columns_first(self.prelu4(self.conv4(x)))))
        return self.dense6_1(x).softmax(1), self.dense6_2(x), self.dense6_3(x)
