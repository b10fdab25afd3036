"""NVIDIA's HTTP client over TLS, sync and asyncio, against ``naiad serve --http-use-ssl``."""

import asyncio
import http.client
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tests.support.certificates import make_certificate

from naiad.verify.server_process import ServerProcess

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).parent.parent / "conformance" / "recorded" / "repository"


class Secured(NamedTuple):
    """A server that wants clients' certificates, and two who know it."""

    target: str
    known: ssl.SSLContext
    unknown: ssl.SSLContext


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = make_certificate(folder, "server", "localhost")
    client_certificate, client_key = make_certificate(folder, "client", "someone")
    shutil.copytree(RECORDED / "id_fp32", folder / "repository" / "id_fp32")
    options = (
        "--http-use-ssl-mutual=true",
        f"--http-server-cert={certificate}",
        f"--http-server-key={key}",
        f"--http-root-cert={client_certificate}",
    )
    known = ssl.create_default_context(cafile=str(certificate))
    known.load_cert_chain(client_certificate, client_key)
    unknown = ssl.create_default_context(cafile=str(certificate))
    with ServerProcess(folder / "repository", options=options) as server:
        yield Secured(f"localhost:{server.address.rpartition(':')[2]}", known, unknown)


def make_input(data: npt.NDArray[Any], library: Any = triton) -> Any:
    return library.InferInput("IN", list(data.shape), "FP32").set_data_from_numpy(data)


@pytest.mark.parametrize("rows", [1, 400_000], ids=["small", "megabytes"])
def test_infer(secured: Secured, rows: int) -> None:
    sent = np.arange(rows, dtype=np.float32).reshape(1, rows)
    with triton.InferenceServerClient(
        secured.target, ssl=True, ssl_context_factory=lambda: secured.known
    ) as client:
        for _ in range(3):  # on one connection
            answer = client.infer("id_fp32", [make_input(sent)]).as_numpy("OUT")
            np.testing.assert_array_equal(answer, sent)


def test_infer_by_asyncio(secured: Secured) -> None:
    async def ask() -> npt.NDArray[Any]:
        async with triton_aio.InferenceServerClient(
            secured.target, ssl=True, ssl_context=secured.known
        ) as client:
            result = await client.infer("id_fp32", [make_input(sent, triton_aio)])
            answer: npt.NDArray[Any] = result.as_numpy("OUT")
            return answer

    sent = np.ones((1, 3), np.float32)
    np.testing.assert_array_equal(asyncio.run(ask()), sent)


def test_an_unknown_client_is_refused(secured: Secured) -> None:
    host, port = secured.target.split(":")
    connection = http.client.HTTPSConnection(host, int(port), context=secured.unknown, timeout=500)
    with pytest.raises((ssl.SSLError, ConnectionError)):  # noqa: PT012  # TLS 1.3: when reading
        connection.request("GET", "/v2/health/live")
        connection.getresponse()
    connection.close()


def test_a_plain_client_is_refused(secured: Secured) -> None:
    host, port = secured.target.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=500)
    with pytest.raises((http.client.HTTPException, ConnectionError)):  # noqa: PT012
        connection.request("GET", "/v2/health/live")
        connection.getresponse()
    connection.close()


def test_a_client_that_ends_its_half_is_let_go(secured: Secured) -> None:
    host, port = secured.target.split(":")
    with (
        socket.create_connection((host, int(port)), 30) as plain,
        secured.known.wrap_socket(plain, server_hostname=host) as client,
    ):
        client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        client.unwrap()
