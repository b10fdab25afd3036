"""The composition root: from settings to the objects of a server, none of them started."""

import atexit
import importlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import mkdtemp
from types import MappingProxyType
from typing import Final

from naiad.backends.registry import BackendRegistry
from naiad.clock import Clock
from naiad.engine.engine import Engine, EngineOptions
from naiad.engine.latencies import LatencyOptions
from naiad.engine.lifecycle import LoadOptions
from naiad.engine.loader import Loader, LoaderOptions
from naiad.engine.log_settings import LogSettings
from naiad.engine.response_cache import ResponseStore
from naiad.errors import UnsupportedError
from naiad.frontends.asgi.application import AsgiApplication
from naiad.frontends.byte_budget import ByteBudget
from naiad.frontends.grpc.options import GrpcOptions, Keepalive
from naiad.frontends.grpc.server import GrpcServer
from naiad.frontends.http.options import HttpOptions
from naiad.frontends.http.server import HttpServer
from naiad.frontends.metrics.server import MetricsOptions, MetricsServer
from naiad.inference.statistics import ModelStatistics
from naiad.metrics.cpu import MachineMonitor
from naiad.metrics.exposition import MetricsRenderer
from naiad.protocol.log_settings import LogSettingValues
from naiad.repository.repositories import Storage
from naiad.server.capacity import core_count, gpu_ids, request_budget_bytes
from naiad.server.host_policy import find_policy_cores
from naiad.server.rate_limit_option import RateLimit
from naiad.server.settings import (
    CompressionLevel,
    GpuFallback,
    Settings,
    read_held_counts,
    read_redis_login,
    read_storage_environment,
)

VERSION: Final = version("naiad")

_ZLIB_LEVELS: Final[Mapping[CompressionLevel, int]] = MappingProxyType(
    {
        CompressionLevel.NONE: 0,
        CompressionLevel.LOW: 1,
        CompressionLevel.MEDIUM: 6,
        CompressionLevel.HIGH: 9,
    }
)


@dataclass(slots=True)
class Server:
    """Everything that runs.

    Attributes:
        engine: the models.
        backends: the frameworks that models asked for.
        http: None where the settings don't allow it.
        grpc: the same.
        metrics: the same.
    """

    engine: Engine
    backends: BackendRegistry
    http: HttpServer | None
    grpc: GrpcServer | None
    metrics: MetricsServer | None


@dataclass(frozen=True, slots=True)
class _MeasuredModel:
    """A model as the metrics see it."""

    name: str
    version: int
    namespace: str
    statistics: ModelStatistics
    metric_tags: Mapping[str, str]


def build_server(
    settings: Settings, clock: Clock, apply_log_settings: Callable[[LogSettingValues], None]
) -> Server:
    """Make the server that the settings describe; nothing is loaded and no port is open.

    Args:
        settings: what to make.
        clock: of everything that measures time.
        apply_log_settings: puts the log settings in force that a client chooses.

    Raises:
        NaiadError: settings that can't be followed here.
    """
    backends = BackendRegistry(settings.backend_directory)
    engine = _build_engine(settings, clock, apply_log_settings, backends)
    budget = _build_budget(settings)
    http = HttpServer(engine, _http_options(settings), budget) if settings.allow_http else None
    grpc = GrpcServer(engine, _grpc_options(settings), budget) if settings.allow_grpc else None
    return Server(engine, backends, http, grpc, _build_metrics(settings, engine, clock))


def build_application(
    settings: Settings, clock: Clock, apply_log_settings: Callable[[LogSettingValues], None]
) -> tuple[Engine, AsgiApplication]:
    """The same as an ASGI application over an engine that is not started.

    Args and errors are those of ``build_server``.
    """
    engine = _build_engine(
        settings, clock, apply_log_settings, BackendRegistry(settings.backend_directory)
    )
    return engine, AsgiApplication(engine, _http_options(settings), _build_budget(settings))


def _build_engine(
    settings: Settings,
    clock: Clock,
    apply_log_settings: Callable[[LogSettingValues], None],
    backends: BackendRegistry,
) -> Engine:
    log_settings = LogSettings(settings.log_values(), apply_log_settings)
    return Engine(
        _engine_options(settings, clock), _build_loader(settings, backends), clock, log_settings
    )


def _build_budget(settings: Settings) -> ByteBudget:
    return ByteBudget(settings.request_memory_byte_size or request_budget_bytes())


def _open_redis(settings: Mapping[str, str], clock: Clock) -> ResponseStore:
    try:
        # Not before it is asked for: the client library is an extra.
        redis_cache = importlib.import_module("naiad.engine.redis_cache")
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            "--cache-config=redis needs the Redis client, which is not installed; run: pip install "
            "'naiad[redis]'"
        ) from error
    username, password = read_redis_login()
    options = redis_cache.RedisOptions(
        settings["host"],
        int(settings["port"]),
        settings.get("username", settings.get("user", username)),
        settings.get("password", password),
    )
    cache: ResponseStore = redis_cache.RedisCache(options, clock)
    return cache


def _engine_options(settings: Settings, clock: Clock) -> EngineOptions:
    cache = settings.cache()
    metrics = settings.metrics()
    return EngineOptions(
        server_id=settings.server_id,
        server_version=VERSION,
        control_mode=settings.model_control_mode,
        startup_models=settings.load_model,
        poll_interval_s=settings.repository_poll_secs,
        loads=LoadOptions(
            settings.model_load_thread_count,
            settings.model_load_retry_count,
            settings.max_queue_bytes or request_budget_bytes(),
            LatencyOptions(metrics.targets, metrics.has_histograms),
        ),
        is_readiness_strict=settings.strict_readiness,
        is_client_shared_memory_allowed=settings.allow_client_shm,
        trace=settings.trace_values(),
        response_cache_bytes=cache.local_bytes,
        response_store=None if cache.redis is None else _open_redis(cache.redis, clock),
        resource_limits=(
            None if settings.rate_limit is RateLimit.OFF else settings.rate_limit_resource
        ),
    )


def _build_loader(settings: Settings, backends: BackendRegistry) -> Loader:
    paths = [path for path in settings.model_repository if isinstance(path, Path)]
    urls = [url for url in settings.model_repository if isinstance(url, str)]
    held_until_count, held_until_backlog_count = read_held_counts()
    options = LoaderOptions(
        repositories=tuple(paths),
        storages=_open_storages(urls, settings.repository_cache_directory) if urls else (),
        config_name=settings.model_config_name,
        is_completion_disabled=settings.disable_auto_complete_config,
        allow_file_override=settings.allow_file_override,
        backend_settings={name: settings.backend_settings(name) for name in backends.names},
        held_until_count=held_until_count,
        held_until_backlog_count=held_until_backlog_count,
        gpu_ids=gpu_ids(),
        core_count=core_count(),
        policy_cores=find_policy_cores(settings.host_policy),
        is_gpu_replaced=settings.gpu_fallback is GpuFallback.CPU,
        is_namespaced=settings.model_namespacing,
        is_cache_shared=settings.cache().redis is not None,
        target_latency_ms=settings.batching_target_latency_ms,
    )
    return Loader(options, backends)


def _open_storages(urls: Sequence[str], cache_directory: str) -> tuple[Storage, ...]:
    try:
        # Not before it is asked for: most servers read folders, and the extra isn't there.
        storage = importlib.import_module("naiad.repository.storage")
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"model repository {urls[0]} needs obstore, which is not installed; run: pip install "
            "'naiad[storage]'"
        ) from error
    cache = Path(cache_directory or mkdtemp(prefix="naiad-repository-"))
    if not cache_directory:
        atexit.register(shutil.rmtree, cache, ignore_errors=True)
    environment = read_storage_environment()
    return tuple(storage.open_repository(url, environment, cache) for url in urls)


def _http_options(settings: Settings) -> HttpOptions:
    return HttpOptions(
        address=settings.http_address,
        port=settings.http_port,
        reuse_port=settings.reuse_http_port,
        max_input_bytes=settings.http_max_input_size,
        max_body_bytes=settings.http_max_body_size,
        max_connections=settings.http_max_connections,
        max_idle_ms=settings.http_max_connection_idle,
        restrictions=settings.http_restrictions(),
        header_forward_pattern=settings.http_header_forward_pattern,
        tls=settings.http_tls(),
    )


def _grpc_options(settings: Settings) -> GrpcOptions:
    return GrpcOptions(
        address=settings.grpc_address,
        port=settings.grpc_port,
        reuse_port=settings.reuse_grpc_port,
        max_receive_message_bytes=settings.grpc_max_receive_message_size,
        max_send_message_bytes=settings.grpc_max_send_message_size,
        max_concurrent_streams=settings.grpc_max_concurrent_streams,
        keepalive=Keepalive(
            time_ms=settings.grpc_keepalive_time,
            timeout_ms=settings.grpc_keepalive_timeout,
            permit_without_calls=settings.grpc_keepalive_permit_without_calls,
            max_pings_without_data=settings.grpc_http2_max_pings_without_data,
            min_recv_interval_ms=settings.grpc_http2_min_recv_ping_interval_without_data,
            max_strikes=settings.grpc_http2_max_ping_strikes,
        ),
        max_connections=settings.grpc_max_connections,
        max_idle_ms=settings.grpc_max_connection_idle,
        max_connection_age_ms=settings.grpc_max_connection_age,
        max_connection_age_grace_ms=settings.grpc_max_connection_age_grace,
        compression_level=_ZLIB_LEVELS[settings.grpc_infer_response_compression_level],
        header_forward_pattern=settings.grpc_header_forward_pattern,
        restrictions=settings.grpc_restrictions(),
        tls=settings.grpc_tls(),
        http_port=settings.http_port if settings.allow_http else 0,
    )


def _build_metrics(settings: Settings, engine: Engine, clock: Clock) -> MetricsServer | None:
    if not settings.allow_metrics:
        return None
    renderer = MetricsRenderer(
        lambda: _measure(engine),
        _build_monitor(settings, clock),
        engine.custom_metrics.read,
        cache=engine.cache_statistics,
        has_latency_sums=settings.metrics().has_counters,
    )
    address = settings.metrics_address or settings.http_address
    return MetricsServer(renderer.render, MetricsOptions(address, settings.metrics_port))


def _build_monitor(settings: Settings, clock: Clock) -> MachineMonitor | None:
    if not settings.allow_cpu_metrics:
        return None
    try:
        return MachineMonitor(clock, settings.metrics_interval_ms * 1_000_000)
    except (OSError, ValueError):
        # Not Linux: there is nothing to read, so the metrics aren't there either.
        return None


def _measure(engine: Engine) -> Iterator[_MeasuredModel]:
    for namespace, model in engine.serving():
        tags = dict(model.config.metric_tags)
        yield _MeasuredModel(model.name, model.version, namespace, model.statistics, tags)
