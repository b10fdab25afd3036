"""Example inputs by description, for models that come without one."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import torch

from naiad.errors import InvalidArgumentError
from naiad.source_model.tensors import torch_dtype

_FORM: Final = re.compile(r"(?P<name>.+):(?P<datatype>[A-Z]+\d*):(?P<shape>\d+(,\d+)*)?")


def draw_example(
    descriptions: Sequence[str], ranges: Mapping[str, tuple[float, float]], seed: int = 0
) -> dict[str, torch.Tensor]:
    """Tensors by argument name, from ``image:FP32:1,3,224,224``.

    Args:
        descriptions: ``NAME:DATATYPE:SHAPE``; nothing after the last colon is a scalar.
        ranges: by name, the lowest and highest value; floats are standard normal and integers 0
            or 1 where nothing is said.
        seed: of the values.

    Raises:
        InvalidArgumentError: a description is not of that form.
    """
    generator = torch.Generator().manual_seed(seed)
    example: dict[str, torch.Tensor] = {}
    for description in descriptions:
        form = _FORM.fullmatch(description)
        if form is None:
            raise InvalidArgumentError(
                f"'{description}' is not of the form NAME:DATATYPE:SHAPE; for example "
                "image:FP32:1,3,224,224 or input_ids:INT64:1,16"
            )
        if form["name"] in example:
            raise InvalidArgumentError(f"the input '{form['name']}' is described twice")
        shape = tuple(int(size) for size in (form["shape"] or "").split(",") if size)
        dtype = torch_dtype(form["datatype"], f"input '{form['name']}'")
        example[form["name"]] = _draw(shape, dtype, ranges.get(form["name"]), generator)
    return example


def _draw(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    limits: tuple[float, float] | None,
    generator: torch.Generator,
) -> torch.Tensor:
    if dtype.is_floating_point:
        if limits is None:
            return torch.randn(shape, generator=generator).to(dtype)
        lowest, highest = limits
        drawn = torch.rand(shape, generator=generator, dtype=torch.float64)
        return (drawn * (highest - lowest) + lowest).to(dtype)
    first, last = (0, 1) if limits is None else (int(limits[0]), int(limits[1]))
    return torch.randint(first, last + 1, shape, generator=generator).to(dtype)
