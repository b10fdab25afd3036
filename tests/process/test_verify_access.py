"""``naiad verify --url`` and ``naiad infer`` at a server with TLS, certificates and secret keys."""

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from tests.support.certificates import make_certificate
from torch import nn

import naiad
from naiad.access.credentials import Credentials
from naiad.cli.main import main
from naiad.verify.grpc_wire import PlainGrpcCaller, TritonGrpcCaller
from naiad.verify.server_process import ServerProcess
from naiad.verify.wire import Caller, CallFailedError, PlainCaller, Target, TritonClientCaller

pytestmark = pytest.mark.slow

KEYS = {"admin-key": "sesame", "triton-grpc-protocol-admin-key": "sesame"}
HEADERS = [word for key, value in KEYS.items() for word in ("--header", f"{key}: {value}")]
PARTS = "inference,metadata,model-config,statistics"


@dataclass(frozen=True)
class Guarded:
    """A server that wants a certificate and a key, and what it takes to be let in."""

    repository: Path
    target: Target

    @property
    def files(self) -> list[str]:
        shown = self.target.credentials
        return [
            f"--cacert={shown.ca_certificate}", f"--cert={shown.certificate}", f"--key={shown.key}"
        ]  # fmt: skip


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    repository = folder / "models"
    certificate, key = make_certificate(folder, "server", "localhost")
    ours, our_key = make_certificate(folder, "client", "someone")
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        naiad.export(
            nn.Linear(3, 2), (torch.randn(2, 3),), name="linear", repository=repository,
            format="torchscript",
        )  # fmt: skip
    options = [
        f"--http-restricted-api={PARTS}:admin-key=sesame",
        "--grpc-restricted-protocol=inference:admin-key=sesame",
        *(
            option
            for port in ("http", "grpc")
            for option in (
                f"--{port}-use-ssl-mutual=true",
                f"--{port}-server-cert={certificate}",
                f"--{port}-server-key={key}",
                f"--{port}-root-cert={ours}",
            )
        ),
    ]
    with ServerProcess(repository, options=options) as server:
        target = Target(
            f"https://localhost:{server.address.rpartition(':')[2]}", "linear", 1,
            {"input": "FP32"}, {"output__0": "FP32"},
            f"grpcs://localhost:{server.grpc_address.rpartition(':')[2]}",
            Credentials(KEYS, certificate, ours, our_key),
        )  # fmt: skip
        yield Guarded(repository, target)


CALLERS: list[Callable[[Target], Caller]] = [
    PlainCaller,
    TritonClientCaller,
    lambda target: PlainGrpcCaller(target, is_stream=False),
    lambda target: PlainGrpcCaller(target, is_stream=True),
    lambda target: TritonGrpcCaller(target, is_stream=False),
    lambda target: TritonGrpcCaller(target, is_stream=True),
]


@pytest.mark.parametrize("open_caller", CALLERS)
def test_every_caller_is_let_in_with_the_key_and_not_without(
    guarded: Guarded, open_caller: Callable[[Target], Caller]
) -> None:
    row = {"input": np.ones((1, 3), np.float32)}
    caller = open_caller(guarded.target)
    assert caller.infer(row, binary=True)["output__0"].shape == (1, 2)
    caller.close()
    keyless = replace(guarded.target.credentials, headers={})
    caller = open_caller(replace(guarded.target, credentials=keyless))
    with pytest.raises(CallFailedError, match="restricted"):
        caller.infer(row, binary=True)
    caller.close()


def verify(guarded: Guarded, *arguments: str) -> Result:
    urls = ["--url", guarded.target.address, "--grpc-url", guarded.target.grpc_address]
    return CliRunner().invoke(main, ["verify", str(guarded.repository), *urls, *arguments])


def test_verify_passes_every_hop(guarded: Guarded, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    result = verify(guarded, *guarded.files, *HEADERS, "--json", str(report))
    assert result.exit_code == 0, result.output
    (model,) = json.loads(report.read_text(encoding="utf-8"))["models"]
    assert {row["verdict"] for row in model["rows"]} == {"equal"}
    assert {row["hop"] for row in model["rows"]} > {"served, HTTP binary", "served, gRPC stream"}
    assert "sesame" not in report.read_text(encoding="utf-8") + result.output


WRONG: dict[str, tuple[Callable[[Guarded], Sequence[str]], str]] = {
    "no certificate to trust": (lambda _: HEADERS, "--cacert FILE names a certificate to trust"),
    "no key": (lambda g: g.files, "expecting header 'admin-key'. --header 'KEY: VALUE' sends"),
}


@pytest.mark.parametrize("label", WRONG)
def test_verify_says_what_it_takes_to_be_let_in(guarded: Guarded, label: str) -> None:
    arguments, message = WRONG[label]
    result = verify(guarded, *arguments(guarded))
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_infer_is_let_in_and_says_what_it_takes(guarded: Guarded) -> None:
    asked = ["infer", "linear", "--url", guarded.target.address, "--input", "input=[1, 2, 3]"]
    result = CliRunner().invoke(main, [*asked, *guarded.files, *HEADERS])
    assert result.exit_code == 0, result.output
    assert "output output__0: FP32 [1, 2]" in result.output
    for label, (arguments, message) in WRONG.items():
        result = CliRunner().invoke(main, [*asked, *arguments(guarded)])
        assert result.exit_code == 1, label
        assert message in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--url", "ftp://host:1"], "'ftp://host:1' is not the address of a server"),
        (["--header", "a: b"], "belong to a server's --url"),
        (["--url", "h:1", "--header", "sesame"], "a header is of the form 'KEY: VALUE'"),
        (["--url", "h:1", "--key", __file__], "--key belongs to a --cert, which is missing"),
        (["--url", "h:1", "--cacert", "none.pem"], "File 'none.pem' does not exist"),
    ],
)
def test_wrong_options_of_verify_are_told(
    guarded: Guarded, arguments: list[str], message: str
) -> None:
    result = CliRunner().invoke(main, ["verify", str(guarded.repository), *arguments])
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
