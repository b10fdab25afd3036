"""``tritonserver``, by that name: how it ends and what it says, as Triton does."""

import json
import re
import signal
import socket
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.process.test_serve_command import ServeProcess, add_model, get, infer, run

pytestmark = pytest.mark.slow

TRITONSERVER = (str(Path(sys.executable).with_name("tritonserver")),)
PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0", "--http-address=127.0.0.1")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    add_model(folder, "same")
    add_model(folder, "broken", backend="nonesuch")
    return folder


@pytest.fixture
def started() -> Iterator[list[ServeProcess]]:
    processes: list[ServeProcess] = []
    yield processes
    for process in processes:
        process.close()


def start(started: list[ServeProcess], *arguments: str) -> ServeProcess:
    process = ServeProcess([*arguments], TRITONSERVER)
    started.append(process)
    return process


# Measured on Triton 2.51.0; where our text says more, it begins as Triton's does.
EXPLICIT = "--model-control-mode=explicit"
ENDS = {
    "no repository": ([], "Error: --model-repository must be specified."),
    "missing repository": (
        ["--model-repository={tmp}/none"],
        "error: creating server: Internal - failed to stat file {tmp}/none",
    ),
    "unknown option": (["--model-store={repository}", "--x=1"], "unrecognized option '--x=1'"),
    "bare argument": (["{repository}"], "Unexpected argument: {repository}"),
    "bad value": (
        ["--model-store={repository}", "--exit-timeout-secs=abc"],
        'Bad option: "--exit-timeout-secs".',
    ),
    "bad mode": (
        ["--model-store={repository}", "--model-control-mode=sometimes"],
        'Bad option: "--model-control-mode".\ninvalid argument for --model-control-mode',
    ),
    "a model fails": (
        ["--model-store={repository}"],
        "error: creating server: Internal - failed to load all models",
    ),
    "an unknown model": (
        ["--model-store={repository}", EXPLICIT, "--load-model=nope"],
        "error: creating server: Internal - failed to load all models",
    ),
    "a named model fails": (
        ["--model-store={repository}", EXPLICIT, "--load-model=broken"],
        "error: creating server: Invalid argument - load failed for model 'broken': version 1 is "
        "at UNAVAILABLE state: ",
    ),
    "names without explicit": (
        ["--model-store={repository}", "--load-model=same"],
        "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.",
    ),
    "all and another": (
        ["--model-store={repository}", EXPLICIT, "--load-model=*", "--load-model=same"],
        "error: creating server: Invalid argument - Wildcard model name '*' must be the ONLY "
        "startup model if specified at all.",
    ),
    "unknown cache": (
        ["--model-store={repository}", "--cache-config=nope,size=1"],
        "error: creating server: Invalid argument - unable to find 'libtritoncache_nope.so' for "
        "cache. ",
    ),
    "port out of range": (
        ["--model-store={repository}", "--http-port=99999"],
        'Bad option: "--http-port".',
    ),
    "a model fails, by name": (
        ["--model-store={repository}"],
        "Not loaded: 'broken'; why stands in the log above. With --exit-on-error=false the server "
        "starts without them.",
    ),
    "taken port": (
        ["--model-store={repository}", "--http-port={taken}"],
        "failed to start HTTP service: Unavailable - Socket '127.0.0.1:{taken}' already in use",
    ),
}


@pytest.mark.parametrize("case", ENDS)
def test_what_ends_the_start(repository: Path, tmp_path: Path, case: str) -> None:
    arguments, text = ENDS[case]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        names = {
            "repository": repository,
            "tmp": tmp_path,
            "taken": taken.getsockname()[1],
        }
        result = run(
            *PORTS, *(argument.format(**names) for argument in arguments), command=TRITONSERVER
        )
    assert result.returncode == 1
    assert text.format(**names) in result.stderr
    assert result.stdout == ""
    if case == "taken port":
        # Nobody should wait for minutes of loading to learn that.
        assert "loading: " not in result.stderr


def test_what_does_not_keep_a_server_from_starting(
    tmp_path: Path, started: list[ServeProcess]
) -> None:
    """An empty repository, and a setting of the metrics that nobody knows."""
    server = start(started, *PORTS, f"--model-store={tmp_path}", "--metrics-config=nope=1")
    assert get(f"{server.http}/v2/health/ready")[0] == 200
    server.wait_for(r"^W.*accepted, without effect: --metrics-config=nope. Its settings are count")
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


def test_metrics_are_what_metrics_config_says(tmp_path: Path, started: list[ServeProcess]) -> None:
    add_model(tmp_path, "same")
    settings = ("counter_latencies=false", "summary_latencies=true", "histogram_latencies=true")
    quantiles = "summary_quantiles=0.25:0.01,0.75:0.01"
    options = [f"--metrics-config={setting}" for setting in (*settings, quantiles)]
    server = start(started, *PORTS, f"--model-store={tmp_path}", *options)
    infer(server.http, "same", 3.0)
    page = get(f"{server.metrics}/metrics")[1].decode()
    labels = 'model="same",version="1"'
    assert "duration_us" not in page
    assert f"nv_inference_request_success{{{labels}}} 1\n" in page
    assert f"nv_inference_first_response_histogram_ms_count{{{labels}}} 1\n" in page
    name = "nv_inference_request_summary_us"
    total = re.search(rf"^{name}_sum{{{labels}}} (\d+)$", page, re.MULTILINE)
    assert total is not None
    values = re.findall(rf'^{name}{{{labels},quantile="([0-9.]+)"}} (\d+)$', page, re.MULTILINE)
    # Of one request all quantiles are its own latency.
    assert values == [("0.25", total[1]), ("0.75", total[1])]


@pytest.mark.parametrize(
    ("folder", "text"),
    [
        ("models/same", "/models/same' is the folder of a model and no model repository"),
        ("empty", "/empty' holds no models; a model is a folder in it, such as '"),
    ],
)
def test_a_folder_that_is_no_repository_earns_a_warning(
    repository: Path, tmp_path: Path, started: list[ServeProcess], folder: str, text: str
) -> None:
    path = tmp_path / folder
    path.mkdir(exist_ok=True)
    server = start(started, *PORTS, f"--model-store={path}", "--exit-on-error=false")
    assert server.wait_for(rf"^W.*{re.escape(text)}")
    assert get(f"{server.http}/v2/health/live")[0] == 200


def test_help_ends_with_1_as_tritons_does() -> None:
    result = run("--help", command=TRITONSERVER)
    assert result.returncode == 1
    assert result.stdout.startswith("Usage: tritonserver [OPTIONS]\n")


@pytest.mark.parametrize(("strictness", "status"), [("true", 400), ("false", 200)])
def test_a_failed_model_and_readiness(
    repository: Path, started: list[ServeProcess], strictness: str, status: int
) -> None:
    server = start(
        started,
        *PORTS,
        f"--model-repository={repository}",
        "--exit-on-error=false",
        f"--strict-readiness={strictness}",
    )
    assert get(f"{server.http}/v2/health/live")[0] == 200
    assert get(f"{server.http}/v2/health/ready")[0] == status


@pytest.mark.parametrize("strictness", ["true", "false"])
def test_a_missing_repository_and_readiness(
    repository: Path, tmp_path: Path, started: list[ServeProcess], strictness: str
) -> None:
    server = start(
        started,
        *PORTS,
        f"--model-repository={repository}",
        f"--model-repository={tmp_path / 'none'}",
        "--exit-on-error=false",
        f"--strict-readiness={strictness}",
    )
    server.wait_for(r"^E.*failed to initialize: .*failed to stat file .*/none")
    assert get(f"{server.http}/v2/health/live")[0] == 400
    assert get(f"{server.http}/v2/health/ready")[0] == 400
    assert get(f"{server.http}/v2")[0] == 200


def test_model_analyzers_local_mode(repository: Path, started: list[ServeProcess]) -> None:
    """It writes its options as one text, cuts that at '=' and spaces, and loads what it measures.

    Source: model_analyzer's TritonServerConfig.to_cli_string and TritonServerLocal.start.
    """
    options = {
        "log-verbose": 1,
        "log-info": True,
        "model-repository": repository,
        "exit-timeout-secs": 5,
        "exit-on-error": False,
        "strict-readiness": True,
        "allow-http": True,
        "http-port": "0",
        "http-thread-count": 8,
        "grpc-port": "0",
        "allow-gpu-metrics": True,
        "metrics-port": "0",
        "trace-level": None,
        "model-control-mode": "explicit",
        "pinned-memory-pool-byte-size": 268435456,
        "min-supported-compute-capability": 6.0,
        "backend-directory": "/opt/tritonserver/backends",
        "metrics-interval-ms": 500,
    }
    text = " ".join(f"--{key}={value}" for key, value in options.items() if value)
    server = start(started, *text.replace("=", " ").split())
    port = server.wait_for(r"Started HTTPService at 0\.0\.0\.0:(\d+)")[1]
    base = f"http://127.0.0.1:{port}"
    assert get(f"{base}/v2/health/ready")[0] == 200
    warnings = [line for line in server.lines if "accepted, without effect" in line]
    assert len(warnings) == 1
    for name in ("http-thread-count", "allow-gpu-metrics", "pinned-memory-pool-byte-size"):
        assert f"--{name}" in warnings[0]
    post(f"{base}/v2/repository/models/same/load", {})
    assert infer(base, "same", 2.0)["outputs"][0]["data"] == [2.0]
    metrics = server.metrics.replace("0.0.0.0", "127.0.0.1")
    assert b'nv_inference_count{model="same",version="1"} 1' in get(f"{metrics}/metrics")[1]
    post(f"{base}/v2/repository/models/same/unload", {})
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


def test_a_start_by_names_and_values_apart(repository: Path, started: list[ServeProcess]) -> None:
    words = f"""--model-repository {repository} --model-control-mode explicit --http-port 0
        --grpc-port 0 --metrics-port 0 --metrics-interval-ms 1000 --exit-timeout-secs 5
        --allow-gpu-metrics false --cache-config local,size=1000000 --strict-model-config false
        --exit-on-error=false --load-model nope --log-verbose 1"""
    server = start(started, *words.split())
    server.wait_for("--strict-model-config is deprecated, use --disable-auto-complete-config")
    server.wait_for(r"^E.*failed to poll model 'nope': model not found in any model repository\.")
    port = server.wait_for(r"Started HTTPService at 0\.0\.0\.0:(\d+)")[1]
    base = f"http://127.0.0.1:{port}"
    assert get(f"{base}/v2/health/ready")[0] == 200
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


def test_polling_follows_the_repository(tmp_path: Path, started: list[ServeProcess]) -> None:
    server = start(
        started,
        *PORTS,
        f"--model-repository={tmp_path}",
        "--model-control-mode=poll",
        "--repository-poll-secs=1",
    )
    assert get(f"{server.http}/v2/models/late/ready")[0] != 200
    add_model(tmp_path, "late")
    server.wait_for("successfully loaded 'late'")
    assert infer(server.http, "late", 2.0)["outputs"][0]["data"] == [2.0]


def test_a_laptop_can_try_a_config_for_gpus(tmp_path: Path, started: list[ServeProcess]) -> None:
    add_model(tmp_path, "m")
    path = tmp_path / "m" / "config.pbtxt"
    text = path.read_text().replace("count: 1 kind: KIND_CPU", "kind: KIND_GPU gpus: [ 0, 1 ]")
    path.write_text(text)
    repository = f"--model-repository={tmp_path}"
    refused = run(*PORTS, repository, command=TRITONSERVER)
    assert refused.returncode == 1
    assert "has kind KIND_GPU" in refused.stderr or "gpu id 0" in refused.stderr
    server = start(started, *PORTS, repository, "--gpu-fallback", "cpu")
    server.wait_for(r"^W.*model 'm': its config asks for GPUs; it runs on the CPU")
    assert infer(server.http, "m", 2.0)["outputs"][0]["data"] == [2.0]


def post(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=500) as response:
        return json.loads(response.read() or b"null")


def test_a_reload_brings_its_labels(tmp_path: Path, started: list[ServeProcess]) -> None:
    add_model(tmp_path, "m")
    config = tmp_path / "m" / "config.pbtxt"
    text = config.read_text().replace('name: "OUTPUT0"', 'name: "OUTPUT0" label_filename: "labels"')
    config.write_text(text)
    server = start(
        started, *PORTS, f"--model-repository={tmp_path}", "--model-control-mode=explicit"
    )
    outputs = [{"name": "OUTPUT0", "parameters": {"classification": 1}}]
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [5]}
    for label in ("cat", "lion"):
        (tmp_path / "m" / "labels").write_text(f"{label}\n")
        post(f"{server.http}/v2/repository/models/m/load", {})
        answer = post(f"{server.http}/v2/models/m/infer", {"inputs": [tensor], "outputs": outputs})
        assert answer["outputs"][0]["data"] == [f"5.000000:0:{label}"]
