import pytest

from naiad.errors import InvalidArgumentError
from naiad.server.cache_option import CacheChoice
from naiad.server.command_line import parse_arguments
from naiad.server.settings import BadOptionError, Settings, read_redis_login

REDIS = ("--cache-config=redis,host=h", "--cache-config=redis,port=6379")


def parse(*arguments: str) -> Settings:
    return parse_arguments(["models", *arguments], {})


def test_there_is_no_cache_unless_it_is_asked_for() -> None:
    assert parse().cache() == CacheChoice()
    assert parse("--cache-config=local,size=1048576").cache() == CacheChoice(1048576)


def test_the_deprecated_option_is_the_size_alone() -> None:
    settings = parse("--response-cache-byte-size=4096")
    assert settings.cache() == CacheChoice(4096)
    assert settings.deprecated == ("--response-cache-byte-size is deprecated, use --cache-config",)


def test_redis_is_described_by_several_options() -> None:
    settings = parse(*REDIS, "--cache-config=redis,password=a,b=c")
    assert settings.cache().redis == {"host": "h", "port": "6379", "password": "a,b=c"}
    variables = {"TRITONCACHE_REDIS_PASSWORD": "p", "TRITONCACHE_REDIS_USERNAME": "u"}
    assert read_redis_login(variables) == ("u", "p")
    assert read_redis_login({}) == ("", "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("local", "expected local,size=BYTES or redis,host=HOST and redis,port=PORT, got 'local'"),
        ("local,bytes=5", "got 'local,bytes=5'"),
        ("local,size=0", "with a size of at least 1, got 'local,size=0'"),
        ("local,size=1M", "with a size of at least 1, got 'local,size=1M'"),
        ("redis", "expected local,size=BYTES or redis"),
        ("redis,host=h", "Must at a minimum specify host and port of Redis"),
        ("", "expected local,size=BYTES or redis"),
    ],
)
def test_what_is_no_cache_is_refused(text: str, reason: str) -> None:
    with pytest.raises(BadOptionError, match=reason):
        parse(f"--cache-config={text}")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--cache-config=local,size=8192", *REDIS), "multiple cache configurations"),
        (
            ("--response-cache-byte-size=1", "--cache-config=local,size=8192"),
            "Incompatible flags --response-cache-byte-size and --cache-config",
        ),
        (
            ("--cache-config=local,size=8192", "--cache-config=redis,key=value"),
            "multiple cache configurations",
        ),
        ((*REDIS, "--cache-config=redis,speed=1"), "Redis has no setting 'speed'; it has host, "),
        ((REDIS[0], "--cache-config=redis,port=nonexistent"), "must be a number"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(BadOptionError, match=reason):
        parse(*arguments)


def test_a_cache_that_there_is_not() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse("--cache-config=disk,size=5")
    assert caught.value.message == (
        "unable to find 'libtritoncache_disk.so' for cache. This server has the caches 'local' and "
        "'redis'"
    )
