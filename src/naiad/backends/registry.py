"""Which backends there are, each imported when the first model asks for it.

Beside those of this package, an installed package may bring backends of its own as entry points of
the group ``naiad.backends``: the name is what model configs call it, the value a class, or a
function without arguments, that makes a `naiad.backends.base.Backend`. And a folder may hold
backends written as models of the Python backend: ``NAME/model.py``, as in Triton.
"""

import functools
import importlib
import importlib.util
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Final, cast

from naiad.backends.base import Backend
from naiad.errors import InvalidArgumentError, UnsupportedError


@dataclass(frozen=True, slots=True)
class _Entry:
    """A backend of this package.

    Attributes:
        module: where it is.
        class_name: what makes it.
        framework: that it imports.
        install: the package that brings the framework.
        has_choice: its models may run in processes of their own.
        in_process_only: parameters of model configs that they then can't have.
    """

    module: str
    class_name: str
    framework: str = ""
    install: str = ""
    has_choice: bool = False
    in_process_only: tuple[str, ...] = ()


_ENTRIES: Final[Mapping[str, _Entry]] = MappingProxyType(
    {
        "identity": _Entry("naiad.backends.identity.backend", "IdentityBackend"),
        "onnxruntime": _Entry(
            "naiad.backends.onnxruntime.backend", "OnnxRuntimeBackend", "onnxruntime", "naiad"
        ),
        "openvino": _Entry(
            "naiad.backends.openvino.backend", "OpenVinoBackend", "openvino", "naiad[openvino]"
        ),
        "python": _Entry("naiad.backends.python.backend", "PythonBackend"),
        "pytorch": _Entry(
            "naiad.backends.pytorch.backend",
            "PyTorchBackend",
            "torch",
            "naiad[torch]",
            has_choice=True,
            in_process_only=("ENABLE_WEIGHT_SHARING",),
        ),
    }
)


_GROUP: Final = "naiad.backends"
_ADVICE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "tensorflow": (
            "TensorFlow models are served as ONNX, since Triton too has dropped its TensorFlow "
            "backend. Convert with 'python -m tf2onnx.convert --saved-model model.savedmodel "
            "--output model.onnx' (Keras: first model.export('model.savedmodel')), put model.onnx "
            "in place of the model, and leave backend and platform out of the config"
        ),
        "tensorrt": (
            "A TensorRT plan runs on the kind of GPU that it was built for, and by TensorRT alone. "
            "Serve the ONNX file that it was built from: put model.onnx in place of the plan, and "
            "leave backend and platform out of the config"
        ),
    }
)


class BackendRegistry:
    """The backends of one server; each is made once, when it is first asked for.

    Args:
        directory: with backends written in Python; None where there are none.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._backends: dict[str, Backend] = {}
        # A name of this package can't be taken by another.
        self._installed = {
            point.name: point for point in entry_points(group=_GROUP) if point.name not in _ENTRIES
        }
        # Models load side by side in threads.
        self._lock = threading.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        """Every backend that a model config may name."""
        files = self._directory.glob("*/model.py") if self._directory is not None else ()
        return tuple(sorted({*_ENTRIES, *self._installed, *(file.parent.name for file in files)}))

    @property
    def loaded_names(self) -> tuple[str, ...]:
        """The backends that models asked for so far."""
        return tuple(sorted(self._backends))

    def module_name(self, name: str) -> str:
        """Where a backend of `names` is, in Python's terms, or its file."""
        if name in _ENTRIES:
            return _ENTRIES[name].module
        return self._installed[name].module if name in self._installed else str(self._file(name))

    def get(self, name: str) -> Backend:
        """The backend ``name``, imported now if it wasn't yet; that may take seconds.

        Raises:
            InvalidArgumentError: there is no backend of that name.
            UnsupportedError: its framework isn't installed; the message says how to install it.
                Or it is another package's, and that can't be imported.
        """
        with self._lock:
            backend = self._backends.get(name)
            if backend is None:
                backend = self._backends[name] = self._create(name)
            return backend

    def check(self, name: str) -> None:
        """See whether ``get`` can give a backend whose models run, without importing a framework.

        Raises:
            NaiadError: as of `get`.
        """
        if name not in _ENTRIES:
            self.get(name)
            return
        framework = _ENTRIES[name].framework
        if framework and importlib.util.find_spec(framework) is None:
            raise _not_installed(name)

    def _create(self, name: str) -> Backend:
        if name in _ENTRIES and _ENTRIES[name].has_choice:
            return _create_choice(name, _ENTRIES[name])
        if name in _ENTRIES:
            return make_in_process(name)
        if name in self._installed:
            return _create_installed(self._installed[name])
        file = self._file(name)
        if file is not None:
            module = importlib.import_module(_ENTRIES["python"].module)
            return cast("Backend", module.PythonBackend(file))
        advice = _ADVICE.get(name, f"Available backends: {', '.join(self.names)}")
        raise InvalidArgumentError(
            f"unable to find backend library for backend '{name}', try specifying runtime on the "
            f"model configuration. {advice}"
        )

    def _file(self, name: str) -> Path | None:
        """Of a backend written in Python."""
        # A name is of the config's choice, and must not lead elsewhere.
        if self._directory is None or Path(name).name != name:
            return None
        file = self._directory / name / "model.py"
        return file if file.is_file() else None


def make_in_process(name: str) -> Backend:
    """A backend of this package that runs models in this process.

    Raises:
        UnsupportedError: its framework isn't installed; the message says how to install it.
    """
    entry = _ENTRIES[name]
    try:
        module = importlib.import_module(entry.module)
    except ModuleNotFoundError as error:
        if error.name != entry.framework:
            raise
        raise _not_installed(name) from error
    return cast("Backend", getattr(module, entry.class_name)())


def _not_installed(name: str) -> UnsupportedError:
    entry = _ENTRIES[name]
    return UnsupportedError(
        f"backend '{name}' needs {entry.framework}, which is not installed; "
        f"run: pip install '{entry.install}'"
    )


def _create_choice(name: str, entry: _Entry) -> Backend:
    # Imported here and not above, since few servers start processes.
    choice = importlib.import_module("naiad.backends.child.choice")
    child = importlib.import_module("naiad.backends.child.backend")
    return cast(
        "Backend",
        choice.ProcessChoice(
            functools.partial(make_in_process, name),
            child.ChildBackend(name, entry.in_process_only),
        ),
    )


def _create_installed(point: EntryPoint) -> Backend:
    package = f" of package '{point.dist.name}'" if point.dist is not None else ""
    try:
        backend = point.load()()
    except Exception as error:  # another package's code may raise anything
        raise UnsupportedError(
            f"backend '{point.name}'{package} ({point.value}) can't be made: "
            f"{type(error).__name__}: {error}"
        ) from error
    for method in ("complete_config", "load"):
        if not callable(getattr(backend, method, None)):
            raise UnsupportedError(
                f"backend '{point.name}'{package} ({point.value}) is no backend: it has no method "
                f"'{method}'; see naiad.backends.base.Backend"
            )
    return cast("Backend", backend)
