from pathlib import Path

import pytest
from tests.support.repository_builder import RepositoryBuilder

from naiad.errors import InternalError, InvalidArgumentError, UnsupportedError
from naiad.model_config.schema import ModelConfig
from naiad.model_config.text_format import ConfigSyntaxError, parse_config
from naiad.repository import layout
from naiad.repository.layout import (
    ModelFolder,
    doubt_repository,
    find_model,
    list_artifacts,
    read_config,
    read_labels,
    scan_model,
    scan_repository,
)


@pytest.fixture
def builder(tmp_path: Path) -> RepositoryBuilder:
    return RepositoryBuilder(tmp_path / "models")


def _folder(builder: RepositoryBuilder, name: str = "m") -> ModelFolder:
    return scan_model(builder.path / name)


def test_models_and_versions_are_found(builder: RepositoryBuilder) -> None:
    builder.add_model("b", "", versions=(10, 2))
    builder.add_model("a", None, versions=())
    builder.add_model(".hidden", "")
    (builder.path / "README.md").write_text("not a model")

    first, second = scan_repository(builder.path)

    assert first == ModelFolder("a", builder.path / "a", ())
    assert second.name == "b"
    assert second.versions == (2, 10)
    assert second.version_path(2) == builder.path / "b" / "2"
    assert find_model(builder.path, "b") == second


@pytest.mark.parametrize("name", [".hidden", "README.md", "nope", "..", "b/2", ""])
def test_what_is_no_model_folder_is_not_found(builder: RepositoryBuilder, name: str) -> None:
    builder.add_model("b", "")
    builder.add_model(".hidden", "")
    (builder.path / "README.md").write_text("not a model")
    assert find_model(builder.path, name) is None


def test_only_plain_numbers_are_versions(builder: RepositoryBuilder) -> None:
    folder = builder.add_model("m", "", {"4": "a file"}, versions=(1,))
    for name in (
        "0",
        "01",
        "-1",
        "one",
        "2.tmp",
        "٣",
        "9" * 20,
        "warmup",
        "initial_state",
        "configs",
    ):
        (folder / name).mkdir()
    (folder / ".git").mkdir()

    found = scan_model(folder)

    assert found.versions == (1,)
    assert set(found.ignored) == {"0", "01", "-1", "one", "2.tmp", "٣", "9" * 20}


def test_a_repository_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match=r"^failed to stat file .*/nowhere: No such file"):
        scan_repository(tmp_path / "nowhere")


def test_the_config_is_read_or_empty(builder: RepositoryBuilder) -> None:
    builder.add_model("m", 'name: "m" max_batch_size: 3')
    builder.add_model("bare")

    assert read_config(_folder(builder)).max_batch_size == 3
    assert read_config(_folder(builder, "bare")) == ModelConfig()
    with pytest.raises(
        InvalidArgumentError,
        match=r"^failed to open text file for read .*/bare/config.pbtxt: No such file or "
        r"directory; model configuration is not provided for model 'bare'",
    ):
        read_config(_folder(builder, "bare"), is_required=True)


def test_a_custom_config_comes_first_and_the_usual_one_else(builder: RepositoryBuilder) -> None:
    files = {"configs/large.pbtxt": "max_batch_size: 64"}
    builder.add_model("m", "max_batch_size: 3", files)

    assert read_config(_folder(builder), "large").max_batch_size == 64
    assert read_config(_folder(builder), "small").max_batch_size == 3


def test_a_custom_config_outside_of_the_model_is_refused(builder: RepositoryBuilder) -> None:
    builder.add_model("m", "", {"configs/x": ""})
    builder.add_model("other", None, {"config.pbtxt": ""})

    with pytest.raises(InvalidArgumentError, match="is outside of"):
        read_config(_folder(builder), "../../other/config")


def test_a_config_that_does_not_parse_names_its_file(builder: RepositoryBuilder) -> None:
    path = builder.add_model("m", "name: 'm'\nmax_batch: 3") / "config.pbtxt"

    with pytest.raises(ConfigSyntaxError) as caught:
        read_config(_folder(builder))

    assert (caught.value.source, caught.value.line) == (str(path), 2)


def test_a_config_in_another_encoding_is_located(builder: RepositoryBuilder) -> None:
    builder.add_model("m", None, {"config.pbtxt": b'# fine\n# caf\xe9\nname: "m"\n'})

    with pytest.raises(ConfigSyntaxError, match="not UTF-8 text") as caught:
        read_config(_folder(builder))

    assert (caught.value.line, caught.value.column) == (2, 6)


def test_a_config_of_absurd_size_is_not_read(
    builder: RepositoryBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder.add_model("m", "max_batch_size: 3")
    monkeypatch.setattr(layout, "_MAX_TEXT_BYTES", 10)

    with pytest.raises(InternalError, match="larger than 10 bytes"):
        read_config(_folder(builder))


def test_the_first_version_tells_what_kind_of_model_it_is(builder: RepositoryBuilder) -> None:
    builder.add_model("m", "", {"{version}/model.pt": "", "{version}/naiad.json": ""}, (2, 10))
    builder.add_model("bare", versions=())

    assert list_artifacts(_folder(builder)) == ["model.pt", "naiad.json"]
    assert list_artifacts(_folder(builder, "bare")) == []


def test_labels_are_lines_of_the_named_files(builder: RepositoryBuilder) -> None:
    builder.add_model("m", "", {"a.txt": "cat\r\n\ntwo words\n", "sub/b.txt": b"caf\xe9"})
    config = parse_config(
        'output [ { name: "x" label_filename: "a.txt" }, { name: "y" }, '
        '{ name: "z" label_filename: "sub/b.txt" } ]',
        "text",
    )

    assert read_labels(_folder(builder), config) == {
        "x": ["cat", "", "two words"],
        "z": ["caf\N{REPLACEMENT CHARACTER}"],
    }


def test_a_missing_label_file_is_named(builder: RepositoryBuilder) -> None:
    path = builder.add_model("m", "")
    config = parse_config('output { name: "x" label_filename: "nothere.txt" }', "text")

    with pytest.raises(InternalError) as caught:
        read_labels(_folder(builder), config)

    assert caught.value.message == (
        f"failed to open text file for read {path / 'nothere.txt'}: No such file or directory"
    )


def test_a_label_file_outside_of_the_model_is_refused(builder: RepositoryBuilder) -> None:
    builder.add_model("m", "")
    config = parse_config('name: "m" output { name: "x" label_filename: "../l.txt" }', "text")

    with pytest.raises(UnsupportedError, match="for output 'x' in model 'm' is outside model dir"):
        read_labels(_folder(builder), config)


def test_doubts_about_a_repository(tmp_path: Path) -> None:
    builder = RepositoryBuilder(tmp_path / "models")
    assert "holds no models; a model is a folder in it, such as" in doubt_repository(builder.path)
    with_config = builder.add_model("with_config", "")
    bare = builder.add_model("bare", None, {"{version}/model.onnx": b"x"}, versions=(1, 2))
    for folder in (with_config, bare):
        assert doubt_repository(folder) == (
            f"'{folder}' is the folder of a model and no model repository, which is the folder "
            f"around it: '{builder.path}'"
        )
    assert "holds no models" in doubt_repository(bare / "1")
    assert doubt_repository(builder.path) == ""
    # A model may well be named by a number.
    assert doubt_repository(RepositoryBuilder(tmp_path).add_model("x").parent) == ""
    assert doubt_repository(RepositoryBuilder(tmp_path / "n").add_model("1").parent) == ""
