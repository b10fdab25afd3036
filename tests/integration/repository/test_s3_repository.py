"""A model repository behind a real S3 API, which runs in this process."""

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import obstore
import pytest
from moto.server import ThreadedMotoServer
from obstore.store import S3Store
from tests.support.repository_builder import RepositoryBuilder

from naiad.clock import SystemClock
from naiad.engine.engine import Engine
from naiad.errors import InternalError
from naiad.server.build import build_server
from naiad.server.command_line import parse_arguments

# Werkzeug leaves the sockets of its threads to the collector.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@dataclass
class Bucket:
    """The folder ``models`` of a bucket."""

    address: str
    store: S3Store

    @property
    def url(self) -> str:
        return f"s3://{self.address}/bucket/models"

    def upload(self, folder: Path) -> None:
        for path in folder.rglob("*"):
            if path.is_file():
                name = path.relative_to(folder.parent).as_posix()
                obstore.put(self.store, name, path.read_bytes())


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    urllib.request.urlopen(
        urllib.request.Request(f"http://{s3}/moto-api/reset", method="POST")
    ).close()
    urllib.request.urlopen(urllib.request.Request(f"http://{s3}/bucket", method="PUT")).close()
    store = S3Store(
        "bucket",
        prefix="models",
        config={
            "endpoint": f"http://{s3}",
            "region": "us-east-1",
            "access_key_id": "id",
            "secret_access_key": "secret",
        },
        client_options={"allow_http": True},
    )
    return Bucket(s3, store)


def make_engine(url: str, cache: Path, *arguments: str) -> Engine:
    settings = parse_arguments(
        [url, f"--repository-cache-directory={cache}", *arguments], environment={}
    )
    return build_server(settings, SystemClock(), lambda _values: None).engine


async def added(engine: Engine) -> Any:
    """What the model ``m`` adds, as its own file says."""
    return engine.find("m").config.parameters["amount"].string_value


def write_model(folder: Path, amount: int) -> Path:
    extra = f'parameters {{ key: "amount" value {{ string_value: "{amount}" }} }}'
    return RepositoryBuilder(folder).add_sum("m", amount, extra=extra)


async def test_models_of_a_bucket_serve_and_follow_it(bucket: Bucket, tmp_path: Path) -> None:
    bucket.upload(write_model(tmp_path / "made", 1))
    engine = make_engine(bucket.url, tmp_path / "cache", "--model-control-mode=poll")
    assert await engine.start() == {}
    assert await added(engine) == "1"
    # The same content again is no change: the ETag tells.
    model = engine.find("m")
    bucket.upload(write_model(tmp_path / "made", 1))
    for _ in range(3):
        await engine.poll()
    assert engine.find("m") is model
    bucket.upload(write_model(tmp_path / "made", 2))
    for _ in range(2):
        await engine.poll()
    assert await added(engine) == "2"
    obstore.delete(bucket.store, ["m/config.pbtxt", "m/1/model.onnx"])
    await engine.poll()
    assert not engine.is_model_ready("m")
    await engine.stop()


async def test_explicit_loads_from_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    bucket.upload(write_model(tmp_path / "made", 1))
    engine = make_engine(bucket.url, tmp_path / "cache", "--model-control-mode=explicit")
    await engine.start()
    assert [line.name for line in await engine.index(ready_only=False)] == ["m"]
    await engine.load_model("m", None, {})
    model = engine.find("m")
    await engine.load_model("m", None, {})
    assert engine.find("m") is model
    bucket.upload(write_model(tmp_path / "made", 7))
    await engine.load_model("m", None, {})
    assert await added(engine) == "7"
    with pytest.raises(InternalError, match="failed to load 'nope', failed to poll"):
        await engine.load_model("nope", None, {})
    await engine.stop()


async def test_a_bucket_that_is_not_there_ends_the_start(bucket: Bucket, tmp_path: Path) -> None:
    url = f"s3://http://{bucket.address}/nothing/models"
    engine = make_engine(url, tmp_path / "cache")
    with pytest.raises(InternalError, match=f"failed to read model repository {url}: "):
        await engine.start()
    assert not engine.is_live()


def test_a_server_of_folders_does_not_load_the_storage_library(tmp_path: Path) -> None:
    script = """
import sys
from naiad.clock import SystemClock
from naiad.server.build import build_server
from naiad.server.command_line import parse_arguments
build_server(parse_arguments(sys.argv[1:]), SystemClock(), lambda values: None)
assert "obstore" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=500)
