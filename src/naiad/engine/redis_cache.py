"""Responses kept in a Redis server, which several servers may share.

Everything here blocks and is called in threads. A Redis that is away costs no request more than one
time-out: it is left alone for a while, and what it would have answered is computed.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import orjson
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from naiad.clock import Clock
from naiad.engine.response_cache import CachedResponse, CacheKey
from naiad.errors import InternalError
from naiad.inference.datatypes import BY_NAME, BYTES
from naiad.inference.statistics import CacheStatistics
from naiad.inference.tensor import Tensor
from naiad.protocol.binary_data import (
    arrange_elements,
    decode_elements,
    encode_tensor,
    view_tensor,
)

_log = logging.getLogger(__name__)

_PREFIX: Final = b"naiad:response:"
_TIMEOUT_S: Final = 0.5
_CONNECT_TIMEOUT_S: Final = 1.0
_PAUSE_NS: Final = 1_000_000_000
# Redis holds at most 512 MiB in a value, and nobody should wait for as much.
_MAX_RESPONSE_BYTES: Final = 64 << 20
_LENGTH_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """Where the Redis server is.

    Attributes:
        host: its name or address.
        port: where it listens.
        username: empty for Redis's default user.
        password: empty for none.
    """

    host: str
    port: int
    username: str = ""
    password: str = ""


class RedisCache:
    """A response cache in Redis, which decides itself what it drops and when.

    Args:
        options: where Redis is.
        clock: for how long it is left alone after a failure.

    Attributes:
        statistics: of this server; the capacity and what is used of it are Redis's own business.
        is_remote: find and insert block, and belong into threads.

    Raises:
        InternalError: Redis can't be reached, or doesn't let this server in.
    """

    is_remote = True

    def __init__(self, options: RedisOptions, clock: Clock) -> None:
        self.statistics = CacheStatistics(0)
        self._clock = clock
        self._lock = threading.Lock()
        self._paused_until_ns = 0
        self._client = redis.Redis(
            options.host,
            options.port,
            username=options.username or None,
            password=options.password or None,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_CONNECT_TIMEOUT_S,
            # Its default tries again for seconds; the model is faster.
            retry=Retry(NoBackoff(), 0),
        )
        try:
            self._client.ping()
        except Exception as error:  # what is no Redis makes its client raise anything
            raise InternalError(
                f"failed to connect to Redis ({options.host}:{options.port}): "
                f"{_login_code(error)}{error}"
            ) from error

    def generation(self, fingerprint: str) -> str:
        """What tells one load of a model version from another.

        Args:
            fingerprint: of its files and config, so that all servers that have the same share the
                answers; empty where it isn't known, and nothing is shared.
        """
        return fingerprint or uuid4().hex

    def takes(self, size_bytes: int) -> bool:
        """Whether a response of this size is kept."""
        return size_bytes <= _MAX_RESPONSE_BYTES

    def find(self, key: CacheKey) -> CachedResponse | None:
        """The response kept under ``key``; None where there is none or Redis is away."""
        data = self._try("GET", _PREFIX + key)
        if data is None:
            return None
        try:
            return decode_response(key, data)
        except Exception as error:  # noqa: BLE001 - whoever writes there may write anything
            _log.warning("a response in Redis can't be read and is passed over: %s", error)
            return None

    def insert(self, key: CacheKey, response: CachedResponse) -> None:
        """Keep a response, if Redis is there."""
        self._try("SET", _PREFIX + key, encode_response(key, response))

    def _try(self, *command: bytes | str) -> bytes | None:
        send: Callable[..., Any] = self._client.execute_command
        if not self._may_ask():
            return None
        try:
            answer = send(*command)
        except Exception as error:  # noqa: BLE001 - its client fails in many ways on odd answers
            with self._lock:
                self._paused_until_ns = self._clock.now_ns() + _PAUSE_NS
            _log.warning("the response cache in Redis is passed over for a second: %s", error)
            return None
        if self._paused_until_ns:
            with self._lock:
                self._paused_until_ns = 0
        return answer if isinstance(answer, bytes) else None

    def _may_ask(self) -> bool:
        """Whether Redis was there the last time, or this one is to see whether it is back."""
        if not self._paused_until_ns:
            return True
        with self._lock:
            now_ns = self._clock.now_ns()
            if now_ns < self._paused_until_ns:
                return False
            # The others pass it over meanwhile: who asks in vain keeps a thread all the while.
            self._paused_until_ns = now_ns + _PAUSE_NS
            return True


def _login_code(error: Exception) -> str:
    """The code that Redis itself puts before its text, and that its client takes away."""
    if not isinstance(error, redis.AuthenticationError):
        return ""
    return "NOAUTH " if "required" in str(error) else "WRONGPASS "


def encode_response(key: CacheKey, response: CachedResponse) -> bytes:
    """Length of the head, the head as JSON, then the outputs as they go over the wire."""
    encoded = [encode_tensor(tensor.datatype, tensor.data) for tensor in response.outputs]
    head = orjson.dumps(
        {
            "key": key.hex(),
            "parameters": response.parameters,
            "outputs": [
                [tensor.name, tensor.datatype.name, list(tensor.shape), size]
                for tensor, (_, size) in zip(response.outputs, encoded, strict=True)
            ],
        }
    )
    length = len(head).to_bytes(_LENGTH_BYTES, "little")
    return b"".join([length, head, *(buffer for buffer, _ in encoded)])


def decode_response(key: CacheKey, data: bytes) -> CachedResponse:
    """The inverse of `encode_response`.

    Raises:
        ValueError, KeyError, TypeError, NaiadError: the bytes are something else, or the response
            of another key: what lies between here and Redis may mix up its answers.
    """
    start = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    head: Mapping[str, Any] = orjson.loads(data[_LENGTH_BYTES:start])
    if head["key"] != key.hex():
        raise ValueError("it is the answer to another request")
    outputs = []
    for name, datatype_name, shape, size in head["outputs"]:
        outputs.append(_decode_tensor(name, datatype_name, shape, data[start : start + size]))
        start += size
    if start != len(data):
        raise ValueError("its length is wrong")
    return CachedResponse(outputs, head["parameters"])


def _decode_tensor(name: str, datatype_name: str, shape: Sequence[int], data: bytes) -> Tensor:
    datatype = BY_NAME[datatype_name]
    if datatype is BYTES:
        array: Any = arrange_elements(decode_elements(data, name), shape)
    else:
        array = view_tensor(datatype, shape, data, 0)
    return Tensor(name, datatype, tuple(shape), array)
