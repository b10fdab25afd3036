import pytest

from naiad.errors import InvalidArgumentError
from naiad.model_config.text_format import parse_config
from naiad.repository.version_policy import select_versions


@pytest.mark.parametrize(
    ("policy", "selected"),
    [
        ("", (10,)),
        ("version_policy { }", (10,)),
        ("version_policy { latest { num_versions: 2 } }", (2, 10)),
        ("version_policy { latest { num_versions: 9 } }", (1, 2, 10)),
        ("version_policy { all { } }", (1, 2, 10)),
        ("version_policy { specific { versions: [ 2, 7, 1 ] } }", (1, 2)),
    ],
)
def test_versions_are_picked_by_number(policy: str, selected: tuple[int, ...]) -> None:
    assert select_versions(parse_config(policy, "text"), [2, 10, 1]) == selected


@pytest.mark.parametrize(
    ("policy", "available"),
    [
        ("", []),
        ("version_policy { all { } }", []),
        ("version_policy { latest { num_versions: 0 } }", [1]),
        ("version_policy { specific { versions: [ 7 ] } }", [1]),
    ],
)
def test_a_policy_that_picks_nothing_is_an_error(policy: str, available: list[int]) -> None:
    config = parse_config(f'name: "m" {policy}', "text")

    with pytest.raises(InvalidArgumentError) as caught:
        select_versions(config, available)

    assert caught.value.message == (
        "at least one version must be available under the version policy of model 'm'"
    )
