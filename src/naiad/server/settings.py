"""The server's settings: each option declared once, as a field.

The flag, the environment variable and the line of the help derive from the field. Names and
defaults are Triton's (server's command_line_parser.cc) but for ``http-address``, which is this
machine alone until its user says otherwise.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, get_type_hints

from naiad.access.restricted_apis import (
    Api,
    RestrictedApis,
    RestrictedGroup,
    parse_restricted_group,
)
from naiad.engine.engine import ModelControlMode
from naiad.errors import InvalidArgumentError
from naiad.frontends.grpc.options import MAX_MESSAGE_BYTES
from naiad.frontends.open_connections import DEFAULT_MAX_CONNECTIONS, DEFAULT_MAX_IDLE_MS
from naiad.frontends.tls import Tls
from naiad.inference.trace import TraceLevel
from naiad.protocol.forwarded_headers import compile_forward_pattern
from naiad.protocol.log_settings import LogSettingValues
from naiad.protocol.trace_setting import TraceSettingValues
from naiad.repository.storage_location import ENVIRONMENT_NAMES, is_storage_url
from naiad.scheduling.rate_limiter import ResourceLimit
from naiad.server.cache_option import (
    CacheAssignment,
    CacheChoice,
    choose_cache,
    parse_cache_config,
)
from naiad.server.host_policy import HostPolicySetting, parse_host_policy
from naiad.server.inert import INERT_OPTIONS
from naiad.server.metrics_option import (
    MetricsAssignment,
    MetricsChoice,
    choose_metrics,
    parse_metrics_config,
)
from naiad.server.option import (
    ENVIRONMENT_SEPARATOR,
    Group,
    Option,
    choice,
    integer,
    parse_boolean,
    parse_level,
    parse_name,
    parse_text,
)
from naiad.server.rate_limit_option import RateLimit, parse_resource_limit
from naiad.server.trace_options import (
    TraceAssignment,
    merge_trace_options,
    parse_log_frequency,
    parse_trace_config,
    parse_trace_count,
    parse_trace_level,
    parse_trace_rate,
)

_MAX_PORT: Final = 65535
_MAX_THREADS: Final = 1024
_MAX_RETRIES: Final = 1_000_000


class LogFormat(StrEnum):
    """How a log line begins."""

    DEFAULT = "default"
    ISO8601 = "ISO8601"


class GpuFallback(StrEnum):
    """What becomes of instances that a config wants on a GPU that isn't there."""

    ERROR = "error"
    CPU = "cpu"


class CompressionLevel(StrEnum):
    """How much work a compressed response may cost."""

    NONE = "none"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class BadOptionError(InvalidArgumentError):
    """An option or a combination of options that the server can't start with."""


def _bad_value(name: str, reason: str) -> BadOptionError:
    return BadOptionError(f'Bad option: "{name}".\n{reason}')


def _repository(text: str) -> Path | str:
    """A folder, or the URL of one in object storage as it is written."""
    return text if is_storage_url(text) else Path(text)


def _backend_setting(text: str) -> tuple[str, str, str]:
    """``<backend>,<key>=<value>``, or ``<key>=<value>`` for all backends."""
    assignment, equals, value = text.partition("=")
    backend, comma, key = assignment.rpartition(",")
    if not equals or not key or (comma and not backend):
        raise ValueError(f"expected BACKEND,KEY=VALUE or KEY=VALUE, got '{text}'")
    return backend, key, value


def _forward_pattern(text: str) -> re.Pattern[str] | None:
    """A regular expression; None where the text is empty, which is Triton's default."""
    return compile_forward_pattern(text) if text else None


def _check(name: str, make: Callable[[], object]) -> None:
    """Hold the values of one option against each other."""
    try:
        make()
    except ValueError as error:
        raise _bad_value(name, str(error)) from error


def _restricted_group(option: str, kind: str) -> Callable[[str], RestrictedGroup]:
    def parse(text: str) -> RestrictedGroup:
        return parse_restricted_group(text, option, kind)

    return parse


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the server was asked to be; immutable, and checked as a whole when made.

    Attributes:
        inert: options that were given and have no effect.
        deprecated: options that were given by an old name, each with what to write instead.

    Raises:
        BadOptionError: two options contradict each other.
    """

    server_id: Annotated[
        str, Option("id", parse_text, "NAME", "Name of the server in its metadata.", Group.GLOBAL)
    ] = "triton"
    exit_timeout_secs: Annotated[
        int,
        Option(
            "exit-timeout-secs",
            integer(0),
            "SECONDS",
            "How long requests may go on after the signal to stop.",
            Group.GLOBAL,
        ),
    ] = 30

    model_repository: Annotated[
        tuple[Path | str, ...],
        Option(
            "model-repository",
            _repository,
            "DIR",
            "Folder of models, or s3://, gs:// or as:// for object storage; may be repeated, and "
            "given without the flag.",
            Group.REPOSITORY,
            is_repeatable=True,
            aliases=("model-store",),
        ),
    ] = ()
    repository_cache_directory: Annotated[
        str,
        Option(
            "repository-cache-directory",
            parse_text,
            "DIR",
            "Where models from object storage are kept between starts; without it a temporary "
            "folder is.",
            Group.REPOSITORY,
        ),
    ] = ""
    model_control_mode: Annotated[
        ModelControlMode,
        Option(
            "model-control-mode",
            choice(ModelControlMode),
            "none|poll|explicit",
            "Load all models at start; follow the repository's changes, too; or load what "
            "--load-model and clients ask for.",
            Group.REPOSITORY,
        ),
    ] = ModelControlMode.NONE
    repository_poll_secs: Annotated[
        int,
        Option(
            "repository-poll-secs",
            integer(0),
            "SECONDS",
            "With --model-control-mode=poll, time between two looks at the repositories; 0 for no "
            "more looks. A changed folder is loaded once two looks in a row find it the same.",
            Group.REPOSITORY,
        ),
    ] = 15
    model_load_thread_count: Annotated[
        int,
        Option(
            "model-load-thread-count",
            integer(1, _MAX_THREADS),
            "N",
            "Model versions that load at the same time.",
            Group.REPOSITORY,
        ),
    ] = 4
    model_load_retry_count: Annotated[
        int,
        Option(
            "model-load-retry-count",
            integer(0, _MAX_RETRIES),
            "N",
            "How often a load that failed is tried again.",
            Group.REPOSITORY,
        ),
    ] = 0
    load_model: Annotated[
        tuple[str, ...],
        Option(
            "load-model",
            parse_text,
            "NAME",
            "Model to load at start with explicit control; may be repeated; * for all.",
            Group.REPOSITORY,
            is_repeatable=True,
        ),
    ] = ()
    model_namespacing: Annotated[
        bool,
        Option(
            "model-namespacing",
            parse_boolean,
            "BOOL",
            "Serve models of the same name from different repositories; the steps of an ensemble "
            "are those of its own repository first.",
            Group.REPOSITORY,
        ),
    ] = False
    exit_on_error: Annotated[
        bool,
        Option(
            "exit-on-error",
            parse_boolean,
            "BOOL",
            "Exit when a model fails to load at start.",
            Group.REPOSITORY,
        ),
    ] = True
    strict_readiness: Annotated[
        bool,
        Option(
            "strict-readiness",
            parse_boolean,
            "BOOL",
            "Ready only while every model is.",
            Group.REPOSITORY,
        ),
    ] = True
    disable_auto_complete_config: Annotated[
        bool,
        Option(
            "disable-auto-complete-config",
            parse_boolean,
            "BOOL",
            "Take model configs as written, and fill nothing from the model file.",
            Group.REPOSITORY,
            deprecated_aliases=("strict-model-config",),
        ),
    ] = False
    model_config_name: Annotated[
        str,
        Option(
            "model-config-name",
            parse_name,
            "NAME",
            "Read configs/NAME.pbtxt of a model where there is one.",
            Group.REPOSITORY,
        ),
    ] = ""
    allow_file_override: Annotated[
        bool,
        Option(
            "allow-file-override",
            parse_boolean,
            "BOOL",
            "Let load requests bring model files. They run as this server does.",
            Group.REPOSITORY,
        ),
    ] = False

    allow_http: Annotated[
        bool, Option("allow-http", parse_boolean, "BOOL", "Serve HTTP.", Group.HTTP)
    ] = True
    http_address: Annotated[
        str,
        Option(
            "http-address",
            parse_text,
            "ADDRESS",
            "Where HTTP listens; 0.0.0.0 lets other machines in.",
            Group.HTTP,
        ),
    ] = "127.0.0.1"
    http_port: Annotated[
        int,
        Option(
            "http-port",
            integer(0, _MAX_PORT),
            "PORT",
            "Port of HTTP; 0 takes a free one and logs it.",
            Group.HTTP,
        ),
    ] = 8000
    reuse_http_port: Annotated[
        bool,
        Option(
            "reuse-http-port",
            parse_boolean,
            "BOOL",
            "Let several servers listen on the port.",
            Group.HTTP,
        ),
    ] = False
    http_max_input_size: Annotated[
        int,
        Option(
            "http-max-input-size",
            integer(-(1 << 62)),
            "BYTES",
            "Largest JSON text of a request, and largest tensor in it.",
            Group.HTTP,
        ),
    ] = 64 << 20
    http_max_body_size: Annotated[
        int,
        Option(
            "http-max-body-size",
            integer(1),
            "BYTES",
            "Largest body of a request, binary tensors included.",
            Group.HTTP,
        ),
    ] = 2 << 30
    http_max_connections: Annotated[
        int,
        Option(
            "http-max-connections",
            integer(0),
            "COUNT",
            "Connections at a time; 0 for any number.",
            Group.HTTP,
        ),
    ] = DEFAULT_MAX_CONNECTIONS
    http_max_connection_idle: Annotated[
        int,
        Option(
            "http-max-connection-idle",
            integer(0),
            "MS",
            "Time without a request after which a connection is closed; 0 for none.",
            Group.HTTP,
        ),
    ] = DEFAULT_MAX_IDLE_MS

    http_use_ssl: Annotated[
        bool,
        Option("http-use-ssl", parse_boolean, "BOOL", "Serve HTTPS in place of HTTP.", Group.HTTP),
    ] = False
    http_use_ssl_mutual: Annotated[
        bool,
        Option(
            "http-use-ssl-mutual",
            parse_boolean,
            "BOOL",
            "The same, and clients need a certificate that --http-root-cert has signed.",
            Group.HTTP,
        ),
    ] = False
    http_server_cert: Annotated[
        str,
        Option("http-server-cert", parse_text, "FILE", "PEM certificate for HTTPS.", Group.HTTP),
    ] = ""
    http_server_key: Annotated[
        str,
        Option("http-server-key", parse_text, "FILE", "PEM key of the certificate.", Group.HTTP),
    ] = ""
    http_root_cert: Annotated[
        str,
        Option(
            "http-root-cert",
            parse_text,
            "FILE",
            "PEM certificate of whoever signs the clients' certificates.",
            Group.HTTP,
        ),
    ] = ""
    http_header_forward_pattern: Annotated[
        re.Pattern[str] | None,
        Option(
            "http-header-forward-pattern",
            _forward_pattern,
            "REGEX",
            "Headers whose name has a match become parameters of the request.",
            Group.HTTP,
        ),
    ] = None
    http_restricted_api: Annotated[
        tuple[RestrictedGroup, ...],
        Option(
            "http-restricted-api",
            _restricted_group("http-restricted-api", "api"),
            "API,API:KEY=VALUE",
            "Parts of the API that need the header KEY with VALUE; may be repeated. Parts: "
            + ", ".join(Api)
            + ".",
            Group.HTTP,
            is_repeatable=True,
        ),
    ] = ()

    allow_grpc: Annotated[
        bool, Option("allow-grpc", parse_boolean, "BOOL", "Serve gRPC.", Group.GRPC)
    ] = True
    grpc_address: Annotated[
        str,
        Option(
            "grpc-address",
            parse_text,
            "ADDRESS",
            "Where gRPC listens; 0.0.0.0 lets other machines in, unix:PATH is a socket file.",
            Group.GRPC,
        ),
    ] = "127.0.0.1"
    grpc_port: Annotated[
        int,
        Option(
            "grpc-port",
            integer(0, _MAX_PORT),
            "PORT",
            "Port of gRPC; 0 takes a free one and logs it.",
            Group.GRPC,
        ),
    ] = 8001
    reuse_grpc_port: Annotated[
        bool,
        Option(
            "reuse-grpc-port",
            parse_boolean,
            "BOOL",
            "Let several servers listen on the port.",
            Group.GRPC,
        ),
    ] = False
    grpc_max_receive_message_size: Annotated[
        int,
        Option(
            "grpc-max-receive-message-size",
            integer(1, MAX_MESSAGE_BYTES),
            "BYTES",
            "Largest message of a request, unpacked.",
            Group.GRPC,
        ),
    ] = MAX_MESSAGE_BYTES
    grpc_max_send_message_size: Annotated[
        int,
        Option(
            "grpc-max-send-message-size",
            integer(1, MAX_MESSAGE_BYTES),
            "BYTES",
            "Largest message of a response.",
            Group.GRPC,
        ),
    ] = MAX_MESSAGE_BYTES
    grpc_max_concurrent_streams: Annotated[
        int,
        Option(
            "grpc-max-concurrent-streams",
            integer(1, MAX_MESSAGE_BYTES),
            "N",
            "Calls of one connection at a time.",
            Group.GRPC,
        ),
    ] = 1024
    grpc_infer_response_compression_level: Annotated[
        CompressionLevel,
        Option(
            "grpc-infer-response-compression-level",
            choice(CompressionLevel),
            "none|low|medium|high",
            "Compression of inference responses, for clients that accept it.",
            Group.GRPC,
        ),
    ] = CompressionLevel.NONE
    grpc_header_forward_pattern: Annotated[
        re.Pattern[str] | None,
        Option(
            "grpc-header-forward-pattern",
            _forward_pattern,
            "REGEX",
            "Metadata whose key has a match become parameters of the request.",
            Group.GRPC,
        ),
    ] = None
    grpc_restricted_protocol: Annotated[
        tuple[RestrictedGroup, ...],
        Option(
            "grpc-restricted-protocol",
            _restricted_group("grpc-restricted-protocol", "protocol"),
            "PROTOCOL,PROTOCOL:KEY=VALUE",
            "Parts of the API that need the metadata triton-grpc-protocol-KEY with VALUE; may be "
            "repeated. Parts: " + ", ".join(Api) + ".",
            Group.GRPC,
            is_repeatable=True,
        ),
    ] = ()
    grpc_use_ssl: Annotated[
        bool, Option("grpc-use-ssl", parse_boolean, "BOOL", "Serve gRPC over TLS.", Group.GRPC)
    ] = False
    grpc_use_ssl_mutual: Annotated[
        bool,
        Option(
            "grpc-use-ssl-mutual",
            parse_boolean,
            "BOOL",
            "The same, and clients need a certificate that --grpc-root-cert has signed.",
            Group.GRPC,
        ),
    ] = False
    grpc_server_cert: Annotated[
        str,
        Option("grpc-server-cert", parse_text, "FILE", "PEM certificate for TLS.", Group.GRPC),
    ] = ""
    grpc_server_key: Annotated[
        str,
        Option("grpc-server-key", parse_text, "FILE", "PEM key of the certificate.", Group.GRPC),
    ] = ""
    grpc_root_cert: Annotated[
        str,
        Option(
            "grpc-root-cert",
            parse_text,
            "FILE",
            "PEM certificate of whoever signs the clients' certificates.",
            Group.GRPC,
        ),
    ] = ""
    grpc_keepalive_time: Annotated[
        int,
        Option(
            "grpc-keepalive-time",
            integer(1),
            "MS",
            "Silence of a client after which it is asked whether it is there.",
            Group.GRPC,
        ),
    ] = 7_200_000
    grpc_keepalive_timeout: Annotated[
        int,
        Option("grpc-keepalive-timeout", integer(1), "MS", "Time for it to answer.", Group.GRPC),
    ] = 20_000
    grpc_keepalive_permit_without_calls: Annotated[
        bool,
        Option(
            "grpc-keepalive-permit-without-calls",
            parse_boolean,
            "BOOL",
            "Let both sides ask while there is no call.",
            Group.GRPC,
        ),
    ] = False
    grpc_http2_max_pings_without_data: Annotated[
        int,
        Option(
            "grpc-http2-max-pings-without-data",
            integer(0),
            "N",
            "How often the server asks while it sends nothing else; 0 for any number.",
            Group.GRPC,
        ),
    ] = 2
    grpc_http2_min_recv_ping_interval_without_data: Annotated[
        int,
        Option(
            "grpc-http2-min-recv-ping-interval-without-data",
            integer(0),
            "MS",
            "Time between two pings of a client while the server sends nothing.",
            Group.GRPC,
        ),
    ] = 300_000
    grpc_http2_max_ping_strikes: Annotated[
        int,
        Option(
            "grpc-http2-max-ping-strikes",
            integer(0),
            "N",
            "Pings too soon before the connection is ended; 0 allows any number.",
            Group.GRPC,
        ),
    ] = 2
    grpc_max_connections: Annotated[
        int,
        Option(
            "grpc-max-connections",
            integer(0),
            "COUNT",
            "Connections at a time; 0 for any number.",
            Group.GRPC,
        ),
    ] = DEFAULT_MAX_CONNECTIONS
    grpc_max_connection_idle: Annotated[
        int,
        Option(
            "grpc-max-connection-idle",
            integer(0),
            "MS",
            "Time without a call after which a client is asked to connect anew; 0 for none.",
            Group.GRPC,
        ),
    ] = DEFAULT_MAX_IDLE_MS
    grpc_max_connection_age: Annotated[
        int,
        Option(
            "grpc-max-connection-age",
            integer(0),
            "MS",
            "Age at which a client is asked to connect anew; 0 for none.",
            Group.GRPC,
        ),
    ] = 0
    grpc_max_connection_age_grace: Annotated[
        int,
        Option(
            "grpc-max-connection-age-grace",
            integer(0),
            "MS",
            "Time for its calls to end then; 0 for any.",
            Group.GRPC,
        ),
    ] = 0

    allow_metrics: Annotated[
        bool, Option("allow-metrics", parse_boolean, "BOOL", "Serve /metrics.", Group.METRICS)
    ] = True
    metrics_address: Annotated[
        str,
        Option(
            "metrics-address",
            parse_text,
            "ADDRESS",
            "Where metrics listen; that of HTTP by default.",
            Group.METRICS,
        ),
    ] = ""
    metrics_port: Annotated[
        int,
        Option(
            "metrics-port",
            integer(0, _MAX_PORT),
            "PORT",
            "Port of metrics; 0 takes a free one and logs it.",
            Group.METRICS,
        ),
    ] = 8002
    allow_cpu_metrics: Annotated[
        bool,
        Option(
            "allow-cpu-metrics",
            parse_boolean,
            "BOOL",
            "Report load and memory of the machine.",
            Group.METRICS,
        ),
    ] = True
    metrics_interval_ms: Annotated[
        int,
        Option(
            "metrics-interval-ms",
            integer(1),
            "MS",
            "Over how long the CPU's load is averaged.",
            Group.METRICS,
        ),
    ] = 2000
    metrics_config: Annotated[
        tuple[MetricsAssignment, ...],
        Option(
            "metrics-config",
            parse_metrics_config,
            "SETTING=VALUE",
            "counter_latencies=BOOL (sums of latencies), summary_latencies=BOOL (quantiles of the "
            "last minute), summary_quantiles=QUANTILE:ERROR,..., histogram_latencies=BOOL (times "
            "to first responses); may be repeated.",
            Group.METRICS,
            is_repeatable=True,
        ),
    ] = ()

    log_verbose: Annotated[
        int, Option("log-verbose", parse_level, "LEVEL", "1 logs details.", Group.LOGGING)
    ] = 0
    log_info: Annotated[
        bool, Option("log-info", parse_boolean, "BOOL", "Log information.", Group.LOGGING)
    ] = True
    log_warning: Annotated[
        bool, Option("log-warning", parse_boolean, "BOOL", "Log warnings.", Group.LOGGING)
    ] = True
    log_error: Annotated[
        bool, Option("log-error", parse_boolean, "BOOL", "Log errors.", Group.LOGGING)
    ] = True
    log_format: Annotated[
        LogFormat,
        Option(
            "log-format",
            choice(LogFormat),
            "default|ISO8601",
            "How a log line begins.",
            Group.LOGGING,
        ),
    ] = LogFormat.DEFAULT
    log_file: Annotated[
        str,
        Option(
            "log-file",
            parse_text,
            "FILE",
            "Append the log to a file, not to stderr.",
            Group.LOGGING,
        ),
    ] = ""

    trace_config: Annotated[
        tuple[TraceAssignment, ...],
        Option(
            "trace-config",
            parse_trace_config,
            "SETTING=VALUE",
            "level=OFF|TIMESTAMPS|TENSORS, rate=N (one of N requests), count=N (then no more; -1 "
            "for no limit), triton,file=FILE, triton,log-frequency=N (traces per file); may be "
            "repeated.",
            Group.TRACING,
            is_repeatable=True,
        ),
    ] = ()
    trace_level: Annotated[
        TraceLevel | None,
        Option(
            "trace-level",
            parse_trace_level,
            "LEVEL",
            "Older than --trace-config=level=LEVEL.",
            Group.TRACING,
        ),
    ] = None
    trace_rate: Annotated[
        int | None,
        Option(
            "trace-rate",
            parse_trace_rate,
            "N",
            "Older than --trace-config=rate=N.",
            Group.TRACING,
        ),
    ] = None
    trace_count: Annotated[
        int | None,
        Option(
            "trace-count",
            parse_trace_count,
            "N",
            "Older than --trace-config=count=N.",
            Group.TRACING,
        ),
    ] = None
    trace_file: Annotated[
        str | None,
        Option(
            "trace-file",
            parse_text,
            "FILE",
            "Older than --trace-config=triton,file=FILE.",
            Group.TRACING,
        ),
    ] = None
    trace_log_frequency: Annotated[
        int | None,
        Option(
            "trace-log-frequency",
            parse_log_frequency,
            "N",
            "Older than --trace-config=triton,log-frequency=N.",
            Group.TRACING,
        ),
    ] = None

    backend_config: Annotated[
        tuple[tuple[str, str, str], ...],
        Option(
            "backend-config",
            _backend_setting,
            "BACKEND,KEY=VALUE",
            "Setting of a backend, or without BACKEND of all; may be repeated.",
            Group.BACKEND,
            is_repeatable=True,
        ),
    ] = ()

    backend_directory: Annotated[
        Path | None,
        Option(
            "backend-directory",
            Path,
            "FOLDER",
            "Backends written in Python: FOLDER/NAME/model.py runs all models of backend NAME.",
            Group.BACKEND,
        ),
    ] = None

    allow_client_shm: Annotated[
        bool,
        Option(
            "allow-client-shm",
            parse_boolean,
            "BOOL",
            "Let clients register shared memory. The server reads and writes what they name.",
            Group.MEMORY,
        ),
    ] = False
    gpu_fallback: Annotated[
        GpuFallback,
        Option(
            "gpu-fallback",
            choice(GpuFallback),
            "error|cpu",
            "Without the GPUs that a model config asks for: refuse the model, or run it on the "
            "CPU and warn.",
            Group.MEMORY,
        ),
    ] = GpuFallback.ERROR
    host_policy: Annotated[
        tuple[HostPolicySetting, ...],
        Option(
            "host-policy",
            parse_host_policy,
            "NAME,SETTING=VALUE",
            "Cores for the instances of groups whose host_policy is NAME: cpu-cores=0-3,8-11, or "
            "numa-node=0 for those of the node. A group without one has the policy cpu, model, or "
            "gpu_0 and so on; may be repeated.",
            Group.MEMORY,
            is_repeatable=True,
        ),
    ] = ()
    batching_target_latency_ms: Annotated[
        int,
        Option(
            "batching-target-latency-ms",
            integer(0),
            "MS",
            "Let dynamic batchers whose config names no delay and no preferred size choose both, "
            "so that 99 of 100 requests are answered in this time; 0 for not at all.",
            Group.BACKEND,
        ),
    ] = 0
    rate_limit: Annotated[
        RateLimit,
        Option(
            "rate-limit",
            choice(RateLimit),
            "off|execution_count",
            "Run executions as soon as an instance is free, or when its resources are and by "
            "priority, as rate_limiter in model configs says.",
            Group.RATE_LIMITER,
        ),
    ] = RateLimit.OFF
    rate_limit_resource: Annotated[
        tuple[ResourceLimit, ...],
        Option(
            "rate-limit-resource",
            parse_resource_limit,
            "NAME:COUNT[:DEVICE]",
            "How much there is of a resource; as much as one instance needs where nothing is said.",
            Group.RATE_LIMITER,
            is_repeatable=True,
        ),
    ] = ()
    cache_config: Annotated[
        tuple[CacheAssignment, ...],
        Option(
            "cache-config",
            parse_cache_config,
            "CACHE,KEY=VALUE",
            "Keep responses of models whose config enables response_cache: local,size=BYTES in "
            "this process, or redis,host=HOST and redis,port=PORT (and username, password).",
            Group.CACHE,
            is_repeatable=True,
            deprecated_aliases=("response-cache-byte-size",),
        ),
    ] = ()
    max_queue_bytes: Annotated[
        int,
        Option(
            "max-queue-bytes",
            integer(0),
            "BYTES",
            "Inputs that may wait for all models together; beyond it requests are refused at once. "
            "0 takes a quarter of the memory that the process may use.",
            Group.MEMORY,
        ),
    ] = 0
    request_memory_byte_size: Annotated[
        int,
        Option(
            "request-memory-byte-size",
            integer(0),
            "BYTES",
            "Memory for requests in flight; 0 takes a quarter of what the process may use.",
            Group.MEMORY,
        ),
    ] = 0

    inert: tuple[str, ...] = ()
    deprecated: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.model_repository:
            raise BadOptionError(
                "Error: --model-repository must be specified. Name a folder of models: "
                "naiad serve DIR"
            )
        if self.load_model and self.model_control_mode is not ModelControlMode.EXPLICIT:
            raise BadOptionError(
                "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' "
                "as well."
            )
        if self.http_max_input_size <= 0:
            raise BadOptionError("Error: --http-max-input-size must be greater than 0.")
        _check("--http-restricted-api", self.http_restrictions)
        _check("--grpc-restricted-protocol", self.grpc_restrictions)
        _check("--trace-config", self.trace_values)
        _check("--cache-config", self.cache)
        self.http_tls()
        self.grpc_tls()
        if not (self.allow_http or self.allow_grpc or self.allow_metrics):
            raise BadOptionError(
                "Error: --allow-http=false, --allow-grpc=false and --allow-metrics=false leave "
                "nothing to serve."
            )
        self._check_ports()

    def metrics(self) -> MetricsChoice:
        """Which latency metrics there are."""
        return choose_metrics(self.metrics_config)

    def cache(self) -> CacheChoice:
        """Which response cache there is."""
        return choose_cache(self.cache_config)

    def http_tls(self) -> Tls | None:
        """TLS of HTTP; None where it is plain."""
        if not (self.http_use_ssl or self.http_use_ssl_mutual):
            return None
        root = self.http_root_cert if self.http_use_ssl_mutual else None
        return _tls("http", self.http_server_cert, self.http_server_key, root)

    def grpc_tls(self) -> Tls | None:
        """TLS of gRPC; None where it is plain."""
        if not (self.grpc_use_ssl or self.grpc_use_ssl_mutual):
            return None
        root = self.grpc_root_cert if self.grpc_use_ssl_mutual else None
        return _tls("grpc", self.grpc_server_cert, self.grpc_server_key, root)

    def _check_ports(self) -> None:
        """No two services may listen on one port of one address."""
        taken: dict[tuple[str, int], str] = {}
        for name, is_allowed, address, port in (
            ("HTTP", self.allow_http, self.http_address, self.http_port),
            ("GRPC", self.allow_grpc, self.grpc_address, self.grpc_port),
            (
                "metrics",
                self.allow_metrics,
                self.metrics_address or self.http_address,
                self.metrics_port,
            ),
        ):
            if not is_allowed or port == 0:
                continue
            other = taken.setdefault((address, port), name)
            if other != name:
                raise BadOptionError(
                    f"The server cannot listen to {other} requests and {name} requests at the same "
                    f"address and port {address}:{port}"
                )

    def http_restrictions(self) -> RestrictedApis:
        """What ``--http-restricted-api`` says as a whole."""
        return RestrictedApis(self.http_restricted_api)

    def grpc_restrictions(self) -> RestrictedApis:
        """What ``--grpc-restricted-protocol`` says as a whole."""
        return RestrictedApis(self.grpc_restricted_protocol, "protocol")

    def trace_values(self) -> TraceSettingValues:
        """What is traced at first."""
        return merge_trace_options(
            {
                "level": self.trace_level,
                "rate": self.trace_rate,
                "count": self.trace_count,
                "trace_file": self.trace_file,
                "log_frequency": self.trace_log_frequency,
            },
            self.trace_config,
        )

    def log_values(self) -> LogSettingValues:
        """How the server logs at first."""
        return LogSettingValues(
            self.log_file,
            self.log_info,
            self.log_warning,
            self.log_error,
            self.log_verbose,
            self.log_format,
        )

    def backend_settings(self, backend: str) -> Mapping[str, str]:
        """What ``--backend-config`` says to one backend; its own settings win over those of all."""
        general = {key: value for name, key, value in self.backend_config if not name}
        own = {key: value for name, key, value in self.backend_config if name == backend}
        return {**general, **own}


# By the name of the field: one field isn't named after its option, since `id` is Python's.
FIELD_OPTIONS: Final[Mapping[str, Option]] = MappingProxyType(
    {
        name: note
        for name, hint in get_type_hints(Settings, include_extras=True).items()
        for note in getattr(hint, "__metadata__", ())
    }
)
_DEFAULTS: Final[Mapping[str, object]] = MappingProxyType(
    {
        FIELD_OPTIONS[entry.name].name: entry.default
        for entry in fields(Settings)
        if entry.name in FIELD_OPTIONS
    }
)
OPTIONS: Final[tuple[Option, ...]] = (*FIELD_OPTIONS.values(), *INERT_OPTIONS)


def default_text(option: Option) -> str:
    """The default of an option as one would type it; empty where there is none."""
    default = _DEFAULTS[option.name]
    if isinstance(default, bool):
        return str(default).lower()
    return "" if default in ((), None) else str(default)


def make_settings(given: Mapping[str, list[str]], deprecated: Sequence[str] = ()) -> Settings:
    """The settings that texts from command line and environment amount to.

    Args:
        given: texts by option name; only the last counts where the option isn't repeatable.
        deprecated: what the user is to be told of names that will go.

    Raises:
        BadOptionError: a text is no value of its option, or options contradict each other.
    """
    values: dict[str, Any] = {}
    for name, option in FIELD_OPTIONS.items():
        if option.name in given:
            values[name] = _parse(option, given[option.name])
    inert = [option for option in INERT_OPTIONS if option.name in given]
    for option in inert:
        _parse(option, given[option.name])
    return Settings(
        inert=tuple(option.name for option in inert), deprecated=tuple(deprecated), **values
    )


def _tls(port: str, certificate: str, key: str, root: str | None) -> Tls:
    needed = {"server-cert": certificate, "server-key": key, "root-cert": root}
    for name, value in needed.items():
        if value == "":
            raise BadOptionError(f"Error: --{port}-use-ssl needs --{port}-{name}.")
    return Tls(Path(certificate), Path(key), Path(root) if root is not None else None)


def _parse(option: Option, texts: list[str]) -> Any:
    try:
        values = [option.parse(text) for text in texts]
    except ValueError as error:
        raise _bad_value(
            f"--{option.name}", f"invalid argument for --{option.name}: {error}"
        ) from error
    return tuple(values) if option.is_repeatable else values[-1]


def read_environment(environment: Mapping[str, str] | None = None) -> dict[str, list[str]]:
    """Texts by option name, from the variables named ``NAIAD_`` and the option.

    Args:
        environment: the process's own where it is None.
    """
    variables = os.environ if environment is None else environment
    given: dict[str, list[str]] = {}
    for option in OPTIONS:
        text = variables.get(option.environment_name)
        if text is not None:
            given[option.name] = (
                text.split(ENVIRONMENT_SEPARATOR) if option.is_repeatable else [text]
            )
    return given


def read_storage_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that name keys, regions and accounts of object storage, as far as set.

    Args:
        environment: the process's own where it is None.
    """
    variables = os.environ if environment is None else environment
    return {name: variables[name] for name in ENVIRONMENT_NAMES if name in variables}


def read_held_counts(environment: Mapping[str, str] | None = None) -> tuple[int, int]:
    """How many requests must wait before a batcher forms its first batch; for tests of clients.

    Args:
        environment: the process's own where it is None.

    Returns:
        Of requests in the queue or in sequence slots, and of requests in a sequence batcher's
        backlog; 0 for no wait.

    Raises:
        BadOptionError: a variable holds no number.
    """
    variables = os.environ if environment is None else environment
    counts = []
    for name in ("TRITONSERVER_DELAY_SCHEDULER", "TRITONSERVER_BACKLOG_DELAY_SCHEDULER"):
        try:
            counts.append(int(variables.get(name, "0")))
        except ValueError as error:
            raise _bad_value(name, f"invalid value for {name}: {error}") from error
    return counts[0], counts[1]


def read_redis_login(environment: Mapping[str, str] | None = None) -> tuple[str, str]:
    """User and password for Redis, where they are not to stand in the command line.

    Args:
        environment: the process's own where it is None.
    """
    variables = os.environ if environment is None else environment
    names = ("TRITONCACHE_REDIS_USERNAME", "TRITONCACHE_REDIS_PASSWORD")
    return variables.get(names[0], ""), variables.get(names[1], "")
