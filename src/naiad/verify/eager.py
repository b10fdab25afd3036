"""The user's module, asked again: in eval mode as it is served, and in train mode as a suspect."""

import copy
from typing import Any, Final

from naiad.errors import InvalidArgumentError
from naiad.repository.golden import Manifest
from naiad.source_model.evaluation import evaluation
from naiad.source_model.model import FlatModel, flatten_model
from naiad.source_model.reference import load_source
from naiad.verify.artifact import TorchHop
from naiad.verify.hops import Hop

EAGER_HOP: Final = "PyTorch eager again"
TRAIN_HOP: Final = "PyTorch eager in train mode"


def open_source(source: str, example: str | None, manifest: Manifest) -> tuple[Hop, Hop]:
    """The module behind ``MODULE:CALLABLE`` as two hops: eval mode, train mode.

    Args:
        source: as for ``naiad export``.
        example: ``MODULE:CALLABLE`` of the example inputs, where ``source`` has none.
        manifest: of the exported version; its inputs are matched to forward's by their order.

    Raises:
        NotFoundError: there is no such callable.
        InvalidArgumentError: it gives no module, or one with other inputs.
    """
    model = load_source(source, example)
    names = [tensor.name for tensor in manifest.inputs]
    if len(names) != len(model.input_names):
        msg = (
            f"'{source}' takes the inputs {', '.join(model.input_names)}, the exported model "
            f"{', '.join(names)}: this is not the model that was exported"
        )
        raise InvalidArgumentError(msg)
    flat = flatten_model(model, names, has_batch=manifest.max_batch_size > 0)
    inputs = {tensor.name: tensor.datatype for tensor in manifest.inputs}
    outputs = [tensor.name for tensor in manifest.outputs]

    def answer_in_eval_mode(*tensors: Any) -> Any:
        with evaluation(flat.model):
            return flat(*tensors)

    return (
        TorchHop(EAGER_HOP, answer_in_eval_mode, inputs, outputs),
        TorchHop(TRAIN_HOP, _train_mode_of(flat), inputs, outputs),
    )


def _train_mode_of(flat: FlatModel) -> Any:
    def answer_in_train_mode(*tensors: Any) -> Any:
        # A new copy each time: a call in train mode moves the running statistics.
        return copy.deepcopy(flat).train()(*tensors)

    return answer_in_train_mode
