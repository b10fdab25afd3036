"""The states of a model version, as Triton names them."""

from enum import StrEnum


class ModelState(StrEnum):
    """Where a model version is in its life; the repository index shows these words."""

    UNKNOWN = "UNKNOWN"
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"
