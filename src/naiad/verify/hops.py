"""The stations that a golden case passes through; each but the concurrent one is a :class:`Hop`."""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

from naiad.inference.comparison import Outputs
from naiad.repository.golden import GoldenCase
from naiad.verify.grpc_wire import open_grpc_caller
from naiad.verify.wire import (
    Caller,
    CallFailedError,
    MissingError,
    SilentError,
    Target,
    get_json,
    has_binary_tensors,
    open_caller,
    post,
)

CLIENTS: Final = 16
"""Concurrent clients of the mixed hop."""

# JSON has no form for these two; Triton refuses them with 400.
_NOT_IN_JSON: Final = frozenset({"FP16", "BF16"})


class HopFailedError(Exception):
    """The hop gave no outputs for a case; the text says why."""


class HopMissingError(HopFailedError):
    """The server doesn't have this way to a model, which no KServe server must; the text why."""


class HopSilentError(HopFailedError):
    """The hop didn't answer in time; asking it more would only wait more."""


class Hop(Protocol):
    """One place that answers for the model."""

    @property
    def name(self) -> str:
        """As the report shows it."""
        ...

    def refusal(self) -> str:
        """Why this hop can't carry this model at all, or ""."""
        ...

    def run(self, case: GoldenCase) -> Outputs:
        """Answer the case's inputs.

        Raises:
            HopFailedError: no answer.
        """
        ...


class Transport(StrEnum):
    """The ways to a served model."""

    JSON = "served, HTTP JSON"
    BINARY = "served, HTTP binary"
    GRPC = "served, gRPC"
    GRPC_STREAM = "served, gRPC stream"


# A server without the first is no Triton, and what it makes of ModelStreamInfer is its own:
# MLServer's streams are of other messages.
_EXTENSIONS: Final[Mapping[Transport, str]] = {
    Transport.BINARY: "binary_tensor_data",
    Transport.GRPC_STREAM: "ModelStreamInfer",
}


class ServedHop:
    """The served model, one request at a time.

    Raises:
        HopFailedError: nobody listens.
    """

    def __init__(self, target: Target, transport: Transport, *, name: str = "") -> None:
        self.name = name or str(transport)
        self._target = target
        self._transport = transport
        try:
            self._caller = _open_caller(target, transport)
        except CallFailedError as error:
            raise HopFailedError(str(error)) from error

    def refusal(self) -> str:
        """JSON can't carry every datatype, and not every KServe server has Triton's extensions."""
        if self._transport in _EXTENSIONS and not has_binary_tensors(self._target):
            name = _EXTENSIONS[self._transport]
            return f"{name} is an extension of Triton's, and the server announces none of them"
        if self._transport is not Transport.JSON:
            return ""
        return ", ".join(
            f"{datatype} has no JSON form"
            for datatype in sorted(_NOT_IN_JSON & self._target.datatypes())
        )

    def run(self, case: GoldenCase) -> Outputs:
        """Send the case and wait for its answer."""
        try:
            return self._caller.infer(case.inputs, binary=self._transport is not Transport.JSON)
        except MissingError as error:
            raise HopMissingError(str(error)) from error
        except SilentError as error:
            raise HopSilentError(str(error)) from error
        except CallFailedError as error:
            raise HopFailedError(str(error)) from error

    def close(self) -> None:
        """Close the connection."""
        self._caller.close()


def _open_caller(target: Target, transport: Transport) -> Caller:
    if transport in {Transport.JSON, Transport.BINARY}:
        return open_caller(target)
    return open_grpc_caller(target, is_stream=transport is Transport.GRPC_STREAM)


@dataclass(frozen=True, slots=True)
class Executions:
    """What the server executed between two readings of its statistics.

    Attributes:
        requests: requests that succeeded.
        executions: batches the model ran.
        batch_sizes: rows in a batch -> how many such batches ran.
    """

    requests: int
    executions: int
    batch_sizes: Mapping[int, int]

    def has_mixed(self) -> bool:
        """Whether some batch held more than one request."""
        return self.executions < self.requests

    def since(self, earlier: "Executions") -> "Executions":
        """What happened after ``earlier``."""
        sizes = {
            size: count - earlier.batch_sizes.get(size, 0)
            for size, count in sorted(self.batch_sizes.items())
        }
        return Executions(
            self.requests - earlier.requests,
            self.executions - earlier.executions,
            {size: count for size, count in sizes.items() if count > 0},
        )


def read_executions(target: Target) -> Executions:
    """The counters of the model's statistics endpoint.

    Raises:
        HopFailedError: the server gave no statistics for this version.
    """
    path = f"/v2/models/{target.model}/versions/{target.version}/stats"
    try:
        stats: Mapping[str, Any] = get_json(target, path)["model_stats"][0]
        return Executions(
            int(stats["inference_stats"]["success"]["count"]),
            int(stats["execution_count"]),
            {
                int(batch["batch_size"]): int(batch["compute_infer"]["count"])
                for batch in stats.get("batch_stats", [])
            },
        )
    except (CallFailedError, LookupError, TypeError) as error:
        raise HopFailedError(f"no statistics at {path}: {error}") from error


class ConcurrentHop:
    """Many clients at once, so that the server's batcher joins their requests."""

    name: Final = f"served, {CLIENTS} clients"

    def __init__(self, target: Target) -> None:
        self._target = target
        self._is_binary = has_binary_tensors(target)

    def run_mixed(self, cases: Sequence[GoldenCase], rounds: int) -> "MixedAnswers":
        """Let every client send its cases at the same moment as the others.

        Client ``i`` starts with case ``i`` and walks around, so that different cases meet in
        one batch; a row that ends in another request's answer is then a visible difference.

        Args:
            cases: at least one.
            rounds: requests that each client sends, at least one.

        Returns:
            Every answer with its case, and what the server executed meanwhile.

        Raises:
            HopFailedError: a client got no answer.
        """
        before = self._read_executions()
        start = threading.Barrier(CLIENTS)
        with ThreadPoolExecutor(CLIENTS) as pool:
            clients = [
                pool.submit(
                    self._run_client, start, [cases[(i + r) % len(cases)] for r in range(rounds)]
                )
                for i in range(CLIENTS)
            ]
            answers = [answer for client in clients for answer in client.result()]
        after = self._read_executions()
        executions = None if before is None or after is None else after.since(before)
        return MixedAnswers(answers, executions)

    def _read_executions(self) -> Executions | None:
        try:
            return read_executions(self._target)
        except HopFailedError:
            # Not every KServe server counts; the answers are judged all the same.
            return None

    def _run_client(
        self, start: threading.Barrier, cases: Sequence[GoldenCase]
    ) -> list[tuple[GoldenCase, Outputs]]:
        caller = open_caller(self._target)
        try:
            start.wait(timeout=60)
            return [(case, caller.infer(case.inputs, binary=self._is_binary)) for case in cases]
        except CallFailedError as error:
            raise HopFailedError(str(error)) from error
        finally:
            caller.close()


@dataclass(frozen=True, slots=True)
class MixedAnswers:
    """The outcome of the concurrent hop.

    Attributes:
        answers: each case as often as it was sent, with what came back.
        executions: what the server ran for them, and for anybody else who called it meanwhile;
            None where it has no statistics.
    """

    answers: Sequence[tuple[GoldenCase, Outputs]]
    executions: Executions | None


def reload_model(target: Target) -> None:
    """Unload the model and load it again; returns when it serves.

    Raises:
        HopFailedError: the server refuses, as one without explicit model control does.
    """
    path = f"/v2/repository/models/{target.model}"
    try:
        post(target, f"{path}/unload")
        post(target, f"{path}/load")
    except CallFailedError as error:
        raise HopFailedError(str(error)) from error
