"""Imports ``model.py`` and calls what it defines."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import json
import os
import sys
import threading
import traceback
import types
from typing import TYPE_CHECKING, Any

from . import pb_utils
from .auto_complete import ModelConfig
from .errors import TritonModelException
from .host import binding
from .pb_utils import InferenceRequest, InferenceResponse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine, Mapping, Sequence

_MODULE = "triton_python_backend_utils"
_package_numbers = itertools.count(1)
# The path and the table of modules are the process's.
_import_lock = threading.Lock()


class ModelError(Exception):
    """A model did not do what it should.

    Attributes:
        details: for the log; the traceback, where there is one.
        code: of `pb_utils.TritonError`.
    """

    def __init__(
        self, message: str, details: str = "", code: int = pb_utils.TritonError.INTERNAL
    ) -> None:
        super().__init__(message)
        self.details = details
        self.code = code


class ModelFile:
    """The class of a model file, and the one object of it.

    Args:
        path: of the file.
        model_name: for texts.
        instance_name: for texts.
        is_shared: other models run in this process, too.
    """

    def __init__(
        self, path: str, model_name: str, instance_name: str, *, is_shared: bool = False
    ) -> None:
        self._is_shared = is_shared
        self._path = path
        self._model_name = model_name
        self._instance_name = instance_name
        self._class: Any = None
        self._model: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # A task that nobody refers to may be collected before it is done.
        self._running: set[Any] = set()

    def load(self) -> None:
        """Import the file.

        Raises:
            ModelError: that failed, or it has no ``TritonPythonModel``.
        """
        if not os.path.isfile(self._path):
            raise ModelError(f"Python model file not found in '{self._path}'")
        sys.modules[_MODULE] = pb_utils
        sys.modules["c_python_backend_utils"] = pb_utils
        try:
            module = self._import_shared() if self._is_shared else self._import()
        except BaseException as error:  # a model may say sys.exit()
            raise _model_error(error) from error
        self._class = getattr(module, "TritonPythonModel", None)
        if self._class is None:
            name = os.path.basename(self._path)
            raise ModelError(f"model file '{name}' defines no class 'TritonPythonModel'")

    def _import(self) -> Any:
        """As Triton does it: ``from helper import x`` and ``from .helper import x`` both work."""
        folder, name = os.path.split(self._path)
        parent, version = os.path.split(folder)
        sys.path[:0] = [folder, parent]
        return importlib.import_module(f"{version}.{_stem(name)}")

    def _import_shared(self) -> Any:
        """Beside other models: what belongs to this one must not be found by the next."""
        folder, name = os.path.split(self._path)
        package = types.ModuleType(f"naiad_model_{next(_package_numbers)}")
        package.__path__ = [folder]
        with _import_lock:
            known = set(sys.modules)
            sys.modules[package.__name__] = package
            path = [folder, os.path.dirname(folder)]
            sys.path[:0] = path
            try:
                return importlib.import_module(f"{package.__name__}.{_stem(name)}")
            finally:
                for entry in path:
                    sys.path.remove(entry)
                for found in set(sys.modules) - known:
                    file = getattr(sys.modules[found], "__file__", None) or ""
                    is_own = found.partition(".")[0] == package.__name__
                    if file.startswith(folder + os.sep) and not is_own:
                        del sys.modules[found]

    def complete(self, config: str) -> str:
        """Let the model complete its config; both are JSON.

        Raises:
            ModelError: it failed, or returned something else.
        """
        given = ModelConfig(config)
        complete = getattr(self._class, "auto_complete_config", None)
        if complete is None:
            return config
        try:
            completed = complete(given)
        except BaseException as error:  # a model may say sys.exit()
            raise _model_error(error) from error
        if not isinstance(completed, ModelConfig):
            raise ModelError(
                f"auto_complete_config function in model '{self._model_name}' must return a valid "
                "pb.ModelConfig object."
            )
        return json.dumps(completed.as_dict())

    def initialize(self, arguments: Mapping[str, str]) -> None:
        """Make the model's object.

        Raises:
            ModelError: it failed.
        """
        try:
            self._model = self._class()
            if hasattr(self._model, "initialize"):
                self._model.initialize(dict(arguments))
        except BaseException as error:  # a model may say sys.exit()
            raise _model_error(error) from error

    def has_readiness(self) -> bool:
        """Whether the model says itself if it is ready."""
        return hasattr(self._model, "is_ready")

    def is_ready(self) -> bool:
        """What the model says; called by a thread of its own.

        Raises:
            ModelError: it failed, or says neither.
        """
        try:
            answer = self._model.is_ready()
            if asyncio.iscoroutine(answer):
                answer = asyncio.run(answer)
        except BaseException as error:  # a model may say sys.exit()
            raise _model_error(error) from error
        if not isinstance(answer, bool):
            raise ModelError("is_ready() must return a boolean value")
        return answer

    def execute(
        self, requests: list[InferenceRequest], *, is_decoupled: bool
    ) -> list[tuple[InferenceRequest, InferenceResponse]]:
        """Run the model on a batch.

        Returns:
            The responses that it returned; others may have gone by response senders.

        Raises:
            ModelError: it failed, and with it every request of the batch that is not answered.
        """
        if not hasattr(self._model, "execute"):
            raise ModelError(f"Python model {self._path} does not implement `execute` method.")
        try:
            returned = self._model.execute(requests)
            if asyncio.iscoroutine(returned):
                if is_decoupled:
                    self._start(returned, requests)
                    return []
                returned = self._wait_for(returned)
            return self._check(requests, returned, is_decoupled=is_decoupled)
        except ModelError:
            raise
        except BaseException as error:  # a model may say sys.exit()
            raise _model_error(error) from error

    def finalize(self) -> None:
        """Let the model clean up.

        Raises:
            ModelError: it failed.
        """
        try:
            if hasattr(self._model, "finalize"):
                self._model.finalize()
        except BaseException as error:  # a model may say sys.exit()
            raise _model_error(error) from error
        finally:
            self._model = None

    def _check(
        self, requests: Sequence[InferenceRequest], returned: Any, *, is_decoupled: bool
    ) -> list[tuple[InferenceRequest, InferenceResponse]]:
        if returned is None:
            return []
        if is_decoupled:
            raise ModelError(
                f"Python model '{self._instance_name}' is using the decoupled mode and the execute "
                "function must return None."
            )
        if not isinstance(returned, list):
            raise ModelError(
                f"Expected a list in the execute return, found type '{type(returned)}'."
            )
        if len(returned) != len(requests):
            raise ModelError(
                "Number of InferenceResponse objects do not match the number of InferenceRequest "
                f"objects. InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) "
                f"size is:{len(returned)}\n"
            )
        pairs = []
        for request, response in zip(requests, returned, strict=True):
            if response is None:
                continue
            if request._release_flags == pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE:
                raise ModelError(
                    "Expected a None object in the execute function return list for reschduled "
                    "request."
                )
            if not isinstance(response, InferenceResponse):
                raise ModelError(
                    "Expected an 'InferenceResponse' object in the execute function return list, "
                    f"found type '{type(response)}'."
                )
            if request._answering is not None:
                request._answering.note(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            pairs.append((request, response))
        return pairs

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(
                target=self._loop.run_forever, name="model-event-loop", daemon=True
            ).start()
        return self._loop

    def _wait_for(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._event_loop()).result()

    def _start(self, coroutine: Coroutine[Any, Any, Any], requests: list[InferenceRequest]) -> None:
        future = asyncio.run_coroutine_threadsafe(
            self._run(coroutine, requests), self._event_loop()
        )
        self._running.add(future)
        future.add_done_callback(self._running.discard)

    async def _run(self, coroutine: Awaitable[Any], requests: list[InferenceRequest]) -> None:
        try:
            self._check(requests, await coroutine, is_decoupled=True)
        except Exception as error:  # noqa: BLE001 - a model may raise anything
            failure = error if isinstance(error, ModelError) else _model_error(error)
            message = failure_text(self._instance_name, failure)
            binding.get().log(
                pb_utils.LogLevel.ERROR, "\n".join(filter(None, (message, failure.details)))
            )
            for request in requests:
                _fail(request, message)


def _stem(name: str) -> str:
    return name[: -len(".py")] if name.endswith(".py") else name


def failure_text(instance_name: str, error: ModelError) -> str:
    """What the clients of a failed batch read."""
    return f"Failed to process the request(s) for model '{instance_name}', message: {error}"


def _fail(request: InferenceRequest, message: str) -> None:
    response = InferenceResponse(error=pb_utils.TritonError(message))
    with contextlib.suppress(TritonModelException):  # the model has answered it
        request.get_response_sender().send(
            response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        )


def _model_error(error: BaseException) -> ModelError:
    """An error whose text is as Triton's begins, with the traceback apart."""
    return ModelError(f"{type(error).__name__}: {error}", traceback.format_exc().strip())
