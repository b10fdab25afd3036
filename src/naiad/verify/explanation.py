"""The causes that a difference can have, and what was found out about one."""

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Why an answer differs. The values are what reports call it."""

    STALE_GOLDEN = "stale golden outputs"
    CHANGED_FILES = "files changed since the export"
    ANOTHER_SOURCE = "another source"
    TRAIN_MODE = "train mode"
    OTHER_WEIGHTS = "other weights"
    SWAPPED_INPUTS = "swapped inputs"
    WRONG_DATATYPE = "wrong datatype"
    LOST_DYNAMIC_DIM = "lost dynamic dim"
    BAKED_CONSTANT = "baked constant"
    BATCH_MIXING = "batch mixing"
    TIE_ORDER = "tie order"
    ROUNDING = "quantisation or reduced precision"
    FLOAT_NOISE = "float noise"
    NON_FINITE = "NaN or infinity"
    OUTPUT_ORDER = "output order"
    TRANSPOSED_LAYOUT = "transposed layout"
    RANDOM = "random operation"
    UNEXPLAINED = "unexplained"


HARMLESS = frozenset({Cause.TIE_ORDER, Cause.FLOAT_NOISE})
"""Causes that leave the answers equal: they are told, and fail nothing."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One cause of a difference.

    Attributes:
        cause: which.
        hop: where the difference shows first.
        sentence: what was done and what it showed.
    """

    cause: Cause
    hop: str
    sentence: str
