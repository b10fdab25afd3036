"""Files that a load request brings, and version policies that select nothing."""

from pathlib import Path

import pytest

from naiad.backends.registry import BackendRegistry
from naiad.engine.loader import Loader, LoaderOptions, Override
from naiad.errors import InternalError, InvalidArgumentError, PermissionDeniedError
from naiad.repository.model_id import ModelId

CONFIG = (
    '{"backend": "identity", "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [1]}],'
    ' "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [1]}]}'
)


def make_loader(repository: Path, *, allow_file_override: bool = True) -> Loader:
    options = LoaderOptions((repository,), allow_file_override=allow_file_override)
    return Loader(options, BackendRegistry())


def test_files_of_a_request_are_the_model(tmp_path: Path) -> None:
    plan = make_loader(tmp_path).plan(ModelId("m"), Override(CONFIG, {"3/model.bin": b"abc"}))
    assert plan.versions == (3,)
    assert (plan.folder.path / "3" / "model.bin").read_bytes() == b"abc"
    assert not list(tmp_path.iterdir())
    assert plan.files is not None
    folder = plan.files.path
    del plan
    assert not folder.exists()


def test_a_server_takes_files_only_where_it_was_told_to(tmp_path: Path) -> None:
    loader = make_loader(tmp_path, allow_file_override=False)
    with pytest.raises(PermissionDeniedError, match="--allow-file-override=true"):
        loader.plan(ModelId("m"), Override(CONFIG, {"1/x": b""}))


def test_a_file_that_can_not_be_written_fails_the_load(tmp_path: Path) -> None:
    with pytest.raises(
        InternalError, match="failed to load 'm', failed to poll from model repository: can't write"
    ):
        make_loader(tmp_path).plan(ModelId("m"), Override(CONFIG, {"A" * 256: b"a"}))


def test_a_file_outside_of_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="is outside of"):
        make_loader(tmp_path).plan(ModelId("m"), Override(CONFIG, {"../evil/1/model.bin": b"a"}))


def test_a_policy_that_selects_nothing_names_the_load(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    with pytest.raises(InvalidArgumentError) as caught:
        make_loader(tmp_path).plan(ModelId("m"), Override(CONFIG))
    assert caught.value.message == (
        "load failed for model 'm': at least one version must be available under the version "
        "policy of model 'm'\n"
    )
