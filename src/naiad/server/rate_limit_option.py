"""The values of ``--rate-limit`` and ``--rate-limit-resource``, as Triton spells them.

Source: server's ``docs/user_guide/rate_limiter.md``.
"""

from enum import StrEnum

from naiad.scheduling.rate_limiter import ResourceLimit


class RateLimit(StrEnum):
    """Whether executions wait for turns; ``execution_count`` gives them by how many there were."""

    OFF = "off"
    EXECUTION_COUNT = "execution_count"


def parse_resource_limit(text: str) -> ResourceLimit:
    """One limit, of every device where the text names none.

    Raises:
        ValueError: it isn't one.
    """
    name, *numbers = text.split(":")
    if not name or len(numbers) not in (1, 2) or not all(map(str.isdecimal, numbers)):
        raise ValueError(
            "option format is '<resource_name>:<count>:<device>' or "
            f"'<resource_name>:<count>', got '{text}'"
        )
    return ResourceLimit(name, *map(int, numbers))
