"""The page for those who run Triton: its commands, as they are written."""

import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.process.test_serve_command import ServeProcess

from naiad.server.command_line import NAIAD_SERVE, TRITONSERVER, parse_arguments
from naiad.server.inert import INERT_OPTIONS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guide/from_triton.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"^```\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
]
BIN = Path(sys.executable).parent
PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0", "--http-address=127.0.0.1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("triton")
    recorded = ROOT / "tests/conformance/recorded/repository"
    shutil.copytree(recorded / "simple", folder / "models" / "simple")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServeProcess]:
    program, option = shlex.split(COMMANDS[1])
    repository = option.replace("=models", f"={folder / 'models'}")
    process = ServeProcess([repository, *PORTS], (str(BIN / program),))
    try:
        yield process
    finally:
        process.close()


@pytest.mark.slow
def test_the_repository_is_checked(folder: Path) -> None:
    program, *words = shlex.split(COMMANDS[0])
    done = subprocess.run(
        [BIN / program, *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 model, 0 findings" in done.stdout


@pytest.mark.slow
def test_the_server_is_asked(server: ServeProcess) -> None:
    infer, *curls = COMMANDS[2:]
    metrics = server.wait_for(r"Started Metrics Service at ([\d.:]+)")[1]
    program, *words = shlex.split(infer)
    answer = subprocess.check_output([BIN / program, *words, "--url", server.http], text=True)
    assert "output OUTPUT0: INT32" in answer
    stats, index, families = (
        ask(line, {"localhost:8000": server.http, "localhost:8002": f"http://{metrics}"})
        for line in curls
    )
    assert '"inference_count":1' in stats
    assert '"state":"READY"' in index
    assert 'nv_inference_count{model="simple",version="1"} 1' in families


def ask(command: str, addresses: Mapping[str, str]) -> str:
    """What curl would get: a GET, or with -X another method."""
    *options, url = shlex.split(command)[1:]
    host, _, path = url.partition("/")
    method = options[1] if options else "GET"
    request = urllib.request.Request(f"{addresses[host]}/{path}", method=method)
    with urllib.request.urlopen(request, timeout=500) as response:
        return str(response.read().decode())


def test_the_addresses_are_those_of_the_code() -> None:
    option = ["--model-repository=models"]
    assert parse_arguments(option, {}, TRITONSERVER).http_address == "0.0.0.0"
    assert parse_arguments(option, {}, NAIAD_SERVE).http_address == "127.0.0.1"


def test_what_is_not_there_is_inert() -> None:
    inert = {option.name for option in INERT_OPTIONS}
    assert {"allow-sagemaker", "allow-vertex-ai", "repoagent-directory"} <= inert
    assert {"allow-gpu-metrics", "pinned-memory-pool-byte-size"} <= inert
