from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.support.triton_options import TRITON_OPTIONS

from naiad.engine.engine import ModelControlMode
from naiad.server.command_line import (
    NAIAD_SERVE,
    TRITONSERVER,
    Command,
    HelpRequested,
    format_help,
    parse_arguments,
)
from naiad.server.inert import INERT_OPTIONS
from naiad.server.settings import FIELD_OPTIONS, OPTIONS, BadOptionError, LogFormat, Settings

NOTHING: Mapping[str, str] = {}


def parse(*arguments: str, environment: Mapping[str, str] = NOTHING) -> Settings:
    return parse_arguments(arguments, environment)


def refusal(*arguments: str, environment: Mapping[str, str] = NOTHING) -> str:
    with pytest.raises(BadOptionError) as failure:
        parse(*arguments, environment=environment)
    return failure.value.message


def test_defaults_are_tritons_but_for_the_address() -> None:
    settings = parse("models")
    assert settings.model_repository == (Path("models"),)
    assert settings.http_address == "127.0.0.1"
    assert (settings.http_port, settings.metrics_port) == (8000, 8002)
    assert (settings.server_id, settings.exit_timeout_secs) == ("triton", 30)
    assert settings.exit_on_error
    assert settings.strict_readiness
    assert not settings.allow_file_override
    assert settings.model_control_mode is ModelControlMode.NONE
    assert settings.http_max_input_size == 67108864


@pytest.mark.parametrize(
    "arguments",
    [
        ["--http-port=1234"],
        ["--http-port", "1234"],
        ["--http-p=1234"],
        ["--http-po", "1234"],
        ["--http-port=1", "--http-port=1234"],
    ],
)
def test_spellings_of_one_option(arguments: list[str]) -> None:
    assert parse("models", *arguments).http_port == 1234


def test_repositories_add_up_in_any_spelling() -> None:
    settings = parse("a", "--model-store", "b", "--model-repo=c", "--", "--d")
    assert settings.model_repository == tuple(map(Path, ("a", "b", "c", "--d")))


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("TRUE", True), ("on", True), ("1", True), ("Off", False), ("0", False)],
)
def test_booleans(text: str, value: bool) -> None:
    assert parse("models", f"--strict-readiness={text}").strict_readiness is value


@pytest.mark.parametrize(("text", "value"), [("true", 1), ("off", 0), ("0", 0), ("3", 3)])
def test_verbosity_is_a_level_or_a_boolean(text: str, value: int) -> None:
    assert parse("models", f"--log-verbose={text}").log_verbose == value


def test_a_value_may_begin_with_dashes() -> None:
    assert parse("models", "--id", "--odd").server_id == "--odd"


def test_the_old_name_of_an_option_earns_a_warning() -> None:
    settings = parse("models", "--strict-model-config", "true")
    assert settings.disable_auto_complete_config
    assert settings.deprecated == (
        "--strict-model-config is deprecated, use --disable-auto-complete-config",
    )
    assert parse("models", "--disable-auto=true").deprecated == ()


def test_how_models_load() -> None:
    settings = parse(
        # Triton takes words in any case.
        *("models", "--model-control-mode", "POLL", "--repository-poll-secs", "2"),
        *("--model-load-thread-count", "7", "--model-load-retry-count", "3"),
    )
    assert settings.model_control_mode is ModelControlMode.POLL
    assert settings.repository_poll_secs == 2
    assert settings.model_load_thread_count == 7
    assert settings.model_load_retry_count == 3


def test_tritonserver_is_open_to_other_machines_and_takes_no_bare_folder() -> None:
    settings = parse_arguments(["--model-repository", "m"], NOTHING, TRITONSERVER)
    assert settings.http_address == settings.grpc_address == "0.0.0.0"
    settings = parse_arguments(
        ["--model-store=m"], {"NAIAD_HTTP_ADDRESS": "127.0.0.1"}, TRITONSERVER
    )
    assert settings.http_address == "127.0.0.1"
    for arguments in (["m"], ["--", "m"]):
        with pytest.raises(BadOptionError, match=r"^Unexpected argument: m$"):
            parse_arguments(arguments, NOTHING, TRITONSERVER)
    text = format_help(TRITONSERVER)
    assert text.startswith("Usage: tritonserver [OPTIONS]\n")
    assert "0.0.0.0 lets other machines in. [0.0.0.0]" in text


def test_log_format() -> None:
    assert parse("models", "--log-format=ISO8601").log_format is LogFormat.ISO8601


def test_environment_gives_way_to_the_command_line() -> None:
    environment = {
        "NAIAD_MODEL_REPOSITORY": "a;b",
        "NAIAD_HTTP_PORT": "1",
        "NAIAD_METRICS_PORT": "2",
        "NAIAD_ID": "mine",
        "UNRELATED": "x",
    }
    settings = parse("--http-port=3", environment=environment)
    assert settings.model_repository == (Path("a"), Path("b"))
    assert (settings.http_port, settings.metrics_port) == (3, 2)
    assert settings.server_id == "mine"
    assert parse("c", environment=environment).model_repository == (Path("c"),)


def test_backend_settings_of_one_win_over_those_of_all() -> None:
    settings = parse(
        "models",
        "--backend-config=default-max-batch-size=8",
        "--backend-config=onnxruntime,default-max-batch-size=16",
        "--backend-config=python,shm-default-byte-size=1",
    )
    assert settings.backend_settings("onnxruntime") == {"default-max-batch-size": "16"}
    assert settings.backend_settings("pytorch") == {"default-max-batch-size": "8"}


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("--exit-timeout-secs=abc", "expected a whole number, got 'abc'"),
        ("--exit-timeout-secs=-1", "expected a number of at least 0, got -1"),
        ("--http-port=99999", "expected a number from 0 to 65535, got 99999"),
        ("--strict-readiness=yes", "expected true or false, got 'yes'"),
        ("--model-control-mode=sometimes", "expected one of none, poll, explicit, got 'sometimes'"),
        ("--model-config-name=", "expected a name, got nothing"),
        ("--gpu-fallback=tpu", "expected one of error, cpu, got 'tpu'"),
        ("--model-load-thread-count=0", "expected a number from 1 to 1024, got 0"),
        ("--backend-config=python", "expected BACKEND,KEY=VALUE or KEY=VALUE, got 'python'"),
        ("--http-header-forward-pattern=(", "'(' is not a regular expression: missing ), "
         "unterminated subpattern at position 0"),
        ("--http-restricted-api=health", "--http-restricted-api option format is "
         "'<api>,<api>:<key>=<value>'"),
        ("--grpc-restricted-protocol=health", "--grpc-restricted-protocol option format is "
         "'<protocol>,<protocol>:<key>=<value>'"),
        ("--trace-config=mode=opentelemetry", "mode=opentelemetry is not there in this version, "
         "which writes traces to a file: use mode=triton and triton,file=FILE"),
    ],
)  # fmt: skip
def test_bad_values(argument: str, text: str) -> None:
    name = argument.partition("=")[0]
    assert refusal("models", argument) == (
        f'Bad option: "{name}".\ninvalid argument for {name}: {text}'
    )


def test_a_trace_needs_a_file() -> None:
    assert refusal("models", "--trace-config=level=TIMESTAMPS") == (
        'Bad option: "--trace-config".\ntrace file name is not given; name the file with '
        "--trace-config=triton,file=FILE"
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--x=1"], "unrecognized option '--x=1'"),
        (["-x"], "unrecognized option '-x'"),
        (["--htp-port=1"], "unrecognized option '--htp-port=1'; did you mean '--http-port'?"),
        (["--model-control=none", "--log-f=x"], "option '--log-f=x' is ambiguous; possibilities: "
         "'--log-file' '--log-format'"),
        (["--http-port"], "option '--http-port' requires an argument"),
    ],
)  # fmt: skip
def test_bad_names(arguments: list[str], text: str) -> None:
    assert refusal("models", *arguments) == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "Error: --model-repository must be specified. Name a folder of models: naiad serve "
         "DIR"),
        (["m", "--load-model=a"], "Error: Use of '--load-model' requires setting "
         "'--model-control-mode=explicit' as well."),
        (["m", "--http-max-input-size=0"],
         "Error: --http-max-input-size must be greater than 0."),
        (["m", "--metrics-port=8000"], "The server cannot listen to HTTP requests and metrics "
         "requests at the same address and port 127.0.0.1:8000"),
        (["m", "--grpc-port=8000"], "The server cannot listen to HTTP requests and GRPC requests "
         "at the same address and port 127.0.0.1:8000"),
        (["m", "--grpc-port=8002"], "The server cannot listen to GRPC requests and metrics "
         "requests at the same address and port 127.0.0.1:8002"),
        (["m", "--allow-http=off", "--allow-grpc=off", "--allow-metrics=off"],
         "Error: --allow-http=false, --allow-grpc=false and --allow-metrics=false leave nothing to "
         "serve."),
        (["m", "--grpc-use-ssl=true", "--grpc-server-key=k"],
         "Error: --grpc-use-ssl needs --grpc-server-cert."),
        (["m", "--grpc-use-ssl-mutual=true", "--grpc-server-key=k", "--grpc-server-cert=c"],
         "Error: --grpc-use-ssl needs --grpc-root-cert."),
        (["m", "--http-use-ssl=true", "--http-server-cert=c"],
         "Error: --http-use-ssl needs --http-server-key."),
    ],
)  # fmt: skip
def test_contradictions(arguments: list[str], text: str) -> None:
    assert refusal(*arguments) == text


def test_an_api_is_restricted_by_one_option_only() -> None:
    text = refusal(
        "m",
        "--http-restricted-api=model-repository,health:k1=v1",
        "--http-restricted-api=metadata,health:k2=v2",
    )
    assert text == (
        'Bad option: "--http-restricted-api".\n'
        "restricted api 'health' can not be specified in multiple config groups"
    )


def test_restrictions() -> None:
    settings = parse("m", "--http-restricted-api=health:k=v", "--http-restricted-api=trace:x=y")
    assert settings.http_restrictions().headers == {"health": ("k", "v"), "trace": ("x", "y")}
    assert parse("m").http_restrictions().headers == {}


def test_restrictions_of_grpc_are_its_own() -> None:
    settings = parse("m", "--grpc-restricted-protocol=health:k=v")
    assert settings.grpc_restrictions().headers == {"health": ("k", "v")}
    assert settings.http_restrictions().headers == {}
    assert refusal(
        "m", "--grpc-restricted-protocol=health:a=b", "--grpc-restricted-protocol=health:c=d"
    ) == (
        'Bad option: "--grpc-restricted-protocol".\n'
        "restricted protocol 'health' can not be specified in multiple config groups"
    )


def test_no_pattern_forwards_nothing() -> None:
    assert parse("m", "--http-header-forward-pattern=").http_header_forward_pattern is None
    pattern = parse("m", "--http-header-forward-pattern=^x-").http_header_forward_pattern
    assert pattern is not None
    assert pattern.search("X-Tenant")


def test_clients_share_memory_only_where_it_is_allowed() -> None:
    assert not parse("m").allow_client_shm
    assert parse("m", "--allow-client-shm=true").allow_client_shm


def test_ports_that_the_system_chooses_do_not_collide() -> None:
    settings = parse("m", "--http-port=0", "--grpc-port=0", "--metrics-port=0")
    assert settings.http_port == settings.grpc_port == settings.metrics_port == 0
    assert parse("m", "--metrics-port=8000", "--metrics-address=::1").metrics_port == 8000


def test_tritons_other_options_are_taken() -> None:
    arguments = [f"--{option.name}={TRITON_OPTIONS[option.name]}" for option in INERT_OPTIONS]
    assert parse("models", *arguments).inert == tuple(option.name for option in INERT_OPTIONS)


# Those that only make sense together with others.
WITH = {"load-model": ["--model-control-mode=explicit"]}


@pytest.mark.parametrize("name", TRITON_OPTIONS)
@pytest.mark.parametrize("command", [NAIAD_SERVE, TRITONSERVER], ids=lambda command: command.name)
def test_every_option_of_triton_in_both_spellings(command: Command, name: str) -> None:
    value = TRITON_OPTIONS[name]
    others = ["--model-repository=m", *WITH.get(name, [])]
    settings = parse_arguments([*others, f"--{name}={value}"], NOTHING, command)
    assert parse_arguments([*others, f"--{name}", value], NOTHING, command) == settings
    (option,) = [option for option in OPTIONS if name in option.names]
    assert (option.name in settings.inert) == option.is_inert
    if not option.is_inert and value not in {"false", "OFF"}:
        assert settings != parse_arguments(others, NOTHING, command)


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("--http-thread-count=many", "expected a whole number, got 'many'"),
        ("--grpc-infer-thread-count=1", "expected a number from 2 to 128, got 1"),
        ("--allow-gpu-metrics=perhaps", "expected true or false, got 'perhaps'"),
        ("--vertex-ai-port=-1", "expected a number from 0 to 65535, got -1"),
        ("--min-supported-compute-capability=new", "expected a number, got 'new'"),
    ],
)
def test_values_without_effect_are_read_all_the_same(argument: str, text: str) -> None:
    assert text in refusal("models", argument)


def test_no_two_options_share_a_name() -> None:
    names = [name for option in OPTIONS for name in option.names]
    assert sorted(set(names)) == sorted(names)


def test_what_may_be_here_and_what_may_wait_are_bounded_apart() -> None:
    settings = parse_arguments(
        ["--max-queue-bytes=5", "--request-memory-byte-size=7", "models"], environment={}
    )
    assert (settings.max_queue_bytes, settings.request_memory_byte_size) == (5, 7)


def test_every_setting_but_the_inert_list_has_its_option() -> None:
    assert set(FIELD_OPTIONS) == set(Settings.__dataclass_fields__) - {"inert", "deprecated"}
    names = [option.name for option in OPTIONS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("argument", ["--help", "-h", "--hel"])
def test_help(argument: str) -> None:
    with pytest.raises(HelpRequested):
        parse(argument)


def test_the_help_names_every_option_with_its_default() -> None:
    text = format_help()
    assert all(f"--{option.name}" in text for option in OPTIONS)
    assert "[67108864]" in text
    assert max(map(len, text.splitlines())) <= 79
