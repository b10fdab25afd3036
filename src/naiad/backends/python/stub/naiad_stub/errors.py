"""The exception that a model meets."""

from __future__ import annotations


class TritonModelException(Exception):  # noqa: N818 - Triton's name
    """What a model asked for can't be done."""
