"""What is loaded out of one or more repositories, and what each refusal says."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.repository_builder import RepositoryBuilder, add_model

from naiad.backends.registry import BackendRegistry
from naiad.clock import SystemClock
from naiad.engine.engine import Engine, EngineOptions, IndexEntry, ModelControlMode
from naiad.engine.lifecycle import LoadOptions
from naiad.engine.loader import Loader, LoaderOptions
from naiad.errors import InternalError, InvalidArgumentError, NotFoundError, UnavailableError
from naiad.inference.states import ModelState

DUPLICATE = "model appears in two or more repositories"
IDENTITY = """name: "m" backend: "identity" max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


def make_engine(
    options: LoaderOptions,
    mode: ModelControlMode = ModelControlMode.EXPLICIT,
    loads: LoadOptions | None = None,
) -> Engine:
    loader = Loader(options, BackendRegistry())
    engine_options = EngineOptions(
        "naiad", "1", mode, poll_interval_s=3600, loads=loads or LoadOptions()
    )
    return Engine(engine_options, loader, SystemClock())


@pytest.fixture
def two(tmp_path: Path) -> tuple[RepositoryBuilder, RepositoryBuilder]:
    return RepositoryBuilder(tmp_path / "first"), RepositoryBuilder(tmp_path / "second")


def paths(two: tuple[RepositoryBuilder, RepositoryBuilder]) -> LoaderOptions:
    return LoaderOptions((two[0].path, two[1].path))


async def test_models_of_several_repositories_serve_together(
    two: tuple[RepositoryBuilder, RepositoryBuilder],
) -> None:
    two[0].add_sum("a")
    two[1].add_sum("b")
    engine = make_engine(paths(two), ModelControlMode.NONE)
    assert await engine.start() == {}
    assert [(line.name, line.state) for line in await engine.index(ready_only=True)] == [
        ("a", ModelState.READY),
        ("b", ModelState.READY),
    ]
    await engine.stop()


async def test_a_name_in_two_repositories_is_not_loaded(
    two: tuple[RepositoryBuilder, RepositoryBuilder],
) -> None:
    for builder in two:
        builder.add_sum("m")
    two[0].add_sum("other")
    engine = make_engine(paths(two), ModelControlMode.NONE)
    failures = await engine.start()
    assert list(failures) == ["m"]
    assert DUPLICATE in failures["m"].message
    [line, other] = await engine.index(ready_only=False)
    assert line == IndexEntry("m", "", ModelState.UNAVAILABLE, DUPLICATE, DUPLICATE)
    assert other.state is ModelState.READY
    with pytest.raises(NotFoundError, match=DUPLICATE):
        engine.find("m")
    await engine.stop()


async def test_a_repository_that_is_named_twice_is_one(tmp_path: Path) -> None:
    RepositoryBuilder(tmp_path / "models").add_sum("m")
    (tmp_path / "link").symlink_to(tmp_path / "models")
    paths = (tmp_path / "models", tmp_path / "models", tmp_path / "link")
    engine = make_engine(LoaderOptions(paths), ModelControlMode.NONE)
    assert await engine.start() == {}
    await engine.stop()


async def test_polling_unloads_a_name_that_appears_twice_until_it_does_not(
    two: tuple[RepositoryBuilder, RepositoryBuilder],
) -> None:
    two[0].add_sum("m")
    engine = make_engine(paths(two), ModelControlMode.POLL)
    await engine.start()
    assert engine.is_model_ready("m")
    second = two[1].add_sum("m")
    await engine.poll()
    assert not engine.is_model_ready("m")
    second.rename(two[1].path.parent / "away")
    for _ in range(2):
        await engine.poll()
    assert engine.is_model_ready("m")
    await engine.stop()


async def test_a_folder_that_is_still_being_copied_is_left_alone(tmp_path: Path) -> None:
    engine = make_engine(LoaderOptions((tmp_path,)), ModelControlMode.POLL)
    await engine.start()
    whole = add_model(1)
    builder = RepositoryBuilder(tmp_path)
    for part in range(1, 5):
        builder.add_onnx("m", whole[: len(whole) * part // 4])
        await engine.poll()
        # No attempt, so no failure either.
        assert await engine.index(ready_only=False) == [IndexEntry("m")]
        assert engine.is_ready()
    await engine.poll()
    assert engine.is_model_ready("m")
    await engine.stop()


async def test_without_completion_a_model_needs_its_config(tmp_path: Path) -> None:
    builder = RepositoryBuilder(tmp_path)
    builder.add_onnx("bare", add_model(1))
    builder.add_sum("m")
    options = LoaderOptions((tmp_path,), is_completion_disabled=True)
    engine = make_engine(options)
    await engine.start()
    await engine.load_model("m", None, {})
    with pytest.raises(
        InternalError,
        match=r"failed to load 'bare', failed to poll from model repository: .* model "
        r"configuration is not provided for model 'bare'",
    ):
        await engine.load_model("bare", None, {})
    await engine.stop()
    engine = make_engine(replace(options, is_completion_disabled=False))
    await engine.start()
    await engine.load_model("bare", None, {})
    assert engine.model_config("bare").max_batch_size == 4
    await engine.stop()


async def test_a_default_batch_size_of_the_server(tmp_path: Path) -> None:
    RepositoryBuilder(tmp_path).add_onnx("m", add_model(1))
    settings = {"onnxruntime": {"default-max-batch-size": "16"}}
    engine = make_engine(LoaderOptions((tmp_path,), backend_settings=settings))
    await engine.start()
    await engine.load_model("m", None, {})
    assert engine.model_config("m").max_batch_size == 16
    await engine.stop()


async def test_a_config_of_another_name(tmp_path: Path) -> None:
    builder = RepositoryBuilder(tmp_path)
    folder = builder.add_model("m", IDENTITY)
    builder.add_model("plain", IDENTITY.replace('"m"', '"plain"'))
    (folder / "configs").mkdir()
    (folder / "configs" / "large.pbtxt").write_text(IDENTITY.replace("size: 8", "size: 99"))
    engine = make_engine(LoaderOptions((tmp_path,), config_name="large"), ModelControlMode.NONE)
    assert await engine.start() == {}
    assert engine.model_config("m").max_batch_size == 99
    assert engine.model_config("plain").max_batch_size == 8
    await engine.stop()


@pytest.mark.parametrize(
    ("policy", "served"),
    [
        ("", {4}),
        ("version_policy { latest { num_versions: 2 } }", {3, 4}),
        ("version_policy { all { } }", {1, 3, 4}),
        ("version_policy { specific { versions: [ 1, 3, 9 ] } }", {1, 3}),
    ],
)
async def test_version_policies(tmp_path: Path, policy: str, served: set[int]) -> None:
    RepositoryBuilder(tmp_path).add_model("m", IDENTITY + policy, versions=(1, 3, 4))
    engine = make_engine(LoaderOptions((tmp_path,)), ModelControlMode.NONE)
    assert await engine.start() == {}
    for version in (1, 3, 4):
        assert engine.is_model_ready("m", version) is (version in served)
    assert engine.find("m").version == max(served)
    await engine.stop()


async def test_a_version_that_failed_is_forgotten_once_another_takes_its_place(
    tmp_path: Path,
) -> None:
    builder = RepositoryBuilder(tmp_path)
    builder.add_onnx("m", b"no model")
    engine = make_engine(LoaderOptions((tmp_path,)))
    await engine.start()
    with pytest.raises((InvalidArgumentError, InternalError)):
        await engine.load_model("m", None, {})
    assert not engine.is_ready()
    builder.add_onnx("m", add_model(1), versions=(2,))
    await engine.load_model("m", None, {})
    assert engine.is_ready()
    assert [line.reason for line in await engine.index(ready_only=False)] == ["unloaded", ""]
    await engine.stop()


async def test_gpu_instances_run_on_the_cpu_where_that_is_wanted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    groups = "instance_group [ { kind: KIND_GPU gpus: [ 0, 1 ] count: 2 }, { kind: KIND_CPU } ]"
    RepositoryBuilder(tmp_path).add_model("m", IDENTITY + groups)
    options = LoaderOptions((tmp_path,))
    engine = make_engine(options)
    await engine.start()
    with pytest.raises(InvalidArgumentError, match="instance group m_0 of model m"):
        await engine.load_model("m", None, {})
    await engine.stop()
    engine = make_engine(replace(options, is_gpu_replaced=True))
    await engine.start()
    await engine.load_model("m", None, {})
    assert "it runs on the CPU, as --gpu-fallback=cpu says" in caplog.text
    assert {group.kind for group in engine.model_config("m").instance_group} == {2}
    await engine.stop()


@pytest.mark.parametrize("mode", [ModelControlMode.NONE, ModelControlMode.POLL])
async def test_control_over_the_network_is_off_unless_it_is_chosen(
    tmp_path: Path, mode: ModelControlMode
) -> None:
    RepositoryBuilder(tmp_path).add_model("m", IDENTITY)
    engine = make_engine(LoaderOptions((tmp_path,), allow_file_override=True), mode)
    await engine.start()
    for call in (
        engine.load_model("m", None, {}),
        engine.load_model("m", "{}", {"1/model.onnx": b""}),
        engine.unload_model("m", unload_dependents=False),
    ):
        with pytest.raises(UnavailableError, match="explicit model load / unload is not allowed"):
            await call
    assert engine.is_model_ready("m")
    await engine.stop()


async def test_what_looks_like_a_version_and_is_none_is_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    builder = RepositoryBuilder(tmp_path)
    folder = builder.add_sum("m", extra="version_policy { specific { versions: [ 1, 4 ] } }")
    for name in ("003", "abc", "warmup"):
        (folder / name).mkdir()
    engine = make_engine(LoaderOptions((tmp_path,)))
    await engine.start()
    await engine.load_model("m", None, {})
    texts = [record.getMessage() for record in caplog.records if record.levelname != "INFO"]
    assert texts == [
        "ignore version directory '003' which contains leading zeros in its directory name",
        "ignore version directory 'abc' which fails to convert to integral number",
        "version 4 is specified for model 'm', but the version directory is not present",
    ]
    await engine.stop()
