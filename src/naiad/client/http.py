"""A lean blocking client of the v2 protocol over HTTP/1.1, on the standard library alone."""

import contextlib
import http.client
import selectors
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote, urlsplit

from naiad.access.credentials import Credentials, advise_certificate
from naiad.errors import InternalError, InvalidArgumentError, UnavailableError
from naiad.inference.request import ParameterValue
from naiad.inference.tensor import Tensor
from naiad.protocol.json_text import parse_json
from naiad.protocol.v2_client import (
    InferResult,
    decode_error,
    decode_infer_response,
    encode_infer_request,
)

__all__ = ["HttpClient", "InferResult"]

_HEADER_LENGTH: Final = "Inference-Header-Content-Length"
# The three ports of a server are easily mixed up.
_WRONG_PORT: Final = "Its HTTP port is wanted, 8000 by default, not that of gRPC or metrics"
_SCHEMES: Final = frozenset({"http", "https"})


class HttpClient:
    """One connection to a v2 server, kept alive between calls.

    It belongs to one thread at a time. Every call raises a :class:`naiad.errors.NaiadError`
    when it fails: the server's own error by its status, or UnavailableError when the server
    can't be reached, closes the connection or stays silent for ``timeout_s``. A request is
    never sent twice, since the first may have taken its place in a sequence.
    """

    def __init__(
        self, url: str, *, timeout_s: float = 60.0, credentials: Credentials | None = None
    ) -> None:
        """Remember where the server is; the first call connects.

        Args:
            url: ``http://host:port``, also ``https``, also with a path that a gateway puts in
                front of ``/v2``; a bare ``host:port`` means http.
            timeout_s: the longest wait for a connection and for each piece of an answer.
            credentials: headers that are sent with every request, such as the key of a restricted
                API, and certificates for ``https``.

        Raises:
            InvalidArgumentError: ``url`` is not such an address, or a file of a certificate can't
                be used.
        """
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in _SCHEMES or not parts.hostname:
            msg = (
                f"'{url}' is not the address of a server; write it as http://host:port or "
                "https://host:port"
            )
            raise InvalidArgumentError(msg)
        try:
            port = parts.port
        except ValueError as error:
            msg = f"'{url}' has no usable port: {error}"
            raise InvalidArgumentError(msg) from error
        self.url = url
        self._timeout_s = timeout_s
        self._path_prefix = parts.path.rstrip("/")
        shown = credentials or Credentials()
        self._headers = dict(shown.headers)
        self._connection = (
            http.client.HTTPSConnection(
                parts.hostname, port, timeout=timeout_s, context=shown.tls_context()
            )
            if parts.scheme == "https"
            else http.client.HTTPConnection(parts.hostname, port, timeout=timeout_s)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a later call opens another one."""
        self._connection.close()

    def is_live(self) -> bool:
        """Whether the server process answers at all; it may still be loading models."""
        return self._is_ok("/v2/health/live")

    def is_ready(self) -> bool:
        """Whether the server and all models it should serve are ready for inference."""
        return self._is_ok("/v2/health/ready")

    def is_model_ready(self, name: str, version: str = "") -> bool:
        """Whether that model, or that version of it, is ready for inference."""
        return self._is_ok(f"{_model_path(name, version)}/ready")

    def server_metadata(self) -> dict[str, Any]:
        """Name, version and extensions of the server, as it writes them."""
        return self._get_object("/v2")

    def model_metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """Versions, inputs and outputs of a model; shapes hold -1 where any length will do."""
        return self._get_object(_model_path(name, version))

    def model_config(self, name: str, version: str = "") -> dict[str, Any]:
        """The completed config of a model, in Triton's JSON form of ``model_config.proto``."""
        return self._get_object(f"{_model_path(name, version)}/config")

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """Cumulative statistics of a model, or of all models when no name is given."""
        path = f"{_model_path(name, version)}/stats" if name else "/v2/models/stats"
        return self._get_object(path)

    def infer(  # noqa: PLR0913  one argument for each field of the protocol's request
        self,
        name: str,
        inputs: Sequence[Tensor],
        *,
        version: str = "",
        output_names: Sequence[str] | None = None,
        request_id: str = "",
        parameters: Mapping[str, ParameterValue] | None = None,
        classes: Mapping[str, int] | None = None,
        binary: bool = True,
    ) -> InferResult:
        """Run one inference and wait for its answer.

        Args:
            name: of the model.
            inputs: with the batch axis where the model has one.
            version: empty for the server's choice.
            output_names: what to compute, in that order; None for all outputs.
            request_id: echoed in the answer.
            parameters: such as ``sequence_id``, ``priority`` or the model's own.
            classes: for some of ``output_names``, how many of its largest values to get, as
                text ``value:index:label``, instead of the tensor.
            binary: tensors travel as bytes; otherwise as JSON, which has no FP16 and no BF16.

        Raises:
            InvalidArgumentError: the tensors can't be encoded, or the server refused them.
            InternalError: the model failed, or the answer is not one of the protocol.
        """
        body, header_length = encode_infer_request(
            inputs,
            output_names=output_names,
            request_id=request_id,
            parameters=parameters,
            classes=classes,
            binary=binary,
        )
        headers = {"Content-Type": "application/json"}
        if binary:
            headers = {
                "Content-Type": "application/octet-stream",
                _HEADER_LENGTH: str(header_length),
            }
        path = f"{_model_path(name, version)}/infer"
        response, answer = self._exchange("POST", path, body, headers)
        if response.status != http.client.OK:
            raise decode_error(response.status, answer)
        return decode_infer_response(answer, _parse_header_length(response))

    def _is_ok(self, path: str) -> bool:
        response, _ = self._exchange("GET", path)
        return response.status == http.client.OK

    def _get_object(self, path: str) -> dict[str, Any]:
        response, body = self._exchange("GET", path)
        if response.status != http.client.OK:
            raise decode_error(response.status, body)
        try:
            decoded = parse_json(body)
        except InvalidArgumentError as error:
            told = f"is not JSON: {error}" if body else "is empty"
            msg = f"the answer of {self.url} to {path} {told}. {_WRONG_PORT}"
            raise InternalError(msg) from error
        if not isinstance(decoded, dict):
            msg = f"the answer of {self.url} to {path} is not a JSON object"
            raise InternalError(msg)
        return decoded

    def _exchange(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Send one request and read its whole answer, whatever its status."""
        connection = self._connection
        all_headers = {**self._headers, **(headers or {})}
        if self._is_stale():
            connection.close()
        try:
            if connection.sock is None:
                connection.connect()
            # A server that refuses a body by its length answers and closes before it has read
            # all of it; the answer says why, the broken pipe doesn't.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, self._path_prefix + path, body, all_headers)
            response = connection.getresponse()
            return response, response.read()
        except TimeoutError as error:
            connection.close()
            msg = f"no answer from {self.url} within {self._timeout_s} s"
            raise UnavailableError(msg) from error
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            if _is_no_http(error):
                msg = f"what answers at {self.url} does not speak HTTP/1. {_WRONG_PORT}"
                raise UnavailableError(msg) from error
            told = str(error) or type(error).__name__
            msg = f"no answer from {self.url}: {told}{advise_certificate(error)}"
            raise UnavailableError(msg) from error

    def _is_stale(self) -> bool:
        """Whether the server closed the connection since the last answer.

        Between two exchanges a server has nothing to say, so anything to read is the end of
        the stream, or bytes that belong to no request of ours.
        """
        sock = self._connection.sock
        if sock is None:
            return False
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_READ)
            return bool(selector.select(timeout=0))


def _is_no_http(error: Exception) -> bool:
    # A connection that ends without an answer counts as a bad status line, too, and says more.
    return isinstance(error, http.client.BadStatusLine) and not isinstance(error, OSError)


def _model_path(name: str, version: str) -> str:
    path = f"/v2/models/{quote(name, safe='')}"
    return f"{path}/versions/{quote(version, safe='')}" if version else path


def _parse_header_length(response: http.client.HTTPResponse) -> int | None:
    text = response.getheader(_HEADER_LENGTH)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        msg = f"the response says {_HEADER_LENGTH}: {text}, which is not a number of bytes"
        raise InternalError(msg)
    return int(text)
