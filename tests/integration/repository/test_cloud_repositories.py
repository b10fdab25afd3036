"""Model repositories in Google Cloud Storage and Azure, over HTTP to a storage in this process."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.fake_object_storage import ACCOUNT, KEY, FakeObjectStorage, object_storage
from tests.support.repository_builder import RepositoryBuilder

from naiad.clock import SystemClock
from naiad.engine.engine import Engine
from naiad.errors import InternalError
from naiad.server.build import build_server
from naiad.server.command_line import parse_arguments

pytestmark = pytest.mark.slow
URLS = ("gs://bucket/models", f"as://{ACCOUNT}/bucket/models")


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeObjectStorage]:
    with object_storage() as made:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", made.address)
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{made.address}/{ACCOUNT}")
        monkeypatch.setenv("AZURE_STORAGE_KEY", KEY)
        yield made


def upload(storage: FakeObjectStorage, made: Path, amount: int) -> None:
    extra = f'parameters {{ key: "amount" value {{ string_value: "{amount}" }} }}'
    folder = RepositoryBuilder(made).add_sum("m", amount, extra=extra)
    for path in folder.rglob("*.*"):
        storage.objects[f"models/{path.relative_to(made).as_posix()}"] = path.read_bytes()


def make_engine(url: str, cache: Path, mode: str) -> Engine:
    settings = parse_arguments(
        [url, f"--repository-cache-directory={cache}", f"--model-control-mode={mode}"],
        environment={},
    )
    return build_server(settings, SystemClock(), lambda _values: None).engine


def amount(engine: Engine) -> str:
    """What the model ``m`` adds, as its own file says."""
    return str(engine.find("m").config.parameters["amount"].string_value)


@pytest.mark.parametrize("url", URLS)
async def test_polling_follows_what_is_stored(
    storage: FakeObjectStorage, tmp_path: Path, url: str
) -> None:
    storage.objects["models/README"] = b"beside the models"
    storage.objects["others/n/1/model.onnx"] = b"another repository"
    upload(storage, tmp_path / "made", 1)
    engine = make_engine(url, tmp_path / "cache", "poll")
    assert await engine.start() == {}
    assert amount(engine) == "1"
    model = engine.find("m")
    for _ in range(2):
        await engine.poll()
    assert engine.find("m") is model
    storage.fetched.clear()
    upload(storage, tmp_path / "made", 2)
    for _ in range(2):
        await engine.poll()
    assert amount(engine) == "2"
    assert sorted(storage.fetched) == ["models/m/1/model.onnx", "models/m/config.pbtxt"]
    for key in [key for key in storage.objects if key.startswith("models/m/")]:
        del storage.objects[key]
    await engine.poll()
    assert not engine.is_model_ready("m")
    await engine.stop()


@pytest.mark.parametrize("url", URLS)
async def test_what_is_in_the_cache_is_not_fetched_again(
    storage: FakeObjectStorage, tmp_path: Path, url: str
) -> None:
    upload(storage, tmp_path / "made", 1)
    for fetched in (2, 0):
        engine = make_engine(url, tmp_path / "cache", "explicit")
        await engine.start()
        await engine.load_model("m", None, {})
        assert amount(engine) == "1"
        await engine.stop()
        assert len(storage.fetched) == fetched
        storage.fetched.clear()
    with pytest.raises(InternalError, match="failed to load 'nope', failed to poll"):
        await engine.load_model("nope", None, {})


@pytest.mark.parametrize("url", [url.replace("bucket", "nothing") for url in URLS])
async def test_a_bucket_that_is_not_there_is_named(
    storage: FakeObjectStorage, tmp_path: Path, url: str
) -> None:
    engine = make_engine(url, tmp_path / "cache", "none")
    with pytest.raises(InternalError, match=f"failed to read model repository {url}: "):
        await engine.start()


async def test_a_wrong_key_is_refused(
    storage: FakeObjectStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_KEY", "bm8ga2V5")
    engine = make_engine(URLS[1], tmp_path / "cache", "none")
    with pytest.raises(InternalError, match="403"):
        await engine.start()


async def test_a_credential_file_has_the_key_of_an_account(
    storage: FakeObjectStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(storage, tmp_path / "made", 3)
    monkeypatch.setenv("AZURE_STORAGE_KEY", "bm8ga2V5")
    path = tmp_path / "credentials.json"
    path.write_text(f'{{"as": {{"as://{ACCOUNT}/": {{"account_key": "{KEY}"}}}}}}')
    monkeypatch.setenv("TRITON_CLOUD_CREDENTIAL_PATH", str(path))
    engine = make_engine(URLS[1], tmp_path / "cache", "none")
    assert await engine.start() == {}
    assert amount(engine) == "3"
    await engine.stop()
