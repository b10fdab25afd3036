"""Model directories as Hugging Face's transformers writes them: config.json beside the weights."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch import nn

from naiad.errors import InvalidArgumentError, UnsupportedError

CONFIG_NAME: Final = "config.json"
_TOKENS: Final = 8
_NEEDS_TRANSFORMERS: Final = (
    "needs the package transformers, which is not installed; run: pip install 'naiad[huggingface]'"
)


@dataclass(frozen=True, slots=True)
class PretrainedModel:
    """A model directory, loaded.

    Attributes:
        module: with its weights.
        example: keyword arguments of forward.
        dynamic: names of the axes of ``example`` that vary.
        ranges: of the values that its inputs take.
        labels: class names, where the directory has its own.
        notes: what was decided and the user should know.
    """

    module: nn.Module
    example: Mapping[str, torch.Tensor]
    dynamic: Mapping[str, Mapping[int, str]]
    ranges: Mapping[str, tuple[float, float]]
    labels: tuple[str, ...]
    notes: tuple[str, ...]


def is_model_directory(path: Path) -> bool:
    """Whether a folder has the config of transformers."""
    return (path / CONFIG_NAME).is_file()


def load_pretrained(path: Path) -> PretrainedModel:
    """The model of a directory, by the class that its config names; nothing is downloaded.

    Code that the directory may bring is not run.

    Raises:
        InvalidArgumentError: the directory is damaged, or its weights are not the model's.
        UnsupportedError: transformers is missing, or no example is known for its kind of input.
    """
    transformers = _import_transformers(path)
    settings = _read_settings(path)
    names = settings.get("architectures") or ["AutoModel"]
    model_class = getattr(transformers, str(names[0]), None)
    if model_class is None:
        raise UnsupportedError(
            f"{path} holds a {names[0]}, which transformers {transformers.__version__} does not "
            "have. Write a function that loads it and returns (module, example), and export "
            "MODULE:CALLABLE"
        )
    try:
        with _without_progress_bar(transformers):
            module, report = model_class.from_pretrained(
                path, local_files_only=True, output_loading_info=True
            )
    except Exception as error:
        raise InvalidArgumentError(
            f"transformers cannot load {path}: {type(error).__name__}: {error}"
        ) from error
    _require_all_weights(path, report)
    # A cache of keys and values is state between calls, and no exported file has any.
    module.config.use_cache = False
    example, dynamic, ranges = _make_example(module, path)
    return PretrainedModel(
        module, example, dynamic, ranges, _labels(settings),
        (f"loaded by transformers {transformers.__version__} as {names[0]}",),
    )  # fmt: skip


@contextmanager
def _without_progress_bar(transformers: ModuleType) -> Iterator[None]:
    """It would break into the terminal's own, or fill a log."""
    progress = transformers.utils.logging
    was_shown = progress.is_progress_bar_enabled()
    progress.disable_progress_bar()
    try:
        yield
    finally:
        if was_shown:
            progress.enable_progress_bar()


def _import_transformers(path: Path) -> ModuleType:
    try:
        import transformers  # noqa: PLC0415  # seconds, and only for such a directory
    except ImportError as error:
        raise UnsupportedError(f"exporting the directory {path} {_NEEDS_TRANSFORMERS}") from error
    module: ModuleType = transformers
    return module


def _read_settings(path: Path) -> Mapping[str, Any]:
    try:
        settings = json.loads((path / CONFIG_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(f"cannot read {path / CONFIG_NAME}: {error}") from error
    if not isinstance(settings, dict):
        raise InvalidArgumentError(f"{path / CONFIG_NAME} is no table")
    return settings


def _require_all_weights(path: Path, report: Mapping[str, Any]) -> None:
    missing = sorted(report.get("missing_keys", ()))
    if missing:
        raise InvalidArgumentError(
            f"the weights in {path} lack {', '.join(missing[:3])}"
            f"{f' and {len(missing) - 3} more' if len(missing) > 3 else ''}: transformers would "
            "fill them with random numbers. Name the class that was trained as 'architectures' in "
            f"{CONFIG_NAME}"
        )


def _make_example(module: Any, path: Path) -> tuple[
    dict[str, torch.Tensor], dict[str, Mapping[int, str]], dict[str, tuple[float, float]]
]:  # fmt: skip
    config, main_input = module.config, module.main_input_name
    generator = torch.Generator().manual_seed(0)
    if main_input == "input_ids" and not config.is_encoder_decoder:
        shape = (1, _TOKENS)
        ids = torch.randint(0, config.vocab_size, shape, generator=generator)
        axes = {0: "batch", 1: "tokens"}
        return (
            {"input_ids": ids, "attention_mask": torch.ones(shape, dtype=torch.int64)},
            {"input_ids": axes, "attention_mask": axes},
            {"input_ids": (0, config.vocab_size - 1), "attention_mask": (0, 1)},
        )
    if main_input == "pixel_values" and isinstance(getattr(config, "image_size", None), int):
        channels, side = getattr(config, "num_channels", 3), config.image_size
        pixels = torch.randn((1, channels, side, side), generator=generator)
        return {"pixel_values": pixels}, {}, {}
    raise UnsupportedError(
        f"no example inputs are known for the {type(module).__name__} of {path}: give some with "
        "--args MODULE:CALLABLE or --input NAME:DATATYPE:SHAPE"
    )


def _labels(settings: Mapping[str, Any]) -> tuple[str, ...]:
    names = settings.get("id2label")
    classes = [str(name) for name in settings.get("architectures") or ()]
    # A detector's are not those of its outputs' last axis.
    if not (isinstance(names, dict) and classes and classes[0].endswith("Classification")):
        return ()
    try:
        ordered = [str(names[str(index)]) for index in range(len(names))]
    except KeyError:
        return ()
    # Where nobody gave names, transformers writes LABEL_0, LABEL_1 ...
    return () if ordered and ordered[0] == "LABEL_0" else tuple(ordered)
