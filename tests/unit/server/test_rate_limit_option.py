import pytest

from naiad.scheduling.rate_limiter import ResourceLimit
from naiad.server.command_line import parse_arguments
from naiad.server.rate_limit_option import RateLimit
from naiad.server.settings import BadOptionError, Settings


def parse(*arguments: str) -> Settings:
    return parse_arguments(["models", *arguments], {})


def test_rate_limits() -> None:
    assert parse().rate_limit is RateLimit.OFF
    settings = parse(
        "--rate-limit=execution_count", "--rate-limit-resource=R:3", "--rate-limit-resource=S:4:1"
    )
    assert settings.rate_limit is RateLimit.EXECUTION_COUNT
    assert settings.rate_limit_resource == (ResourceLimit("R", 3), ResourceLimit("S", 4, 1))


@pytest.mark.parametrize("text", ["R", "R:", ":3", "R:x", "R:1:2:3", "R:-1"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(BadOptionError, match="option format is '<resource_name>:<count>:<device>'"):
        parse(f"--rate-limit-resource={text}")
