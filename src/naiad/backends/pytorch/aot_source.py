"""What an AOTInductor package was compiled for, read from the source that it carries.

The compiled code takes any address and count for what it expects: a config that leaves a fixed
dim open, or has a narrower datatype, makes it read outside of the request's memory. The metadata
don't say what it expects. The C++ source, which torch packs beside the library, has a check of
each input, which is switched off when it runs and refuses a batch of one where the code can do it.
So the facts are taken from the text of that check. A package without it is taken as its config
says, as Triton takes all of them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from naiad.errors import InvalidArgumentError
from naiad.inference import datatypes
from naiad.inference.datatypes import Datatype
from naiad.model_config.schema import ModelConfig
from naiad.model_config.signature import ModelSignature, TensorSpec

_CHECK: Final = re.compile(r"void check_input_(\d+)\((.*?)^\}", re.DOTALL | re.MULTILINE)
_DATATYPE: Final = re.compile(r"_expected_dtype = aoti_torch_dtype_(\w+)\(\)")
_FIXED: Final = re.compile(r"if \((\d+) != \w+_size\[(\d+)\]\)")
_LIMIT: Final = re.compile(r"if \(\w+_size\[(\d+)\] > (\d+)\)")
_DATATYPES: Final = {
    "bool": datatypes.BOOL,
    "uint8": datatypes.UINT8,
    "int8": datatypes.INT8,
    "int16": datatypes.INT16,
    "int32": datatypes.INT32,
    "int64": datatypes.INT64,
    "float16": datatypes.FP16,
    "bfloat16": datatypes.BF16,
    "float32": datatypes.FP32,
    "float64": datatypes.FP64,
}


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the compiled code expects of one input.

    Attributes:
        datatype: None where the text doesn't tell.
        fixed: lengths by axis, with the batch axis.
        limits: greatest lengths by axis.
    """

    datatype: Datatype | None
    fixed: dict[int, int]
    limits: dict[int, int]


def read_expectations(source: str) -> dict[int, Expectation]:
    """The expectations that a package's source tells, by the number of the input."""
    found = {}
    for check in _CHECK.finditer(source):
        datatype = _DATATYPE.search(check[2])
        found[int(check[1])] = Expectation(
            None if datatype is None else _DATATYPES.get(datatype[1]),
            {int(axis): int(length) for length, axis in _FIXED.findall(check[2])},
            {int(axis): int(length) for axis, length in _LIMIT.findall(check[2])},
        )
    return found


def check_expectations(
    config: ModelConfig,
    signature: ModelSignature,
    names: Sequence[str],
    expectations: Mapping[int, Expectation],
) -> None:
    """Refuse a config that lets requests bring what the code was not compiled for.

    Args:
        config: of the model.
        signature: of the config.
        names: of the inputs, in the order of the package.
        expectations: of the package.

    Raises:
        InvalidArgumentError: with the input and what it has to be.
    """
    for index, name in enumerate(names):
        expected = expectations.get(index)
        if expected is not None:
            _check(config, signature.inputs[name], expected)


def _check(config: ModelConfig, spec: TensorSpec, expected: Expectation) -> None:
    if expected.datatype is not None and spec.datatype is not expected.datatype:
        raise InvalidArgumentError(
            f"unable to load model '{config.name}', configuration expects datatype "
            f"{spec.datatype.config_name} for input '{spec.name}', model provides "
            f"{expected.datatype.config_name}"
        )
    shape = list(spec.dims if spec.reshape is None else spec.reshape)
    # Up to so many rows of a batch; a model that batches takes one as well.
    if config.max_batch_size > 0:
        shape.insert(0, -1)
    for axis, length in expected.fixed.items():
        if axis < len(shape) and shape[axis] == length:
            continue
        if axis == 0 and config.max_batch_size == length == 1:
            continue
        raise _refusal(config, spec, shape, f"{length} elements on axis {axis}")
    if config.max_batch_size > expected.limits.get(0, config.max_batch_size):
        raise _refusal(config, spec, shape, f"at most {expected.limits[0]} on axis 0")


def _refusal(
    config: ModelConfig, spec: TensorSpec, shape: Iterable[int], wanted: str
) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"model '{config.name}', tensor '{spec.name}': the package was compiled for {wanted}, but "
        f"the model configuration lets requests have shape {list(shape)} with max_batch_size "
        f"{config.max_batch_size}. Write what it was compiled for into the config, or export the "
        "model with that axis dynamic and compile it again"
    )
