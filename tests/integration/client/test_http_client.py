"""The HTTP client against a server that plays back scripted answers over a real socket."""

import io
import json
import socket
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import numpy as np
import pytest

from naiad.access.credentials import Credentials
from naiad.client.http import HttpClient
from naiad.errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from naiad.inference import datatypes
from naiad.inference.tensor import Tensor


class PlayedServer:
    """Answers each request with the next of ``answers``; an empty one closes the connection.

    A full request is read first, so what the client sent can be asserted afterwards.
    """

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.connection_count = 0
        self.release_silence = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release_silence.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connection_count += 1
            with connection, connection.makefile("rb") as stream:
                while self._answer_one(connection, stream):
                    pass

    def _answer_one(self, connection: socket.socket, stream: io.BufferedReader) -> bool:
        start = stream.readline().decode()
        if not start:
            return False
        headers: dict[str, str] = {}
        while line := stream.readline().decode().strip():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = stream.read(int(headers.get("content-length", "0")))
        self.requests.append((start.rstrip(), headers, body))
        answer = self.answers.pop(0)
        if answer == SILENCE:
            self.release_silence.wait()
            return False
        connection.sendall(answer)
        return bool(answer) and b"\r\nX-Then: close" not in answer


SILENCE = b"silence"


def answer(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def error(status: str, message: str) -> bytes:
    return answer(status, json.dumps({"error": message}).encode())


@pytest.fixture
def server() -> Iterator[PlayedServer]:
    with PlayedServer() as played:
        yield played


@pytest.fixture
def client(server: PlayedServer) -> Iterator[HttpClient]:
    with HttpClient(server.url, timeout_s=60) as made:
        yield made


ROW = Tensor("x", datatypes.FP32, (1, 2), np.array([[1.0, 2.0]], np.float32))


def test_infer_sends_binary_tensors_and_reads_binary_answers(
    server: PlayedServer, client: HttpClient
) -> None:
    header = json.dumps(
        {
            "id": "r",
            "model_name": "m",
            "model_version": "3",
            "outputs": [
                {
                    "name": "y",
                    "datatype": "INT8",
                    "shape": [2],
                    "parameters": {"binary_data_size": 2},
                }
            ],
        }
    ).encode()
    server.answers = [
        answer("200 OK", header + b"\x01\xff", f"Inference-Header-Content-Length: {len(header)}")
    ]

    result = client.infer("m", [ROW], version="3", request_id="r")

    start, headers, body = server.requests[0]
    length = int(headers["inference-header-content-length"])
    assert start == "POST /v2/models/m/versions/3/infer HTTP/1.1"
    assert json.loads(body[:length])["id"] == "r"
    assert body[length:] == ROW.data.tobytes()
    assert (result.model_version, result.request_id) == ("3", "r")
    assert result.outputs["y"].data.tolist() == [1, -1]


def test_infer_in_json_announces_no_header_length(server: PlayedServer, client: HttpClient) -> None:
    server.answers = [
        answer(
            "200 OK",
            b'{"model_name":"m","model_version":"1","outputs":'
            b'[{"name":"y","datatype":"FP32","shape":[1],"data":[0.5]}]}',
        )
    ]

    result = client.infer("m", [ROW], binary=False)

    _, headers, body = server.requests[0]
    assert "inference-header-content-length" not in headers
    assert json.loads(body)["inputs"][0]["data"] == [1.0, 2.0]
    assert result.outputs["y"].data.tolist() == [0.5]


def test_one_connection_serves_many_calls(server: PlayedServer, client: HttpClient) -> None:
    server.answers = [
        answer("200 OK"),
        answer("400 Bad Request"),
        answer("200 OK", b'{"name":"triton"}'),
        error("404 Not Found", "Request for unknown model: 'm'"),
        answer("200 OK", b'{"model_stats":[]}'),
        answer("200 OK", b'{"max_batch_size":8}'),
        answer("200 OK"),
    ]

    assert client.is_live()
    assert not client.is_ready()
    assert client.server_metadata() == {"name": "triton"}
    with pytest.raises(NotFoundError, match="unknown model: 'm'"):
        client.model_metadata("m")
    assert client.statistics() == {"model_stats": []}
    assert client.model_config("a/b", "2") == {"max_batch_size": 8}
    assert client.is_model_ready("m")

    assert [start.split()[1] for start, _, _ in server.requests] == [
        "/v2/health/live",
        "/v2/health/ready",
        "/v2",
        "/v2/models/m",
        "/v2/models/stats",
        "/v2/models/a%2Fb/versions/2/config",
        "/v2/models/m/ready",
    ]
    assert server.connection_count == 1


def test_a_connection_that_the_server_closed_in_between_is_replaced(
    server: PlayedServer, client: HttpClient
) -> None:
    server.answers = [answer("200 OK", b"", "X-Then: close"), answer("200 OK"), answer("200 OK")]
    assert client.is_live()
    # The server closes that connection before it accepts another, so once another client has
    # its answer, the end of the stream is there.
    with HttpClient(server.url, timeout_s=60) as other:
        assert other.is_live()

    assert client.is_live()
    assert server.connection_count == 3


def test_a_request_is_not_sent_twice_when_its_connection_breaks(
    server: PlayedServer, client: HttpClient
) -> None:
    server.answers = [b"", answer("200 OK")]

    with pytest.raises(UnavailableError, match="no answer from"):
        client.infer("m", [ROW])
    assert len(server.requests) == 1

    assert client.is_live()


def test_a_port_of_grpc_or_metrics_is_told_from_that_of_http(
    server: PlayedServer, client: HttpClient
) -> None:
    # A SETTINGS frame of HTTP/2 and what the metrics port says to any path but its own.
    server.answers = [
        b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x04\x00\n",
        answer("200 OK"),
    ]

    with pytest.raises(UnavailableError, match=r"does not speak HTTP/1\. Its HTTP port is wanted"):
        client.server_metadata()
    with pytest.raises(InternalError, match=r"is empty.*not that of gRPC or metrics"):
        client.server_metadata()


def test_a_server_that_stays_silent_is_unavailable(server: PlayedServer) -> None:
    server.answers = [SILENCE]
    with (
        HttpClient(server.url, timeout_s=0.05) as client,
        pytest.raises(UnavailableError, match=r"within 0\.05 s"),
    ):
        client.is_live()


def test_nobody_there_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(UnavailableError, match=f"127.0.0.1:{port}"):
        HttpClient(f"127.0.0.1:{port}").is_ready()


def test_a_proxys_page_is_quoted(server: PlayedServer, client: HttpClient) -> None:
    server.answers = [answer("502 Bad Gateway", b"<html>upstream is gone</html>")]

    with pytest.raises(UnavailableError, match=r"502.*<html>upstream is gone"):
        client.infer("m", [ROW])


@pytest.mark.parametrize("body", [b"", b"[1]", b"<html>"])
def test_metadata_that_is_no_json_object_is_an_internal_error(
    server: PlayedServer, client: HttpClient, body: bytes
) -> None:
    server.answers = [answer("200 OK", body)]

    with pytest.raises(InternalError, match=r"is not|is empty"):
        client.server_metadata()


def test_a_header_length_that_is_no_number_is_an_internal_error(
    server: PlayedServer, client: HttpClient
) -> None:
    server.answers = [answer("200 OK", b"{}", "Inference-Header-Content-Length: two")]

    with pytest.raises(InternalError, match="two"):
        client.infer("m", [ROW])


def test_a_gateways_path_and_the_callers_headers_go_along(server: PlayedServer) -> None:
    server.answers = [answer("200 OK")]
    credentials = Credentials({"admin-key": "sesame"})
    with HttpClient(f"{server.url}/gateway/", credentials=credentials) as client:
        assert client.is_live()

    start, headers, _ = server.requests[0]
    assert start.split()[1] == "/gateway/v2/health/live"
    assert headers["admin-key"] == "sesame"


def test_a_body_refused_while_it_is_sent_gives_the_servers_reason() -> None:
    refusal = error("400 Bad Request", "too large")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(refusal)

        thread = threading.Thread(target=refuse)
        thread.start()
        # More than the buffers of both sockets hold, so the client is still sending.
        data = np.zeros((1, 1 << 23), np.float32)
        with (
            HttpClient(f"127.0.0.1:{listener.getsockname()[1]}", timeout_s=60) as client,
            pytest.raises(InvalidArgumentError, match="too large"),
        ):
            client.infer("m", [Tensor("x", datatypes.FP32, data.shape, data)])
        thread.join()


@pytest.mark.parametrize("url", ["grpc://host:1", "http://", "http://host:port", "host:99999"])
def test_what_is_no_http_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match=url):
        HttpClient(url)
