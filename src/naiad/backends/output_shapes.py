"""Outputs whose real shape is not the one that the model declares."""

import logging
from collections.abc import Sequence
from typing import Final

from naiad.backends.parameters import read_boolean
from naiad.errors import InternalError
from naiad.model_config.schema import ModelConfig
from naiad.model_config.signature import ModelSignature

STRICT_PARAMETER: Final = "strict_output_shapes"

_log = logging.getLogger(__name__)


class OutputShapes:
    """Holds the shapes that a model gives against those of its config.

    A shape that differs is passed on, as Triton does, since the data is right and files that
    declare nonsense are common. The first time that an output does so is logged. With the
    parameter ``strict_output_shapes`` in the model config it is an error instead.

    Args:
        signature: of the model.
        config: of the model, for the parameter.
    """

    __slots__ = ("_axis", "_dims", "_is_strict", "_model_name", "_noted")

    def __init__(self, signature: ModelSignature, config: ModelConfig) -> None:
        self._model_name = signature.name
        self._axis = 1 if signature.max_batch_size > 0 else 0
        self._is_strict = bool(read_boolean(config, STRICT_PARAMETER))
        self._dims = {
            spec.name: spec.dims if spec.reshape is None else spec.reshape
            for spec in signature.outputs.values()
        }
        # Their elements alone matter; the config's dims are those of the pieces.
        for setting in config.batch_output:
            for name in setting.target_name:
                self._dims.pop(name, None)
        self._noted: set[str] = set()

    def check(self, name: str, shape: Sequence[int]) -> None:
        """Note the shape of one output, with the batch axis; any thread may call it.

        Raises:
            InternalError: it differs and the config wants to know.
        """
        dims = self._dims.get(name)
        if dims is None:
            return
        rest = shape[self._axis :]
        if len(rest) == len(dims):
            for length, dim in zip(rest, dims, strict=True):
                if dim not in (-1, length):
                    break
            else:
                return
        self._note(name, dims, rest)

    def _note(self, name: str, dims: Sequence[int], rest: Sequence[int]) -> None:
        text = (
            f"output '{name}' of model '{self._model_name}' has the shape {_format(rest)}, which "
            f"its config declares as {_format(dims)}"
        )
        if self._is_strict:
            raise InternalError(
                f"{text}; parameter '{STRICT_PARAMETER}' makes that an error. Correct dims in the "
                "config, or the shapes that the model file declares"
            )
        if name not in self._noted:
            self._noted.add(name)
            _log.warning("%s; it is passed on as it is, and this is said once", text)


def _format(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"
