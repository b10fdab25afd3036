"""Positions of fields in the text of a config."""

import pytest

from naiad.model_config.config_text import ConfigText, FieldPath

TEXT = """\
# name: "not this one"
name: "m"  max_batch_size: 8
input [
  { name: "A" dims: [ 3, -1 ] },
  # between
  {
    name: "B" 'side by side'
    dims: 4
    dims: 5
  }
]
output { name: "C"; dims: [ ] }
output <
  name: "D"
>
parameters { key: "k" value { string_value: "v }" } }
version_policy: { specific { versions: [ 1 ] } }
"""


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (("name",), (2, 1)),
        (("max_batch_size",), (2, 12)),
        (("input",), (3, 1)),
        (("input", 0), (4, 3)),
        (("input", 0, "dims"), (4, 15)),
        (("input", 1), (6, 3)),
        (("input", 1, "name"), (7, 5)),
        (("input", 1, "dims"), (8, 5)),
        (("output", 0), (12, 1)),
        (("output", 0, "dims"), (12, 21)),
        (("output", 1), (13, 1)),
        (("output", 1, "name"), (14, 3)),
        (("version_policy", "specific", "versions"), (17, 30)),
    ],
)
def test_field(path: FieldPath, place: tuple[int, int]) -> None:
    assert ConfigText(TEXT).find(path) == place


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (("backend",), (1, 1)),
        (("input", 0, "data_type"), (4, 3)),
        (("input", 1, "data_type"), (6, 3)),
        (("input", 2), (3, 1)),
        (("version_policy", "latest"), (17, 1)),
        ((), (1, 1)),
    ],
)
def test_field_that_is_not_there_is_where_it_should_be(
    path: FieldPath, place: tuple[int, int]
) -> None:
    assert ConfigText(TEXT).find(path) == place


def test_has() -> None:
    text = ConfigText(TEXT)

    assert text.has("max_batch_size")
    assert not text.has("dims")


@pytest.mark.parametrize("text", ["input {", "dims: [ 1", "= 3", "name:", "input [ { ]"])
def test_text_that_does_not_parse_has_no_fields(text: str) -> None:
    assert ConfigText(text).fields == ()
    assert ConfigText(text).find(("name",)) == (1, 1)
