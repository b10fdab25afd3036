import pytest

from naiad.server.command_line import parse_arguments
from naiad.server.settings import BadOptionError, Settings


def parse(*arguments: str) -> Settings:
    return parse_arguments(["models", *arguments], {})


def test_there_is_no_cache_unless_it_is_asked_for() -> None:
    assert parse().cache_config == 0
    assert parse("--cache-config=local,size=1048576").cache_config == 1048576


def test_the_deprecated_option_is_the_size_alone() -> None:
    settings = parse("--response-cache-byte-size=4096")
    assert settings.cache_config == 4096
    assert settings.deprecated == ("--response-cache-byte-size is deprecated, use --cache-config",)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("redis,host=h", "unable to find cache 'redis'; this server has 'local'"),
        ("local", "expected local,size=BYTES, got 'local'"),
        ("local,bytes=5", "expected local,size=BYTES, got 'local,bytes=5'"),
        ("local,size=0", "with a size of at least 1, got 'local,size=0'"),
        ("local,size=1M", "with a size of at least 1, got 'local,size=1M'"),
        ("", "expected local,size=BYTES, got ''"),
    ],
)
def test_what_is_no_cache_is_refused(text: str, reason: str) -> None:
    with pytest.raises(BadOptionError, match=reason):
        parse(f"--cache-config={text}")
