"""From an application file to a model repository."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

from naiad.app.definition import ServedModel, TensorDefinition
from naiad.errors import InvalidArgumentError

_MODULE: Final = "naiad_application"
_MODEL: Final = '''"""Made by `naiad serve` of {path}; changes here are lost."""

from naiad.app.runtime import make_model

TritonPythonModel = make_model({path!r}, {name!r})
'''


def load_models(path: Path) -> dict[str, ServedModel]:
    """The models that an application file defines, by name.

    Raises:
        InvalidArgumentError: it can't be imported, or defines none, or two of one name.
    """
    module = _import(path)
    found: dict[str, ServedModel] = {}
    for value in vars(module).values():
        if not isinstance(value, ServedModel):
            continue
        if found.setdefault(value.name, value) is not value:
            raise InvalidArgumentError(f"{path} defines two models '{value.name}'")
    if not found:
        raise InvalidArgumentError(f"{path} defines no model: decorate a function with naiad.model")
    return found


def write_models(path: Path, repository: Path) -> list[str]:
    """Write a model folder for each model of an application file; returns their names.

    Raises:
        InvalidArgumentError: see `load_models`.
    """
    models = load_models(path)
    for served in models.values():
        version = repository / served.name / "1"
        version.mkdir(parents=True)
        text = _MODEL.format(path=str(path.resolve()), name=served.name)
        (version / "model.py").write_text(text, "utf-8")
        config = format_config(served)
        (repository / served.name / "config.pbtxt").write_text(config, "utf-8")
    return sorted(models)


def format_config(served: ServedModel) -> str:
    """The model's ``config.pbtxt``."""
    lines = [
        f'name: "{served.name}"',
        'backend: "python"',
        f"max_batch_size: {served.max_batch_size}",
        *(_format_tensor("input", tensor) for tensor in served.inputs),
        *(_format_tensor("output", tensor) for tensor in served.outputs),
        f"instance_group [ {{ count: {served.instances} kind: KIND_CPU }} ]",
    ]
    if served.max_batch_size:
        delay = f"max_queue_delay_microseconds: {served.max_delay_us}"
        lines.append(f"dynamic_batching {{ {delay if served.max_delay_us else ''} }}")
    if served.is_streaming:
        lines.append("model_transaction_policy { decoupled: true }")
    return "\n".join(lines) + "\n"


def _format_tensor(kind: str, tensor: TensorDefinition) -> str:
    dims = ", ".join(map(str, tensor.dims))
    return (
        f'{kind} [ {{ name: "{tensor.name}" data_type: {tensor.datatype.config_name} '
        f"dims: [ {dims} ] }} ]"
    )


def _import(path: Path) -> ModuleType:
    if not path.is_file():
        raise InvalidArgumentError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise InvalidArgumentError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Its neighbours are found as they are when it is run.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[_MODULE] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InvalidArgumentError(
            f"{path} can't be imported: {type(error).__name__}: {error}"
        ) from error
    finally:
        sys.path.pop(0)
    return module
