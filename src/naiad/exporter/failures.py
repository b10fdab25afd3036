"""What a user's model raises, and how that is told."""

from typing import Final

# What a model raises when a shape or value does not suit it; anything else is not about the input.
MODEL_FAILURES: Final = (
    RuntimeError, ValueError, TypeError, IndexError, KeyError, AssertionError, AttributeError,
    ArithmeticError,
)  # fmt: skip


def first_line(error: BaseException) -> str:
    """The kind of an error and the first line of its text, for one sentence."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}".rstrip(": ")
