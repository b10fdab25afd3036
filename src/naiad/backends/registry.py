"""Which backends there are, each imported when the first model asks for it."""

import importlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, cast

from naiad.backends.base import Backend
from naiad.errors import InvalidArgumentError, UnsupportedError


@dataclass(frozen=True, slots=True)
class _Entry:
    module: str
    class_name: str
    framework: str = ""
    install: str = ""


_ENTRIES: Final[Mapping[str, _Entry]] = MappingProxyType(
    {
        "identity": _Entry("naiad.backends.identity.backend", "IdentityBackend"),
        "onnxruntime": _Entry(
            "naiad.backends.onnxruntime.backend", "OnnxRuntimeBackend", "onnxruntime", "naiad"
        ),
        "pytorch": _Entry(
            "naiad.backends.pytorch.backend", "PyTorchBackend", "torch", "naiad[torch]"
        ),
    }
)


class BackendRegistry:
    """The backends of one server; each is made once, when it is first asked for."""

    def __init__(self) -> None:
        self._backends: dict[str, Backend] = {}
        # Models load side by side in threads.
        self._lock = threading.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        """Every backend that a model config may name."""
        return tuple(sorted(_ENTRIES))

    @property
    def loaded_names(self) -> tuple[str, ...]:
        """The backends that models asked for so far."""
        return tuple(sorted(self._backends))

    def module_name(self, name: str) -> str:
        """Where a backend of `names` is, in Python's terms."""
        return _ENTRIES[name].module

    def get(self, name: str) -> Backend:
        """The backend ``name``, imported now if it wasn't yet; that may take seconds.

        Raises:
            InvalidArgumentError: there is no backend of that name.
            UnsupportedError: its framework isn't installed; the message says how to install it.
        """
        with self._lock:
            backend = self._backends.get(name)
            if backend is None:
                backend = self._backends[name] = _create(name)
            return backend


def _create(name: str) -> Backend:
    entry = _ENTRIES.get(name)
    if entry is None:
        raise InvalidArgumentError(
            f"unable to find backend library for backend '{name}', try specifying runtime on the "
            f"model configuration. Available backends: {', '.join(sorted(_ENTRIES))}"
        )
    try:
        module = importlib.import_module(entry.module)
    except ModuleNotFoundError as error:
        if error.name != entry.framework:
            raise
        raise UnsupportedError(
            f"backend '{name}' needs {entry.framework}, which is not installed; "
            f"run: pip install '{entry.install}'"
        ) from error
    return cast("Backend", getattr(module, entry.class_name)())
