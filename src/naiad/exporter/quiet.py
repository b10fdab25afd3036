"""Silence for torch's harmless remarks, and for nothing else."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# Logger -> the beginning of what it says about its own work.
_REMARKS: Final = {
    "torch.onnx._internal.exporter._registration": "torchvision is not installed",
    "onnxscript.optimizer._constant_folding": "Skipping constant folding",
    "torch.fx.experimental.symbolic_shapes": "Unable to find user code",
    "onnxscript.version_converter": "The model version conversion is not supported",
}


def _is_worth_reading(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_REMARKS[record.name])


@contextmanager
def quiet() -> Iterator[None]:
    """Within it the following are not shown; every other warning and log line is.

    - that torchvision's operators are not registered with the ONNX exporter: a model that uses
      them needs torchvision to be imported at all
    - that the optimizer of the ONNX exporter leaves some constants as they are
    - that torch.export does not know a line: the error that follows names it
    - that an older opset is written by another converter: onnxruntime loads the file afterwards
    - that torch.jit is deprecated: whoever asks for TorchScript knows
    - that recurrent layers of torch keep a list of their weights
    - torch's use of its own deprecated tree classes
    - that torch.onnx's older exporter is deprecated, and that it may fix the batch of an LSTM:
      the golden cases hold other batches
    """
    loggers = [logging.getLogger(name) for name in _REMARKS]
    for logger in loggers:
        logger.addFilter(_is_worth_reading)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning
            )
            warnings.filterwarnings(
                "ignore", r"(?s)The tensor attributes? .*_flat_weights", UserWarning
            )
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
            for text, category in (
                ("You are using the legacy TorchScript-based ONNX export", DeprecationWarning),
                ("The feature will be removed", DeprecationWarning),
                ("Exporting a model to ONNX with a batch_size other than 1", UserWarning),
            ):
                warnings.filterwarnings("ignore", text, category)
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(_is_worth_reading)
