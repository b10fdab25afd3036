import pytest

from naiad.access.restricted_apis import Api, RestrictedApis, is_secret, parse_restricted_group


def parse(text: str) -> RestrictedApis:
    return RestrictedApis([parse_restricted_group(text, "http-restricted-api", "api")])


def test_a_group_of_apis_needs_its_header() -> None:
    restricted = parse("health,shared-memory:Admin=a:b=c")
    assert restricted.headers == {
        Api.HEALTH: ("Admin", "a:b=c"),
        Api.SHARED_MEMORY: ("Admin", "a:b=c"),
    }
    assert restricted.missing_key(Api.HEALTH, {}) == "Admin"
    assert restricted.missing_key(Api.HEALTH, {b"admin": b"a:b=d"}) == "Admin"
    assert restricted.missing_key(Api.HEALTH, {b"admin": b"a:b=c"}) is None
    assert restricted.missing_key(Api.INFERENCE, {}) is None


def test_every_api_of_triton_can_be_restricted() -> None:
    names = (
        "health,metadata,inference,shared-memory,model-config,model-repository,statistics,trace,"
        "logging"
    )
    assert set(parse(f"{names}:k=v").headers) == set(Api)


@pytest.mark.parametrize("text", ["", "health", "health:k", "health:=v", "health:k=", ":k=v"])
def test_another_form_is_refused_without_showing_the_secret(text: str) -> None:
    with pytest.raises(ValueError, match="option format is '<api>,<api>:<key>=<value>'") as caught:
        parse(text)
    assert not str(caught.value).endswith(text or "x")


@pytest.mark.parametrize("name", ["model-reposit", "", "HEALTH"])
def test_an_unknown_api_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"^unknown restricted api '{name}'"):
        parse(f"health,{name}:k=v")


@pytest.mark.parametrize("key", ["a b", "ä", "a("])
def test_a_key_that_no_header_can_have_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="can not be the name of a header"):
        parse(f"health:{key}=v")


@pytest.mark.parametrize(
    "texts", [("health:k=v", "metadata,health:k2=v2"), ("health,health:k=v",), ("trace:k=v",) * 2]
)
def test_an_api_is_in_one_group_only(texts: tuple[str, ...]) -> None:
    groups = [
        parse_restricted_group(text, "grpc-restricted-protocol", "protocol") for text in texts
    ]
    with pytest.raises(
        ValueError,
        match=r"^restricted protocol .(health|trace). can not be specified in multiple config",
    ):
        RestrictedApis(groups, "protocol")


def test_the_secret_is_not_shown() -> None:
    group = parse_restricted_group("health:k=sesame", "http-restricted-api", "api")
    assert "sesame" not in repr(group)


@pytest.mark.parametrize("given", [None, b"", b"sesam", b"sesamee", b"Sesame", b"\xff"])
def test_only_the_secret_is_the_secret(given: bytes | None) -> None:
    assert is_secret(b"sesame", "sesame")
    assert is_secret("sésame".encode(), "sésame")
    assert not is_secret(given, "sesame")
