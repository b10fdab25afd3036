"""``naiad infer`` as a user runs it, against ``naiad serve`` with Triton's test models."""

import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from naiad.cli.infer import infer as infer_command
from naiad.verify.server_process import ServerProcess

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).parent.parent / "conformance" / "recorded" / "repository"
Infer = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def infer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Infer]:
    """Runs the command with the server's address; exit status, output, errors."""
    repository = tmp_path_factory.mktemp("repository")
    for model in ("simple", "labels", "id_bytes", "id_fp32"):
        shutil.copytree(RECORDED / model, repository / model)
    command = Path(sys.executable).with_name("naiad")

    with ServerProcess(repository) as server:

        def run(*arguments: str) -> tuple[int, str, str]:
            done = subprocess.run(
                [command, "infer", *arguments, "--url", server.address],
                capture_output=True,
                text=True,
                timeout=500,
                check=False,
            )
            return done.returncode, done.stdout, done.stderr

        yield run


def test_two_inputs_one_from_a_file(infer: Infer, tmp_path: Path) -> None:
    file = tmp_path / "first.npy"
    np.save(file, np.arange(16, dtype=np.int32))
    ones = "[" + ",".join(["1"] * 16) + "]"
    status, out, err = infer("simple", "--input", f"INPUT0=@{file}", "--input", f"INPUT1={ones}")
    assert status == 0, err
    assert "simple, version 1" in out
    assert "input  INPUT0: INT32 [1, 16]" in out
    assert "[[ 1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16]]" in out
    assert "[[-1  0  1  2  3  4  5  6  7  8  9 10 11 12 13 14]]" in out


@pytest.mark.parametrize("transport", [[], ["--json"]])
def test_labels_are_shown_for_each_row(infer: Infer, transport: list[str]) -> None:
    rows = "IN=[[0, 3, 1, 2], [9, 0, 0, 0]]"
    status, out, err = infer("labels", "--input", rows, "--top", "2", *transport)
    assert status == 0, err
    words = out.split()
    assert words.index("3.000000") < words.index("dog") < words.index("9.000000")
    assert words.index("9.000000") < words.index("cat")


def test_text_is_shown_as_text(infer: Infer) -> None:
    status, out, err = infer("id_bytes", "--input", 'IN=[["a:1:b", "Käse"]]')
    assert status == 0, err
    assert "  a:1:b\n  Käse\n" in out


def test_example_makes_the_inputs_up(infer: Infer) -> None:
    status, out, err = infer("simple", "--example")
    assert status == 0, err
    assert "input  INPUT0: INT32 [1, 16]" in out
    assert "output OUTPUT1: INT32 [1, 16]" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope", "--example"], "Request for unknown model: 'nope' is not found"),
        (["simple"], "no value for 'INPUT0' (INT32, shape [-1, 16])"),
        (["simple", "--input", "INPUT0=[1]", "--example"], "does not fit"),
        (["id_fp32", "--input", "X=1"], "the model has no input 'X'; it has 'IN'"),
        (["id_fp32", "--version", "7", "--example"], "version 7 is not found"),
    ],
)
def test_what_is_wrong_is_said(infer: Infer, arguments: list[str], message: str) -> None:
    status, out, err = infer(*arguments)
    assert status == 1
    assert out == ""
    assert message in err


def test_a_version_is_a_number(infer: Infer) -> None:
    status, _, err = infer("id_fp32", "--version", "latest", "--example")
    assert status == 2
    assert "'latest' is not a valid integer" in err


def test_without_a_server_the_way_to_one_is_said() -> None:
    # A bound port that nobody listens on refuses connections, and no other program can take it.
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unheard.getsockname()[1]}"
        result = CliRunner().invoke(infer_command, ["m", "--example", "--url", address])
    assert result.exit_code == 1
    assert f"no answer from {address}" in result.stderr
    assert "start 'naiad serve DIR', or name a server with --url HOST:PORT" in result.stderr
