"""Running a module as it will be served, and leaving it as it was found."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluation(module: nn.Module) -> Iterator[None]:
    """Within it the module is in eval mode, without gradients.

    Afterwards each submodule's training flag and torch's random state are what they were before.
    ``module.train()`` would not do: it sets all flags alike, and so turns dropout on again in a
    part that its owner had frozen.
    """
    flags = [(part, part.training) for part in module.modules()]
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            module.eval()
            yield
    finally:
        for part, was_training in flags:
            part.training = was_training


@contextmanager
def preserve_buffers(module: nn.Module) -> Iterator[None]:
    """Afterwards the module's buffers hold what they held before: counters, caches, averages."""
    held = [
        (part, name, buffer, buffer.clone())
        for part in module.modules()
        for name, buffer in part.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for part, name, buffer, content in held:
                if not torch.equal(buffer, content):
                    buffer.copy_(content)
                if getattr(part, name) is not buffer:
                    setattr(part, name, buffer)
