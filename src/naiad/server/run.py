"""The life of a server process: load, listen, wait for a signal, finish, end.

Texts and exit codes are Triton's, since scripts wait for and match them.
"""

import asyncio
import gc
import importlib
import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import orjson

from naiad.clock import Clock, SystemClock
from naiad.engine.engine import IndexEntry
from naiad.engine.log_settings import IS_BLOCK
from naiad.errors import InternalError, InvalidArgumentError, NaiadError, UnavailableError
from naiad.frontends.grpc.server import GrpcServer
from naiad.frontends.http.server import HttpServer
from naiad.frontends.metrics.server import MetricsServer
from naiad.repository.layout import doubt_repository
from naiad.server.build import VERSION, Server, build_server
from naiad.server.logging import ServerLog, format_table
from naiad.server.metrics_option import SETTING_NAMES
from naiad.server.open_files import allow_connections
from naiad.server.rate_limit_option import RateLimit
from naiad.server.settings import Settings

_log = logging.getLogger(__name__)

# In the table of the start, whose words are not the option's.
_RATE_LIMITS: Final = MappingProxyType(
    {RateLimit.OFF: "OFF", RateLimit.EXECUTION_COUNT: "EXEC_COUNT"}
)
# Of the time to stop: what connections have, so that there is time for all else.
_PATIENCE: Final = 0.8
# Of models that did not load, in the last line of a start that failed.
_MAX_NAMES: Final = 10
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a server ended.

    Attributes:
        exit_code: of the process.
        message: for stderr, plain; empty after an orderly end.
        is_hanging: threads may still run, so the process must be ended without waiting for them.
    """

    exit_code: int
    message: str = ""
    is_hanging: bool = False


class StopSignals:
    """SIGINT and SIGTERM as events of the loop.

    Attributes:
        first: set by the first signal: stop in order.
        second: set by the next: stop now.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def install(self) -> None:
        """Take the signals from Python's own handlers."""
        for number in _SIGNALS:
            self._loop.add_signal_handler(number, self._receive, number)

    def remove(self) -> None:
        """Give them back."""
        for number in _SIGNALS:
            self._loop.remove_signal_handler(number)

    def _receive(self, number: signal.Signals) -> None:
        _log.info("Signal (%d) received.", number)
        (self.second if self.first.is_set() else self.first).set()


def run_server(settings: Settings, log: ServerLog) -> Outcome:
    """Run a server until a signal stops it, or until it turns out that it can't run.

    Called in the main thread, which is where signals arrive.

    Args:
        settings: what to run.
        log: already in force; clients may change its settings.
    """
    runner = asyncio.Runner(loop_factory=find_loop_factory())
    outcome = Outcome(1, is_hanging=True)
    try:
        outcome = runner.run(serve(settings, SystemClock(), log))
    finally:
        # Closing waits for threads, and one may be stuck in a model.
        if not outcome.is_hanging:
            runner.close()
    return outcome


def find_loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Uvloop where it is installed, which it is wherever it exists; asyncio's own elsewhere."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ModuleNotFoundError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def serve(settings: Settings, clock: Clock, log: ServerLog) -> Outcome:
    """Load, listen, and serve until a signal comes."""
    signals = StopSignals(asyncio.get_running_loop())
    signals.install()
    for text in settings.deprecated:
        _log.warning("%s", text)
    if settings.inert:
        names = ", ".join(f"--{name}" for name in settings.inert)
        _log.warning("accepted, without effect in this version: %s", names)
    for name in settings.metrics().unknown:
        _log.warning(
            "accepted, without effect: --metrics-config=%s. Its settings are %s",
            name,
            ", ".join(SETTING_NAMES),
        )
    allow_connections((settings.http_max_connections, settings.grpc_max_connections))
    try:
        server = build_server(settings, clock, log.apply)
        failure = await _start(server, settings, signals)
        if failure is not None:
            return failure
        await signals.first.wait()
        return await _stop(server, settings.exit_timeout_secs, signals)
    except NaiadError as error:
        return Outcome(1, f"error: creating server: {error.label} - {error.message}")
    finally:
        signals.remove()


async def _start(server: Server, settings: Settings, signals: StopSignals) -> Outcome | None:
    """Load the models and open the ports; an outcome if it ends here."""
    for place in _places(server):
        try:
            place.listener.check_port()
        except UnavailableError as error:
            return place.failure(error)
    _warn_of_doubts(settings)
    loading = asyncio.ensure_future(server.engine.start())
    if not await _is_done_before(loading, signals.first):
        return Outcome(0, is_hanging=True)
    try:
        failures = loading.result()
    except NaiadError as error:
        if settings.exit_on_error:
            raise
        # As Triton does: what asks it, learns that it is neither live nor ready.
        _log.error("failed to initialize: %s", error.reason())
        return await _listen(server)
    _log_table(("Repository Agent", "Path"), ())
    _log_table(("Backend", "Path", "Config"), _backend_rows(server, settings))
    _log_table(
        ("Model", "Version", "Status"), _model_rows(await server.engine.index(ready_only=False))
    )
    if failures and settings.exit_on_error:
        await server.engine.stop()
        return Outcome(1, f"error: creating server: {_describe_failures(settings, failures)}")
    _log_table(("Option", "Value"), _option_rows(server, settings))
    # Modules and models stay. A full collection would look at each of their objects again, which
    # holds the loop for 20 ms and more.
    gc.collect()
    gc.freeze()
    return await _listen(server)


def _warn_of_doubts(settings: Settings) -> None:
    for path in settings.model_repository:
        # What isn't there is an error, which comes when the models are looked for.
        if isinstance(path, Path) and path.is_dir() and (doubt := doubt_repository(path)):
            _log.warning("%s", doubt)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the server listens, and how that is called."""

    service: str
    name: str
    option: str
    listener: HttpServer | GrpcServer | MetricsServer

    def failure(self, error: NaiadError) -> Outcome:
        return Outcome(
            1,
            f"failed to start {self.name} service: {error.label} - {error.message}; "
            f"choose another port with {self.option}",
        )


def _places(server: Server) -> list[_Place]:
    return [
        _Place(service, name, option, listener)
        for service, name, option, listener in (
            ("GRPCInferenceService", "GRPC", "--grpc-port", server.grpc),
            ("HTTPService", "HTTP", "--http-port", server.http),
            ("Metrics Service", "Metrics", "--metrics-port", server.metrics),
        )
        if listener is not None
    ]


async def _listen(server: Server) -> Outcome | None:
    for place in _places(server):
        listener = place.listener
        try:
            await listener.start()
        except (UnavailableError, InvalidArgumentError) as error:
            await _close(server)
            return place.failure(error)
        _log.info("Started %s at %s:%d", place.service, listener.address, listener.port)
    return None


async def _stop(server: Server, timeout_s: int, signals: StopSignals) -> Outcome:
    """Take no more requests, finish those under way, unload."""
    server.engine.announce_stop()
    _log.info("Waiting for in-flight requests to complete.")
    _log_connections(server, timeout_s)
    draining = asyncio.ensure_future(_drain(server, timeout_s))
    if not await _is_done_before(draining, signals.second, timeout_s):
        reason = (
            "stopped by a second signal, with requests unanswered"
            if signals.second.is_set()
            else "failed to stop server: Internal - Exit timeout expired. Exiting immediately."
        )
        return Outcome(1, reason, is_hanging=True)
    draining.result()
    _log.info("All models are stopped.")
    return Outcome(0)


def _log_connections(server: Server, timeout_s: int) -> None:
    """Say in Triton's words who is still connected."""
    for listener, text in (
        (server.grpc, "Timeout %d: Found %d gRPC service connections and inference handlers"),
        (server.http, "Timeout %d: Found %d HTTP service connections"),
    ):
        if listener is not None and listener.connection_count:
            _log.info(text, timeout_s, listener.connection_count)


async def _drain(server: Server, timeout_s: int) -> None:
    ports = [port for port in (server.http, server.grpc) if port is not None]
    # A client that does not send the rest of its request, or take its answer, must not cost the
    # orderly end. What models still work on has the rest of the time, too.
    patience_s = timeout_s * _PATIENCE
    await asyncio.gather(*(port.drain(patience_s) for port in ports))
    await _close(server)


async def _close(server: Server) -> None:
    await server.engine.stop()
    if server.http is not None:
        server.http.close()
    if server.grpc is not None:
        server.grpc.close()
    if server.metrics is not None:
        await server.metrics.close()


async def _is_done_before(
    work: "asyncio.Future[Any]", event: asyncio.Event, timeout_s: float | None = None
) -> bool:
    """Whether ``work`` ends before the event is set and the time is over."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({work, waiting}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    return work.done()


def _describe_failures(settings: Settings, failures: Mapping[str, NaiadError]) -> str:
    """Triton names the reason only of models that it was told by name to load."""
    text = f"{InternalError.label} - failed to load all models"
    if settings.load_model and "*" not in settings.load_model:
        for error in failures.values():
            if isinstance(error, InvalidArgumentError):
                text = f"{error.label} - {error.message.rstrip()}"
                break
    names = [f"'{name}'" for name in list(failures)[:_MAX_NAMES]]
    more = len(failures) - len(names)
    listing = ", ".join(names) + (f" and {more} more" if more else "")
    return (
        f"{text}\nNot loaded: {listing}; why stands in the log above. With --exit-on-error=false "
        "the server starts without them."
    )


def _log_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    _log.info("%s", format_table(headings, rows), extra={IS_BLOCK: True})


def _backend_rows(server: Server, settings: Settings) -> list[tuple[str, str, str]]:
    completes = str(not settings.disable_auto_complete_config).lower()
    return [
        (
            name,
            server.backends.module_name(name),
            orjson.dumps(
                {"cmdline": {"auto-complete-config": completes, **settings.backend_settings(name)}}
            ).decode(),
        )
        for name in server.backends.loaded_names
    ]


def _model_rows(index: Sequence[IndexEntry]) -> list[tuple[str, str, str]]:
    return [
        (entry.name, entry.version or "-", _status(entry))
        for entry in index
        if entry.state is not None
    ]


def _status(entry: IndexEntry) -> str:
    if entry.lacks_versions:
        return "Not loaded: No model version was found"
    return f"{entry.state}: {entry.cause}" if entry.cause else str(entry.state)


def _option_rows(server: Server, settings: Settings) -> list[tuple[str, str]]:
    return [
        ("server_id", settings.server_id),
        ("server_version", VERSION),
        ("server_extensions", " ".join(server.engine.extensions)),
        *(
            (f"model_repository_path[{index}]", str(path))
            for index, path in enumerate(settings.model_repository)
        ),
        ("model_control_mode", f"MODE_{settings.model_control_mode.upper()}"),
        *((f"startup_models_{index}", name) for index, name in enumerate(settings.load_model)),
        ("strict_model_config", str(int(settings.disable_auto_complete_config))),
        ("model_config_name", settings.model_config_name),
        ("rate_limit", _RATE_LIMITS[settings.rate_limit]),
        # There is no pinned memory here, and no GPU to ask for its capability.
        ("pinned_memory_pool_byte_size", "0"),
        ("min_supported_compute_capability", "0.0"),
        ("strict_readiness", str(int(settings.strict_readiness))),
        ("exit_timeout", str(settings.exit_timeout_secs)),
        ("cache_enabled", str(int(bool(settings.cache_config)))),
    ]
