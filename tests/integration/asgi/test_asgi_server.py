"""``naiad.asgi``: a whole server inside another program."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.support.asgi_driver import Lifespan, ask

import naiad
from naiad.asgi import Application, create_app
from naiad.errors import InternalError
from naiad.server.settings import BadOptionError

CONFIG = """
name: "{name}"
backend: "{backend}"
max_batch_size: 8
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
"""


def add_model(repository: Path, name: str, backend: str = "identity") -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(CONFIG.format(name=name, backend=backend))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    add_model(tmp_path / "models", "same")
    return tmp_path / "models"


BODY = json.dumps(
    {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
).encode()
INFER = "/v2/models/same/infer"


async def asked(app: Application, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
    status, _, content = await ask(app, method, path, body).answer()
    return status, json.loads(content) if content else None


async def test_its_life_in_a_host(repository: Path) -> None:
    app = create_app(model_repository=repository, id="mine", strict_readiness=False)
    status, content = await asked(app, "GET", "/v2/health/live")
    assert status == 503
    assert "models are not loaded" in content["error"]

    life = Lifespan(app)
    assert (await life.startup())["type"] == "lifespan.startup.complete"
    assert await asked(app, "GET", "/v2/health/ready") == (200, None)
    assert (await asked(app, "GET", "/v2"))[1]["name"] == "mine"
    status, content = await asked(app, "POST", INFER, BODY)
    assert (status, content["outputs"][0]["data"]) == (200, [1.0, 2.0])

    assert (await life.shutdown())["type"] == "lifespan.shutdown.complete"
    assert (await asked(app, "POST", INFER, BODY))[0] == 503


async def test_its_life_by_hand_and_twice(repository: Path) -> None:
    app = create_app(
        model_repository=[str(repository)], model_control_mode="explicit", load_model="*"
    )
    for _ in range(2):
        await app.startup()
        await app.startup()
        assert (await asked(app, "POST", INFER, BODY))[0] == 200
        assert (await asked(app, "POST", "/v2/repository/models/same/unload"))[0] == 200
        assert (await asked(app, "POST", INFER, BODY))[0] == 404
        await app.shutdown()
        await app.shutdown()


async def test_logging_is_the_hosts(repository: Path) -> None:
    app = create_app(model_repository=repository)
    await app.startup()
    status, content = await asked(app, "POST", "/v2/logging", b'{"log_info":false}')
    assert status == 501
    assert "log settings can not be updated" in content["error"]
    assert (await asked(app, "GET", "/v2/logging"))[1]["log_info"] is True
    await app.shutdown()


async def test_a_model_that_does_not_load(repository: Path) -> None:
    add_model(repository, "broken", backend="nothing")
    app = create_app(model_repository=repository)
    message = await Lifespan(app).startup()
    assert message["type"] == "lifespan.startup.failed"
    assert "'broken': Invalid argument: " in message["message"]
    with pytest.raises(InternalError, match="broken"):
        await app.startup()

    app = create_app(model_repository=repository, exit_on_error=False)
    await app.startup()
    assert (await asked(app, "POST", INFER, BODY))[0] == 200
    await app.shutdown()


async def test_a_repository_that_is_not_there(tmp_path: Path) -> None:
    message = await Lifespan(create_app(model_repository=tmp_path / "none")).startup()
    assert message["type"] == "lifespan.startup.failed"
    assert "failed to stat file" in message["message"]


def test_options(monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    with pytest.raises(TypeError, match="no option 'model_store_'"):
        create_app(model_store_=repository)
    with pytest.raises(TypeError, match="a value or a sequence"):
        create_app(model_repository={})
    with pytest.raises(BadOptionError, match="--http-max-input-size"):
        create_app(model_repository=repository, http_max_input_size="much")
    monkeypatch.delenv("NAIAD_MODEL_REPOSITORY", raising=False)
    with pytest.raises(BadOptionError, match="--model-repository must be specified"):
        create_app()
    monkeypatch.setenv("NAIAD_MODEL_REPOSITORY", str(repository))
    assert isinstance(create_app(), Application)


async def test_another_protocol(repository: Path) -> None:
    app = create_app(model_repository=repository)
    with pytest.raises(ValueError, match="no websocket"):
        await app({"type": "websocket"}, None, None)  # type: ignore[arg-type]


def test_the_name_is_public() -> None:
    assert naiad.asgi.create_app is create_app


@pytest.mark.slow
async def test_in_uvicorn(repository: Path) -> None:
    uvicorn = pytest.importorskip("uvicorn")
    app = create_app(model_repository=repository)
    config = uvicorn.Config(app, log_level="warning", lifespan="on")
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(
        b"POST /v2/models/same/generate_stream HTTP/1.1\r\nHost: h\r\nContent-Length: 16\r\n\r\n"
        b'{"INPUT0":[1.5]}'
    )
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 300)
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"text/event-stream" in head
    event = await asyncio.wait_for(reader.readuntil(b"\n\n"), 300)
    assert event.partition(b"\r\n")[2] == (
        b'data: {"OUTPUT0":1.5,"model_name":"same","model_version":"1"}\n\n'
    )
    writer.close()
    server.should_exit = True
    await asyncio.wait_for(serving, 300)
