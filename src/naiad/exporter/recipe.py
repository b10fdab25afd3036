"""``naiad.toml``: the exports of a project, so that a person and CI make the same ones."""

import difflib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from naiad.errors import InvalidArgumentError, NotFoundError
from naiad.exporter.options import ExportOptions
from naiad.exporter.request import ExportRequest
from naiad.inference.comparison import Tolerance
from naiad.source_model.description import SourceDescription, is_path

_MODELS: Final = "models"
_SHARED: Final = ("repository", "target")


def read_recipe(path: Path) -> tuple[ExportRequest, ...]:
    """The exports that a recipe describes, in its order.

    Paths in it are relative to its folder.

    Raises:
        NotFoundError: there is no such file.
        InvalidArgumentError: it is no TOML, or holds what no export knows; the message names the
            model and the key.
    """
    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no recipe {path}") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidArgumentError(f"cannot read the recipe {path}: {error}") from error
    models = document.pop(_MODELS, None)
    _refuse_unknown(document, _SHARED, f"{path}", hint=_MODELS)
    if not (isinstance(models, dict) and models and all(isinstance(m, dict) for m in
                                                        models.values())):  # fmt: skip
        raise InvalidArgumentError(
            f"{path} describes no model: it needs a table such as [models.NAME] with source = "
            '"MODULE:CALLABLE"'
        )
    return tuple(
        _Reader(path, name, {**document, **table}).request() for name, table in models.items()
    )


class _Reader:
    """Reads one model's table."""

    def __init__(self, path: Path, name: str, table: Mapping[str, Any]) -> None:
        self._path = path
        self._name = name
        self._table = table
        self._where = f"{path}, [models.{name}]"

    def request(self) -> ExportRequest:
        """The export."""
        _refuse_unknown(self._table, (*_SOURCE_KEYS, *_OPTION_KEYS), self._where)
        options = {key: read(self, key) for key, read in _OPTION_KEYS.items() if key in self._table}
        ranges = options.get("ranges", {})
        folder = self._path.parent
        source = self.text("source", required=True)
        if is_path(str(folder / source)):
            source = str(folder / source)
        try:
            settings = ExportOptions(**options)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{self._where}: {error.message}") from error
        return ExportRequest(
            name=self._name,
            repository=folder / self.text("repository", required=True),
            source=SourceDescription(
                source=source,
                model_class=self.text("class") or None,
                examples=self.text("args") or None,
                inputs=self.texts("inputs"),
                ranges=ranges,
            ),
            formats=self._formats(),
            options=settings,
        )

    def text(self, key: str, *, required: bool = False) -> str:
        """A string; "" where it may be left out and is."""
        value = self._table.get(key, "")
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        if required and not value:
            raise InvalidArgumentError(f"{self._where} lacks '{key}'")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings."""
        value = self._table.get(key, [])
        if not (isinstance(value, list) and all(isinstance(part, str) for part in value)):
            raise self.wrong(key, "a list of strings")
        return tuple(value)

    def number(self, key: str) -> int:
        """A whole number."""
        value = self._table[key]
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(key, "a whole number")
        return value

    def numbers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers."""
        value = self._table[key]
        if not (isinstance(value, list) and all(type(part) is int for part in value)):
            raise self.wrong(key, "a list of whole numbers")
        return tuple(value)

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self._table[key]
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def labels(self, key: str) -> Sequence[str] | Path:
        """A file's path, or the labels."""
        if isinstance(self._table[key], list):
            return self.texts(key)
        return self._path.parent / self.text(key)

    def axes(self, key: str) -> Mapping[str, Mapping[int, str]]:
        """A list of names for each input; "" is an axis of fixed size."""
        found = {}
        for name, axes in self._tables(key).items():
            if not (isinstance(axes, list) and all(isinstance(axis, str) for axis in axes)):
                raise self.wrong(key, 'a list of names for each input: ["batch", "", "height"]')
            found[name] = {index: axis for index, axis in enumerate(axes) if axis}
        return found

    def ranges(self, key: str) -> Mapping[str, tuple[float, float]]:
        """The lowest and highest value for each input."""
        return {name: self._pair(key, value) for name, value in self._tables(key).items()}

    def tolerances(self, key: str) -> Mapping[str, Tolerance]:
        """Relative and absolute for each datatype."""
        return {
            name: Tolerance(*self._pair(key, value)) for name, value in self._tables(key).items()
        }

    def wrong(self, key: str, expected: str) -> InvalidArgumentError:
        """The error about a value of another kind."""
        return InvalidArgumentError(f"{self._where}: '{key}' has to be {expected}")

    def _tables(self, key: str) -> Mapping[str, Any]:
        value = self._table[key]
        if not isinstance(value, dict):
            raise self.wrong(key, "a table")
        return value

    def _pair(self, key: str, value: object) -> tuple[float, float]:
        if (
            isinstance(value, list)
            and len(value) == 2
            and all(isinstance(part, int | float) and not isinstance(part, bool) for part in value)
        ):
            return float(value[0]), float(value[1])
        raise self.wrong(key, "a list of two numbers for each name")

    def _formats(self) -> tuple[str, ...]:
        value = self._table.get("format", "onnx")
        return (value,) if isinstance(value, str) else self.texts("format")


_SOURCE_KEYS: Final = ("source", "class", "args", "inputs", "repository", "format")
_OPTION_KEYS: Final[Mapping[str, Callable[[_Reader, str], Any]]] = {
    "dynamic": _Reader.axes,
    "ranges": _Reader.ranges,
    "tolerances": _Reader.tolerances,
    "max_batch_size": _Reader.number,
    "version": _Reader.number,
    "overwrite": _Reader.flag,
    "labels": _Reader.labels,
    "input_names": _Reader.texts,
    "output_names": _Reader.texts,
    "opset": _Reader.number,
    "target": _Reader.text,
    "optimize": _Reader.text,
    "golden_batch_sizes": _Reader.numbers,
    "seed": _Reader.number,
    "dynamic_batching": _Reader.flag,
    "instance_count": _Reader.number,
    "torchscript": _Reader.text,
}


def _refuse_unknown(
    table: Mapping[str, Any], known: Sequence[str], where: str, *, hint: str = ""
) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, [*known, hint], 1)
            advice = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(known)}"
            raise InvalidArgumentError(f"{where}: there is no key '{key}'; {advice}")
