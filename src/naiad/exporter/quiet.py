"""Silence for torch's harmless remarks, and for nothing else."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_TORCHVISION: Final = "torchvision is not installed"
_REGISTRATION: Final = logging.getLogger("torch.onnx._internal.exporter._registration")


def _is_worth_reading(record: logging.LogRecord) -> bool:
    return _TORCHVISION not in record.getMessage()


@contextmanager
def quiet() -> Iterator[None]:
    """Within it the following are not shown; every other warning and log line is.

    - that torchvision's operators are not registered with the ONNX exporter: a model that uses
      them needs torchvision to be imported at all
    - that torch.jit is deprecated: whoever asks for TorchScript knows
    - torch's use of its own deprecated tree classes
    """
    _REGISTRATION.addFilter(_is_worth_reading)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning
            )
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
            yield
    finally:
        _REGISTRATION.removeFilter(_is_worth_reading)
