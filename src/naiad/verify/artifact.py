"""The exported file alone, and the eager model: straight onnxruntime or torch, no server code.

The two libraries are imported where they are needed: proving an ONNX model on a machine without
torch must work, and so must the reverse.
"""

import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from naiad.errors import InvalidArgumentError, NaiadError, UnsupportedError
from naiad.inference.comparison import Array, Outputs
from naiad.repository.golden import GoldenCase
from naiad.verify.hops import Hop, HopFailedError
from naiad.verify.text import text_as_bytes

ARTIFACT_HOP: Final = "exported file alone"


def open_artifact(path: Path, inputs: Mapping[str, str], output_names: Sequence[str]) -> Hop:
    """Load an exported model file by its suffix.

    Args:
        path: ``.onnx``, ``.pt`` (TorchScript) or ``.pt2`` (``torch.export``).
        inputs: name -> v2 datatype, in the order of the forward method's arguments; the order
            is used where the file knows its inputs by position only.
        output_names: in the order the model returns them, likewise.

    Raises:
        UnsupportedError: another suffix, or the library that runs it is not installed.
        InvalidArgumentError: the file doesn't load.
    """
    openers: Mapping[str, Callable[[], Hop]] = {
        ".onnx": lambda: OnnxFileHop(path),
        ".pt": lambda: TorchHop(ARTIFACT_HOP, _load_torchscript(path), inputs, output_names),
        ".pt2": lambda: TorchHop(ARTIFACT_HOP, _load_program(path), inputs, output_names),
    }
    opener = openers.get(path.suffix)
    if opener is None:
        msg = f"'{path.name}' can't be run alone: verify knows .onnx, .pt and .pt2 files"
        raise UnsupportedError(msg)
    try:
        return opener()
    except ImportError as error:
        msg = f"running '{path.name}' alone needs a library that is missing here: {error}"
        raise UnsupportedError(msg) from error
    except NaiadError:
        raise
    except Exception as error:  # loaders raise anything, from pickle's errors to protobuf's
        msg = f"'{path}' does not load: {error}"
        raise InvalidArgumentError(msg) from error


class OnnxFileHop:
    """An ONNX file in a default onnxruntime session on the CPU."""

    name = ARTIFACT_HOP

    def __init__(self, model: Path | bytes) -> None:
        import onnxruntime  # noqa: PLC0415  # see the module's docstring

        self._session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        self._output_names = [output.name for output in self._session.get_outputs()]

    def refusal(self) -> str:
        """Nothing stands in the way."""
        return ""

    def run(self, case: GoldenCase) -> Outputs:
        """Run the session on the case's inputs, by name."""
        try:
            values = self._session.run(None, dict(case.inputs))
        except Exception as error:  # onnxruntime's own errors derive from Exception
            raise HopFailedError(str(error)) from error
        return {
            name: text_as_bytes(value)
            for name, value in zip(self._output_names, values, strict=True)
        }


class TorchHop:
    """A callable of torch (eager module, TorchScript or exported program), inputs by position."""

    def __init__(
        self,
        name: str,
        model: Callable[..., Any],
        inputs: Mapping[str, str],
        output_names: Sequence[str],
    ) -> None:
        import torch  # noqa: PLC0415  # see the module's docstring

        self.name = name
        self._torch: Any = torch
        self._model = model
        self._inputs = dict(inputs)
        self._output_names = tuple(output_names)

    def refusal(self) -> str:
        """Nothing stands in the way."""
        return ""

    def arguments(self, case: GoldenCase) -> list[Any]:
        """The case's inputs as tensors of torch, in the order of the model's."""
        return [
            self._to_torch(case.inputs[name], datatype) for name, datatype in self._inputs.items()
        ]

    def run(self, case: GoldenCase) -> Outputs:
        """Call the model without gradients and name what it returns."""
        try:
            with self._torch.no_grad(), warnings.catch_warnings():
                # What torch warns of was said at the export; here it would break into the table.
                warnings.simplefilter("ignore")
                answer = self._model(*self.arguments(case))
        except Exception as error:  # guards of .pt2 raise AssertionError, modules anything
            raise HopFailedError(f"{type(error).__name__}: {error}") from error
        return self._name_outputs(answer)

    def _to_torch(self, array: Array, datatype: str) -> Any:
        # A copy: golden arrays are read-only views, and a model may write to its inputs.
        own = np.array(array)
        if datatype == "BF16":
            return self._torch.from_numpy(own.view(np.int16)).view(self._torch.bfloat16)
        return self._torch.from_numpy(own)

    def to_numpy(self, tensor: Any) -> Array:
        """A tensor of torch as an array; BF16 as bit patterns in uint16."""
        detached = tensor.detach().cpu()
        if detached.dtype == self._torch.bfloat16:
            patterns: Array = detached.view(self._torch.int16).numpy().view(np.uint16)
            return patterns
        plain: Array = detached.resolve_conj().numpy()
        return plain

    def _name_outputs(self, answer: Any) -> Outputs:
        if isinstance(answer, Mapping) and set(answer) == set(self._output_names):
            return {name: self.to_numpy(answer[name]) for name in self._output_names}
        leaves = list(_leaves(answer))
        if len(leaves) != len(self._output_names):
            msg = (
                f"the model returned {len(leaves)} tensors, the golden cases have "
                f"{len(self._output_names)}"
            )
            raise HopFailedError(msg)
        return {
            name: self.to_numpy(leaf) for name, leaf in zip(self._output_names, leaves, strict=True)
        }


def _load_torchscript(path: Path) -> Callable[..., Any]:
    import torch  # noqa: PLC0415  # see the module's docstring

    with warnings.catch_warnings():
        # torch calls torch.jit deprecated on each use; the file format is what the user chose.
        warnings.simplefilter("ignore", DeprecationWarning)
        load: Callable[..., Callable[..., Any]] = torch.jit.load
        return load(str(path), map_location="cpu")


def _load_program(path: Path) -> Callable[..., Any]:
    import torch  # noqa: PLC0415  # see the module's docstring

    if is_compiled(path):
        import torch._inductor  # noqa: PLC0415  # four seconds that only a compiled package needs

        compiled: Callable[..., Any] = torch._inductor.aoti_load_package(str(path))
        return compiled
    module: Callable[..., Any] = torch.export.load(path).module()
    return module


def is_compiled(path: Path) -> bool:
    """Whether a ``.pt2`` file holds machine code by AOTInductor, not an exported program."""
    with zipfile.ZipFile(path) as package:
        return any("data/aotinductor/" in name for name in package.namelist())


def _leaves(answer: Any) -> Iterator[Any]:
    """Tensors of a nested answer, depth first; the None of an optional output is dropped."""
    if isinstance(answer, Mapping):
        answer = tuple(answer.values())
    if isinstance(answer, (list, tuple)):
        for part in answer:
            yield from _leaves(part)
    elif answer is not None:
        yield answer
