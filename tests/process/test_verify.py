"""``naiad verify`` as a user runs it, on real exports, some of them damaged on purpose."""

import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import naiad
from naiad.errors import UnavailableError
from naiad.exporter.options import ExportOptions
from naiad.repository.golden import MANIFEST_NAME, digest_files
from naiad.verify.server_process import ServerProcess

pytestmark = pytest.mark.slow

SOURCE = '''
import torch
from torch import nn


class Net(nn.Module):
    """Inputs that can't be exchanged unnoticed, and a layer that train mode changes."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, a, b):
        return self.norm(self.linear(a) - 2 * b)


def net():
    torch.manual_seed(3)
    model = Net()
    model.norm.running_mean.uniform_(-1, 1)
    model.norm.running_var.uniform_(0.5, 2)
    return model.eval(), (torch.randn(2, 3, 8), torch.randn(2, 3, 8))


def other():
    model, example = net()
    torch.nn.init.zeros_(model.linear.weight)
    return model, example
'''


BREAKS_LATER = """


def breaks_later():
    model, example = net()
    forward = model.forward
    calls = []

    def failing(a, b):
        calls.append(a)
        if len(calls) > 1:
            raise RuntimeError("no more answers today")
        return forward(a, b)

    model.forward = failing
    return model, example
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source ``nets.py`` and a repository with one model in two formats."""
    folder = tmp_path_factory.mktemp("verify")
    (folder / "nets.py").write_text(SOURCE, encoding="utf-8")
    for format_name in ("onnx", "torchscript"):
        model, example = make_net(folder)
        naiad.export(
            model,
            example,
            name=f"net_{format_name}",
            repository=folder / "models",
            format=format_name,
            options=ExportOptions(source="nets:net"),
        )
    return folder


@pytest.fixture
def damaged(folder: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    shutil.copytree(folder, tmp_path / "copy")
    return tmp_path / "copy"


def make_net(folder: Path) -> tuple[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    names: dict[str, Any] = {"__name__": "nets"}
    exec((folder / "nets.py").read_text(encoding="utf-8"), names)
    made: tuple[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]] = names["net"]()
    return made


def verify(folder: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit status, the report, and everything that was printed."""
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    command = Path(sys.executable).with_name("naiad")
    done = subprocess.run(
        [command, "verify", "models", "--json", str(report), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    document = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
    return done.returncode, document, done.stdout + done.stderr


def rehash(version: Path) -> None:
    """Make the manifest agree with whatever the files are now, as a careful forger would."""
    path = version / MANIFEST_NAME
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["files"] = digest_files(version)
    path.write_text(json.dumps(manifest), encoding="utf-8")


def quietly(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*args, **kwargs)


def rows_of(document: dict[str, Any], model: int = 0) -> dict[str, list[str]]:
    """Hop -> verdicts, in the order of the batch sizes."""
    verdicts: dict[str, list[str]] = {}
    for row in document["models"][model]["rows"]:
        verdicts.setdefault(row["hop"], []).append(row["verdict"])
    return verdicts


def test_a_faithful_export_is_equal_at_every_hop(folder: Path) -> None:
    status, document, text = verify(folder)
    assert status == 0, text
    assert [model["model"] for model in document["models"]] == ["net_onnx", "net_torchscript"]
    for model in document["models"]:
        rows = model["rows"]
        assert {row["verdict"] for row in rows} == {"equal"}
        hops = list(dict.fromkeys(row["hop"] for row in rows))
        assert hops == [
            "exported file alone",
            "in the engine",
            "in the engine, mixed",
            "served, HTTP JSON",
            "served, HTTP binary",
            "served, gRPC",
            "served, gRPC stream",
            "served, 16 clients",
            "served, reloaded",
        ]
        assert {row["batch"] for row in rows} == {"1", "2", "3", "8", "mixed"}
        served = [row for row in rows if row["hop"].startswith("served, HTTP")]
        if model["model"] == "net_onnx":
            assert all(row["same_bits"] is True for row in served)
        assert all(row["latency_ms"] > 0 for row in served)
        # Sixteen clients at once and two instances: some requests must have met.
        assert max(int(size) for size in model["batch_sizes"]) > 3
        assert model["causes"] == []


def test_the_source_is_asked_again(folder: Path) -> None:
    status, document, text = verify(folder, "net_onnx", "--source", "nets:net")
    assert status == 0, text
    assert next(iter(rows_of(document))) == "PyTorch eager again"


def test_another_source_is_not_the_model_that_was_exported(folder: Path) -> None:
    status, document, text = verify(folder, "net_onnx", "--source", "nets:other")
    assert status == 1
    assert set(rows_of(document)["PyTorch eager again"]) == {"DIFFERENT"}
    assert set(rows_of(document)["exported file alone"]) == {"equal"}
    (cause,) = document["models"][0]["causes"]
    assert cause["cause"] == "another source"
    assert "'nets:other' is not the model that was exported" in cause["sentence"]
    assert "cause:" in text


def test_a_lower_max_batch_size_skips_what_the_server_would_refuse(damaged: Path) -> None:
    config = damaged / "models" / "net_onnx" / "config.pbtxt"
    config.write_text(config.read_text().replace("max_batch_size: 8", "max_batch_size: 2"))
    (damaged / "models" / "net_torchscript" / "1" / MANIFEST_NAME).unlink()
    status, document, text = verify(damaged)
    assert status == 0, text
    rows = rows_of(document)
    assert rows["exported file alone"] == ["equal"] * 4
    assert rows["served, HTTP JSON"] == ["equal", "equal", "skipped", "skipped"]
    assert rows["served, 16 clients"] == ["equal"]
    assert "the model config takes at most 2 rows" in text
    assert document["unverified"] == ["net_torchscript"]
    assert "wrote no golden cases for them: net_torchscript" in text


def test_a_report_that_cannot_be_written_is_still_printed(folder: Path) -> None:
    status, _, text = verify(folder, "net_onnx", "--json", "missing/report.json")
    assert status == 2
    assert "served, 16 clients" in text
    assert "cannot write the report" in text


def test_a_changed_golden_file_is_named_by_its_hash(damaged: Path) -> None:
    add_one_to_golden_outputs(damaged / "models" / "net_onnx" / "1")
    status, document, text = verify(damaged, "net_onnx")
    assert status == 1
    (problem, *_) = document["models"][0]["problems"]
    assert "is not the file that was exported" in problem
    assert "golden/" in problem
    assert "is not the file that was exported" in text


def test_a_forged_golden_output_shows_in_the_numbers_and_is_named(damaged: Path) -> None:
    version = damaged / "models" / "net_onnx" / "1"
    add_one_to_golden_outputs(version)
    rehash(version)
    status, document, text = verify(damaged, "net_onnx", "--source", "nets:net")
    assert status == 1, text
    model = document["models"][0]
    assert model["problems"] == []
    assert "DIFFERENT" in rows_of(document)["exported file alone"]
    different = [row for row in model["rows"] if row["verdict"] == "DIFFERENT"]
    assert all(abs(d["max_abs"] - 1) < 1e-3 for row in different for d in row["differences"])
    (cause,) = model["causes"]
    assert cause["cause"] == "stale golden outputs"


def test_swapped_inputs_are_found_and_named(damaged: Path) -> None:
    swap_inputs(damaged)
    status, document, text = verify(damaged, "net_onnx")
    assert status == 1, text
    assert set(rows_of(document)["exported file alone"]) == {"DIFFERENT"}
    (cause,) = document["models"][0]["causes"]
    assert cause["cause"] == "swapped inputs"
    assert cause["sentence"].startswith("inputs are swapped: with 'b' in the place of 'a'")
    assert "inputs are swapped" in text


def test_a_server_that_swaps_inputs_is_told_from_a_file_that_does(
    folder: Path, damaged: Path
) -> None:
    swap_inputs(damaged)
    with ServerProcess(damaged / "models") as server:
        status, document, text = verify(folder, "net_onnx", "--url", server.address)
    assert status == 1, text
    rows = rows_of(document)
    assert set(rows["exported file alone"]) == {"equal"}
    assert set(rows["served, HTTP JSON"]) == {"DIFFERENT"}
    assert set(rows["served, HTTP binary"]) == {"DIFFERENT"}
    (cause,) = document["models"][0]["causes"]
    assert (cause["cause"], cause["hop"]) == ("swapped inputs", "served, HTTP JSON")
    assert "in the engine" not in rows


def test_an_export_in_train_mode_is_found_and_named(damaged: Path) -> None:
    version = damaged / "models" / "net_torchscript" / "1"
    model, example = make_net(damaged)
    traced = quietly(torch.jit.trace, model.train(), example, check_trace=False)
    quietly(traced.save, str(version / "model.pt"))
    rehash(version)
    status, document, text = verify(damaged, "net_torchscript", "--source", "nets:net")
    assert status == 1, text
    assert set(rows_of(document)["PyTorch eager again"]) == {"equal"}
    assert set(rows_of(document)["exported file alone"]) == {"DIFFERENT"}
    (cause,) = document["models"][0]["causes"]
    assert cause["cause"] == "train mode"


def test_a_changed_model_file_is_named_even_where_its_answers_agree(damaged: Path) -> None:
    version = damaged / "models" / "net_torchscript" / "1"
    model, example = make_net(damaged)
    quietly(quietly(torch.jit.trace, model, example).save, str(version / "model.pt"))
    status, document, _ = verify(damaged, "net_torchscript")
    assert status == 1
    assert document["models"][0]["problems"][0].startswith("model.pt is not the file")
    (cause,) = document["models"][0]["causes"]
    assert cause["cause"] == "files changed since the export"
    assert set(rows_of(document)["exported file alone"]) == {"equal"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "there is no model 'nope'"),
        (["net_onnx", "--url", "127.0.0.1:1"], "could not be verified"),
        (["--source", "nets:net"], "name the MODEL that it belongs to"),
        (["net_onnx", "--source", "nets:nothing"], "has no 'nothing'"),
    ],
)
def test_what_can_not_be_run_is_neither_equal_nor_different(
    folder: Path, arguments: list[str], message: str
) -> None:
    status, _, text = verify(folder, *arguments)
    assert status == 2, text
    assert message in " ".join(text.split())


def test_changed_weights_are_called_so_and_not_unexplained(damaged: Path) -> None:
    version = damaged / "models" / "net_torchscript" / "1"
    model, example = make_net(damaged)
    torch.nn.init.zeros_(model.get_parameter("linear.weight"))
    quietly(quietly(torch.jit.trace, model, example).save, str(version / "model.pt"))
    status, document, text = verify(damaged, "net_torchscript", "--file-only")
    assert status == 1
    (cause,) = document["models"][0]["causes"]
    assert cause["cause"] == "files changed since the export"
    assert "cause: files changed since the export: model.pt is not what" in text


def test_a_source_that_fails_says_so_once(damaged: Path) -> None:
    with (damaged / "nets.py").open("a", encoding="utf-8") as file:
        file.write(BREAKS_LATER)
    status, _, text = verify(damaged, "net_onnx", "--file-only", "--source", "nets:breaks_later")
    assert status == 1, text
    assert text.count("no more answers today") == 1


def test_a_pipe_gets_a_line_for_each_hop(folder: Path) -> None:
    _, _, text = verify(folder, "net_onnx", "--file-only")
    assert "net_onnx 1: exported file alone, batch 1, 2, 3, 8: equal\n" in text


def test_a_server_s_own_address_is_enough_for_every_transport(folder: Path) -> None:
    with ServerProcess(folder / "models") as server:
        addresses = ("--url", server.address, "--grpc-url", server.grpc_address)
        status, document, text = verify(folder, "net_onnx", *addresses)
    assert status == 0, text
    assert list(rows_of(document)) == [
        "exported file alone", "served, HTTP JSON", "served, HTTP binary", "served, gRPC",
        "served, gRPC stream", "served, 16 clients",
    ]  # fmt: skip


def test_a_grpc_address_alone_is_a_mistake(folder: Path) -> None:
    status, _, text = verify(folder, "net_onnx", "--grpc-url", "127.0.0.1:1")
    assert status == 2
    assert "needs its --url too" in text


def test_the_page_and_junit_are_written(folder: Path, tmp_path: Path) -> None:
    page, junit = tmp_path / "r.html", tmp_path / "r.xml"
    status, _, text = verify(
        folder, "net_onnx", "--file-only", "--html", str(page), "--junit", str(junit)
    )
    assert status == 0, text
    assert "Every hop holds" in page.read_text(encoding="utf-8")
    assert fromstring(junit.read_text(encoding="utf-8")).find("testsuite") is not None


def test_a_model_that_does_not_load_stops_no_other(damaged: Path) -> None:
    broken = damaged / "models" / "net_onnx" / "1" / "model.onnx"
    broken.write_bytes(b"not a model")
    status, document, text = verify(damaged)
    assert status == 1, text
    onnx, torchscript = document["models"]
    assert onnx["problems"][0].startswith("model.onnx is not the file")
    assert "does not load" in onnx["could_not_run"]
    assert {row["verdict"] for row in torchscript["rows"]} == {"equal"}


def test_a_server_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError) as raised:
        ServerProcess(tmp_path / "nowhere")
    assert "naiad serve" in raised.value.message
    assert "nowhere" in raised.value.message.partition("The end of its log:")[2]


def test_a_server_is_gone_after_its_block(folder: Path) -> None:
    with ServerProcess(folder / "models") as server, ServerProcess(folder / "models") as another:
        assert another.address != server.address
    for process in (server, another):
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)


def swap_inputs(folder: Path) -> None:
    """Export the ONNX model again with its input names in the wrong order."""
    version = folder / "models" / "net_onnx" / "1"
    model, example = make_net(folder)
    batch = torch.export.Dim("batch", min=1, max=64)
    quietly(
        torch.onnx.export, model, example, version / "model.onnx", dynamo=True, verbose=False,
        external_data=False, input_names=["b", "a"], output_names=output_names(version),
        dynamic_shapes=({0: batch}, {0: batch}),
    )  # fmt: skip
    rehash(version)


def add_one_to_golden_outputs(version: Path) -> None:
    for path in sorted((version / "golden").glob("*.safetensors")):
        stored = load_file(path)
        save_file(
            {k: v + np.float32(1) if k.startswith("outputs/") else v for k, v in stored.items()},
            path,
        )


def output_names(version: Path) -> list[str]:
    manifest = json.loads((version / MANIFEST_NAME).read_text(encoding="utf-8"))
    return [output["name"] for output in manifest["outputs"]]
