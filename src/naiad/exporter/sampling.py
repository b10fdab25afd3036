"""Inputs like the user's example, in other sizes and with other values."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from naiad.errors import InvalidArgumentError

AxisNames = Mapping[int, str]
"""Axis of one input -> name of its size."""


class Values(StrEnum):
    """How the values of an input are made."""

    EXAMPLE = "example"
    NEGATED = "example negated"
    NORMAL = "normal"
    UNIFORM = "uniform"


class Sampler:
    """Makes inputs for a model out of one example of them.

    Attributes:
        sizes: of each named axis in the example.
    """

    def __init__(
        self,
        example: Sequence[torch.Tensor],
        axes: Sequence[AxisNames],
        ranges: Mapping[int, tuple[float, float]],
        seed: int,
    ) -> None:
        """Take over an example.

        Args:
            example: the inputs.
            axes: for each input, its named axes.
            ranges: by position of the input, the lowest and highest value to draw.
            seed: of everything that is drawn.

        Raises:
            InvalidArgumentError: two axes of one name have different sizes, or one is empty.
        """
        self._example = tuple(example)
        self._axes = tuple(axes)
        self._ranges = ranges
        self._seed = seed
        self.sizes = _named_sizes(example, axes)

    def resize(self, sizes: Mapping[str, int]) -> list[torch.Tensor]:
        """The example's own values, repeated or cut to other sizes."""
        return [
            _resize(
                tensor, {axis: sizes.get(name, self.sizes[name]) for axis, name in names.items()}
            )
            for tensor, names in zip(self._example, self._axes, strict=True)
        ]

    def draw(
        self, sizes: Mapping[str, int], values: Values, index: int, *, keep_integers: bool = False
    ) -> list[torch.Tensor]:
        """New values of the example's kind.

        Args:
            sizes: of named axes, where they are not the example's.
            values: ``NORMAL`` with the example's mean and spread, or ``UNIFORM`` around zero as
                far as the example's largest magnitude. Integers are drawn from the example's
                range in both.
            index: another index gives other values, the same one the same.
            keep_integers: the example's integers instead, for models that not every combination
                suits (lengths beside padded text).
        """
        generator = np.random.default_rng([self._seed, index])
        drawn = []
        for position, tensor in enumerate(self.resize(sizes)):
            if keep_integers and not tensor.is_floating_point():
                drawn.append(tensor)
            else:
                drawn.append(
                    _draw(self._example[position], tensor.shape, values, generator,
                          self._ranges.get(position))
                )  # fmt: skip
        return drawn


def _named_sizes(example: Sequence[torch.Tensor], axes: Sequence[AxisNames]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for tensor, names in zip(example, axes, strict=True):
        for axis, name in names.items():
            size = tensor.shape[axis]
            if sizes.setdefault(name, size) != size:
                raise InvalidArgumentError(
                    f"the dynamic axis '{name}' is {sizes[name]} in one input of the example and "
                    f"{size} in another; axes of one name must have one size"
                )
            if size == 0:
                raise InvalidArgumentError(f"the dynamic axis '{name}' of the example is empty")
    return sizes


def _resize(tensor: torch.Tensor, sizes: Mapping[int, int]) -> torch.Tensor:
    for axis, size in sizes.items():
        tensor = tensor.index_select(axis, torch.arange(size) % tensor.shape[axis])
    return tensor.clone(memory_format=torch.contiguous_format)


def _draw(
    like: torch.Tensor,
    shape: Sequence[int],
    values: Values,
    generator: np.random.Generator,
    limits: tuple[float, float] | None,
) -> torch.Tensor:
    if like.dtype == torch.bool:
        return torch.from_numpy(np.asarray(generator.random(tuple(shape)) < 0.5))
    if not like.is_floating_point():
        return _draw_integers(like, shape, generator, limits)
    if limits is not None:
        array: npt.NDArray[Any] = generator.uniform(*limits, size=tuple(shape))
        return torch.from_numpy(np.asarray(array)).to(like.dtype)
    finite = like.double()[like.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    if values is Values.UNIFORM:
        array = generator.uniform(-(largest or 1.0), largest or 1.0, size=tuple(shape))
    else:
        mean = float(finite.mean()) if finite.numel() else 0.0
        spread = float(finite.std()) if finite.numel() > 1 else 0.0
        array = generator.normal(mean, spread or largest or 1.0, size=tuple(shape))
    return torch.from_numpy(np.asarray(array)).to(like.dtype)


def _draw_integers(
    like: torch.Tensor,
    shape: Sequence[int],
    generator: np.random.Generator,
    limits: tuple[float, float] | None,
) -> torch.Tensor:
    if limits is not None:
        lowest, highest = int(limits[0]), int(limits[1])
    elif like.numel():
        # Unsigned types have no min() in torch.
        numbers = like.numpy()
        lowest, highest = int(numbers.min()), int(numbers.max())
    else:
        lowest, highest = 0, 0
    dtype = like.numpy().dtype
    drawn = generator.integers(lowest, highest, size=tuple(shape), dtype=dtype, endpoint=True)
    return torch.from_numpy(np.asarray(drawn))
