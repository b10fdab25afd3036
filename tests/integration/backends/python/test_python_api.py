"""The rest of pb_utils: arguments, completion, metrics, logs, helpers, environments."""

import json
import logging
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from tests.support.python_models import ask, floats, serving, texts, value, write_model
from tests.support.requests import tensor

from naiad.engine.engine import ModelControlMode
from naiad.metrics.exposition import MetricsRenderer
from naiad.model_config.json_format import config_to_json

pytestmark = pytest.mark.slow


async def test_initialize_gets_the_arguments_of_triton(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "arguments",
        """
        import json, os, sys
        from helper import WORD
        from .helper import WORD as AGAIN

        class TritonPythonModel:
            def initialize(self, args):
                self.seen = dict(args)

            def execute(self, requests):
                assert sys.argv == [""]
                seen = [self.seen, WORD, AGAIN, pb_utils.get_model_dir(), os.getcwd()]
                out = pb_utils.Tensor("OUT", np.array([json.dumps(seen)], np.object_))
                return [pb_utils.InferenceResponse([out])]
        """,
        output_datatype="TYPE_STRING",
    )
    (tmp_path / "arguments" / "1" / "helper.py").write_text("WORD = 'helped'\n")
    async with serving(tmp_path) as engine:
        (text,) = await value(engine, "arguments", floats(0))
        arguments, *words, folder, current = json.loads(text)
        assert words == ["helped", "helped"]
        assert folder == str(tmp_path / "arguments" / "1")
        assert current == str(Path.cwd())
        config = json.loads(arguments.pop("model_config"))
        assert config == config_to_json(engine.model_config("arguments"))
        assert arguments == {
            "model_instance_kind": "CPU",
            "model_instance_name": "arguments_0_0",
            "model_instance_device_id": "0",
            "model_repository": str(tmp_path / "arguments"),
            "model_version": "1",
            "model_name": "arguments",
        }


COMPLETE = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(4)
        config.set_dynamic_batching()
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [2], "optional": False})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [2]})
        config.set_model_transaction_policy({"decoupled": False})
        return config

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())])
                for r in requests]
"""


async def test_a_model_completes_its_config(tmp_path: Path) -> None:
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text("import triton_python_backend_utils as pb_utils\n" + COMPLETE)
    async with serving(tmp_path, completes=True) as engine:
        config = config_to_json(engine.model_config("m"))
        assert config["backend"] == "python"
        assert config["max_batch_size"] == 4
        assert [(t["name"], t["dims"]) for t in config["input"]] == [("IN", [2])]
        assert [(t["name"], t["dims"]) for t in config["output"]] == [("OUT", [2])]
        assert config["dynamic_batching"]["preferred_batch_size"] == [4]
        assert config["instance_group"][0]["count"] == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return 3", "auto_complete_config function in model 'm' must return a valid pb.ModelConf"),
        (
            "config.set_max_batch_size(1); return config",
            "configuration specified max_batch_size 8, but in auto-complete-config function for "
            "model 'm' specified max_batch_size 1",
        ),
        (
            'config.add_input({"name": "IN", "data_type": "TYPE_INT8", "dims": [-1]})',
            "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'IN', "
            "model provides TYPE_INT8",
        ),
        (
            'config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [3]})',
            "model 'm', tensor 'OUT': the model expects dims [3] but the model configuration "
            "specifies dims [-1]",
        ),
        (
            'config.add_output({"name": "X", "dims": [3]})',
            "output 'X' in auto-complete-config function for model 'm' is missing 'data_type' "
            "property.",
        ),
        (
            'config.add_output({"name": "X", "a": 1, "dims": [3]})',
            "output 'X' in auto-complete-config function for model 'm' contains property other "
            "than 'name', 'data_type' and 'dims'.",
        ),
        ('raise RuntimeError("no")', "RuntimeError: no"),
    ],
)
async def test_what_a_completion_can_do_wrong(tmp_path: Path, body: str, reason: str) -> None:
    source = (
        "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config):\n"
        f"        {body}\n"
    )
    write_model(tmp_path, "m", source, max_batch_size=8)
    async with serving(tmp_path, ModelControlMode.EXPLICIT, completes=True) as engine:
        with pytest.raises(Exception, match="load failed") as caught:
            await engine.load_model("m", None, {})
        assert reason in str(caught.value)


METRICS = """
class TritonPythonModel:
    def initialize(self, args):
        self.family = pb_utils.MetricFamily(
            name="requests_seen", description="Seen\\\\ by models",
            kind=pb_utils.MetricFamily.COUNTER)
        self.counter = self.family.Metric(labels={"model": "m", "odd": 'a"b'})
        self.gauges = pb_utils.MetricFamily("level", "Level", pb_utils.MetricFamily.GAUGE)
        self.gauge = self.gauges.Metric()
        self.sizes = pb_utils.MetricFamily("size", "Sizes", pb_utils.MetricFamily.HISTOGRAM)
        self.histogram = self.sizes.Metric(labels={"a": "b"}, buckets=[1.0, 2.5])

    def execute(self, requests):
        (r,) = requests
        x = float(r.inputs()[0].as_numpy()[0])
        self.counter.increment(2)
        self.gauge.set(x)
        self.gauge.increment(-0.5)
        self.histogram.observe(x)
        texts = []
        for call in (lambda: self.counter.increment(-1), lambda: self.counter.set(1),
                     lambda: self.counter.observe(1), lambda: self.histogram.value()):
            try:
                call()
            except pb_utils.TritonModelException as error:
                texts.append(str(error))
        values = [self.counter.value(), self.gauge.value(), len(texts)]
        out = pb_utils.Tensor("OUT", np.array(values, np.float32))
        return [pb_utils.InferenceResponse([out])]
"""


async def test_metrics_of_models_are_on_the_metrics_page(tmp_path: Path) -> None:
    write_model(tmp_path, "m", METRICS)
    async with serving(tmp_path, ModelControlMode.EXPLICIT) as engine:
        renderer = MetricsRenderer(list, None, engine.custom_metrics.read)
        await engine.load_model("m", None, {})
        assert await value(engine, "m", floats(2)) == [2, 1.5, 4]
        assert await value(engine, "m", floats(9)) == [4, 8.5, 4]
        page = renderer.render().decode()
        for line in (
            "# HELP requests_seen Seen\\\\ by models",
            "# TYPE requests_seen counter",
            'requests_seen{model="m",odd="a\\"b"} 4',
            "level 8.5",
            'size_bucket{a="b",le="1"} 0',
            'size_bucket{a="b",le="2.5"} 1',
            'size_bucket{a="b",le="+Inf"} 2',
            'size_sum{a="b"} 11',
            'size_count{a="b"} 2',
        ):
            assert line in page.splitlines()
    assert "requests_seen" not in renderer.render().decode()


async def test_instances_share_metrics_of_one_name(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "m",
        """
        class TritonPythonModel:
            def initialize(self, args):
                self.family = pb_utils.MetricFamily("started", "d", pb_utils.MetricFamily.COUNTER)
                self.metric = self.family.Metric()
                self.metric.increment(1)
                try:
                    pb_utils.MetricFamily("started", "d", pb_utils.MetricFamily.GAUGE)
                    raise AssertionError
                except pb_utils.TritonModelException as error:
                    assert "exists already and is a counter" in str(error), error

            def execute(self, requests):
                out = pb_utils.Tensor("OUT", np.array([self.metric.value()], np.float32))
                return [pb_utils.InferenceResponse([out]) for _ in requests]
        """,
        extra="instance_group [ { count: 3 kind: KIND_CPU } ]",
    )
    async with serving(tmp_path) as engine:
        assert await value(engine, "m", floats(0)) == [3]


@pytest.mark.parametrize("path", ["1/model.py", "/1/model.py"])
async def test_a_load_brings_a_model_file(tmp_path: Path, path: str) -> None:
    config = {
        "backend": "python",
        "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]}],
    }
    source = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([
            pb_utils.Tensor("OUT", r.inputs()[0].as_numpy() + 1)]) for r in requests]
"""
    async with serving(tmp_path, ModelControlMode.EXPLICIT) as engine:
        await engine.load_model("sent", json.dumps(config), {path: source.encode()})
        assert await value(engine, "sent", floats(1)) == [2]


async def test_metrics_end_with_their_family(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "m",
        """
        class TritonPythonModel:
            def execute(self, requests):
                family = pb_utils.MetricFamily("brief", "d", pb_utils.MetricFamily.GAUGE)
                metric = family.Metric()
                metric.set(1)
                texts = [str(metric.value())]
                del family
                for call in (lambda: metric.set(1), lambda: metric.increment(1), metric.value):
                    try:
                        call()
                    except pb_utils.TritonModelException as error:
                        texts.append(str(error))
                out = pb_utils.Tensor("OUT", np.array(texts, np.object_))
                return [pb_utils.InferenceResponse([out]) for _ in requests]
        """,
        output_datatype="TYPE_STRING",
    )
    async with serving(tmp_path) as engine:
        set_to, *refused = await value(engine, "m", floats(0))
        assert set_to == "1.0"
        assert len(refused) == 3
        for text in refused:
            assert text.startswith(
                "Invalid metric operation as the corresponding 'MetricFamily' has been deleted."
            )
        assert engine.custom_metrics.read() == []


async def test_lines_of_models_are_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "naiad.backends.python")
    write_model(
        tmp_path,
        "m",
        """
        import sys

        class TritonPythonModel:
            def execute(self, requests):
                pb_utils.Logger.log_info("an info")
                pb_utils.Logger.log_warn("a warning")
                pb_utils.Logger.log_error("an error")
                pb_utils.Logger.log_verbose("a detail")
                pb_utils.Logger.log("by level", pb_utils.Logger.WARNING)
                print("printed")
                print("to stderr", file=sys.stderr)
                return [pb_utils.InferenceResponse([]) for _ in requests]
        """,
    )
    async with serving(tmp_path) as engine:
        assert (await ask(engine, "m", floats(0))).error is None
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert ("INFO", "model.py:9] an info") in lines
    assert ("WARNING", "model.py:10] a warning") in lines
    assert ("ERROR", "model.py:11] an error") in lines
    assert ("DEBUG", "model.py:12] a detail") in lines
    assert ("WARNING", "model.py:13] by level") in lines
    assert ("INFO", "m_0_0: printed") in lines
    assert ("INFO", "m_0_0: to stderr") in lines


HELPERS = """
import json

def asked(**changed):
    given = {"model_name": "m", "inputs": [], "requested_output_names": []}
    return pb_utils.InferenceRequest(**{**given, **changed})

class Bits:
    # What a framework with BF16 gives to DLPack.

    def __init__(self, bits):
        self.bits = np.array(bits, np.uint16)

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self):
        from naiad_stub import dlpack, wire
        return dlpack.to_capsule(self.bits, wire.BF16)

def bfloat16(bits):
    return pb_utils.Tensor.from_dlpack("half", Bits(bits))

def check_requests():
    made = asked(inputs=[pb_utils.Tensor("a", np.zeros(1))], request_id="r", flags=1, timeout=7,
                 correlation_id="text", model_version=2, parameters={"k": True},
                 requested_output_names=["x", "y", "x"],
                 preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 1))
    assert made.requested_output_names() == ["x", "y"] and made.inputs()[0].is_cpu()
    assert (made.request_id(), made.flags(), made.timeout()) == ("r", 1, 7)
    assert made.correlation_id() == "text" and asked(correlation_id=5).correlation_id() == 5
    assert asked().correlation_id() == 0 and not made.is_cancelled()
    assert json.loads(made.parameters()) == {"k": True}
    assert made.preferred_memory().preferred_memory_type == pb_utils.TRITONSERVER_MEMORY_GPU
    assert made.preferred_memory().preferred_device_id == 1
    made.set_flags(pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)
    assert made.flags() == 2 and pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START == 1
    assert made.trace().get_context() is None
    error = pb_utils.TritonError("no", pb_utils.TritonError.NOT_FOUND)
    answer = pb_utils.InferenceResponse(error=error, parameters={"n": 1})
    assert answer.has_error() and answer.error().code() == 2 and answer.error().message() == "no"
    assert answer.output_tensors() == [] and json.loads(answer.parameters()) == {"n": 1}
    assert pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL == 1
    assert pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE == 2

def check_dlpack():
    half = bfloat16([0x3F80, 0x4000])
    assert half.triton_dtype() == 14 and half.shape() == [2]
    again = pb_utils.Tensor.from_dlpack("again", half)
    assert again.triton_dtype() == 14
    frozen = np.arange(3)
    frozen.flags.writeable = False
    assert np.from_dlpack(pb_utils.Tensor("f", frozen)).tolist() == [0, 1, 2]
    # What lets go of a capsule on the way of an exception leaves the exception be.
    def fail():
        held = pb_utils.Tensor("f", np.arange(3)).to_dlpack()
        raise KeyError("mine")
    for _ in range(3):
        try:
            fail()
        except KeyError as error:
            assert error.args == ("mine",)

def check(args):
    check_requests()
    check_dlpack()
    config = json.loads(args["model_config"])
    assert pb_utils.get_input_config_by_name(config, "IN")["data_type"] == "TYPE_STRING"
    assert pb_utils.get_output_config_by_name(config, "OUT")["dims"] == [-1]
    assert pb_utils.get_output_config_by_name(config, "nope") is None
    assert pb_utils.using_decoupled_model_transaction_policy(config) is False
    assert pb_utils.triton_string_to_numpy("TYPE_FP16") is np.float16
    assert pb_utils.triton_to_numpy_type(13) is np.object_
    assert pb_utils.triton_to_numpy_type(14) is None
    assert pb_utils.numpy_to_triton_type(np.int64) == 9
    assert pb_utils.numpy_to_triton_type(np.object_) == 13
    assert pb_utils.numpy_to_triton_type(np.dtype("S3")) == 13
    words = np.array([b"a", "\\u00fc", b""], np.object_)
    packed = pb_utils.serialize_byte_tensor(words)
    assert packed == b"\\x01\\0\\0\\0a\\x02\\0\\0\\0\\xc3\\xbc\\0\\0\\0\\0"
    assert pb_utils.deserialize_bytes_tensor(packed).tolist() == [b"a", "\\u00fc".encode(), b""]
    half = bfloat16([0x3F80, 0x4000])
    for call, kind, text in [
        (lambda: pb_utils.Tensor("", np.zeros(1)), pb_utils.TritonModelException,
         "Tensor name cannot be an empty string."),
        (lambda: pb_utils.Tensor("x", [1]), TypeError, "needs a numpy array"),
        (lambda: pb_utils.Tensor("x", np.zeros(1, np.complex64)), pb_utils.TritonModelException,
         "is not supported"),
        (lambda: pb_utils.InferenceResponse([None]), pb_utils.TritonModelException,
         "Output tensor for inference response should not be empty."),
        (lambda: pb_utils.InferenceResponse([], parameters={"a": 1.5}),
         pb_utils.TritonModelException,
         "Expect parameters values to have type bool/int/str, found type <class 'float'>"),
        (lambda: pb_utils.InferenceResponse([], parameters=[]),
         pb_utils.TritonModelException, ", got <class 'list'>"),
        (lambda: pb_utils.InferenceResponse([], parameters={1: 1}),
         pb_utils.TritonModelException,
         "Expect parameters keys to have type str, found type <class 'int'>"),
        (lambda: pb_utils.InferenceRequest(inputs=[]), TypeError, "needs"),
        (lambda: asked(inputs=[None]), pb_utils.TritonModelException,
         "Input tensor for request with id '' and model name 'm' should not be empty."),
        (lambda: asked(requested_output_names=[None]), TypeError, "must hold texts"),
        (lambda: asked(requested_output_names=[""]), pb_utils.TritonModelException,
         "Requested output name for request with id '' and model name 'm' should not be empty."),
        *((lambda name=name: asked(**{name: None}), TypeError, name) for name in (
            "inputs", "requested_output_names", "model_name", "request_id", "correlation_id",
            "model_version", "flags", "timeout", "preferred_memory", "trace")),
        (lambda: asked(correlation_id=1.5), pb_utils.TritonModelException,
         "Correlation ID must be integer or string"),
        (lambda: asked().get_response_sender(), pb_utils.TritonModelException,
         "no reference to the decoupled state"),
        (lambda: pb_utils.TritonError("x", 8), TypeError, "unknown code 8"),
        (lambda: pb_utils.TritonError(None), TypeError, "message must be str"),
        (lambda: pb_utils.Logger.log("x", 1), TypeError, "must be one of LogLevel"),
        (lambda: pb_utils.Logger.log_verbose(None), TypeError, "must be str"),
        (lambda: pb_utils.Tensor.from_dlpack("x", pb_utils.Tensor("t", words)),
         pb_utils.TritonModelException, "DLPack does not have support for string tensors."),
        (lambda: half.as_numpy(), pb_utils.TritonModelException,
         "Tensor dtype is BF16 and cannot be converted to NumPy."),
    ]:
        try:
            call()
        except kind as error:
            assert text in str(error), error
        else:
            raise AssertionError(text)
    t = np.arange(6, dtype=np.float32).reshape(2, 3).T
    made = pb_utils.Tensor("t", t)
    assert made.shape() == [3, 2] and made.as_numpy().tolist() == t.tolist()
    assert np.from_dlpack(made).tolist() == t.tolist()
    back = pb_utils.Tensor.from_dlpack("b", made.to_dlpack())
    assert back.as_numpy().tolist() == t.tolist() and back.triton_dtype() == 11
    assert made.__dlpack_device__() == (1, 0)
    flags = pb_utils.Tensor.from_dlpack("b", pb_utils.Tensor("a", np.array([True, False])))
    assert flags.triton_dtype() == 1 and flags.as_numpy().tolist() == [True, False]
    for wrong in (3, np.arange(6, dtype=np.float32).reshape(2, 3).T):
        try:
            pb_utils.Tensor.from_dlpack("b", wrong)
        except pb_utils.TritonModelException:
            pass
        else:
            raise AssertionError(wrong)
    scalar = pb_utils.Tensor("s", np.array(3.0))
    assert scalar.shape() == []
    import c_python_backend_utils
    assert c_python_backend_utils.Tensor is pb_utils.Tensor


class TritonPythonModel:
    def initialize(self, args):
        check(args)

    def execute(self, requests):
        x = pb_utils.get_input_tensor_by_name(requests[0], "IN")
        assert pb_utils.get_input_tensor_by_name(requests[0], "nope") is None
        x.as_numpy()[0] = b"changed"
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x.as_numpy())])]
"""


async def test_the_helpers_do_what_tritons_do(tmp_path: Path) -> None:
    write_model(tmp_path, "helpers", HELPERS, datatype="TYPE_STRING")
    async with serving(tmp_path) as engine:
        assert await value(engine, "helpers", texts("a", "b")) == ["changed", "b"]


def make_environment(folder: Path) -> None:
    """A virtual environment that borrows this one's numpy."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(str(Path(np.__file__).parents[1]))


def write_conda_files(folder: Path) -> None:
    """What conda adds: where the environment lies, written into files, and scripts to source."""
    (packages,) = folder.glob("lib/python*/site-packages")
    files = [str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()]
    script = folder / "etc" / "conda" / "activate.d" / "share.sh"
    script.parent.mkdir(parents=True)
    script.write_text('export SHARE="$CONDA_PREFIX/share"\n')
    (packages / "where.py").write_text(f'where = "{folder}"\n')
    entry = {
        "name": "python",
        "version": ".".join(map(str, sys.version_info[:3])),
        "url": "",
        "link": None,
        "files": [*files, str((packages / "where.py").relative_to(folder))],
    }
    (folder / "conda-meta").mkdir()
    (folder / "conda-meta" / "python-0.json").write_text(json.dumps(entry))
    (folder / "conda-meta" / "history").touch()


@pytest.fixture
def conda_archive(tmp_path: Path) -> Path:
    """What conda-pack makes of an environment."""
    environment = tmp_path / "environment"
    make_environment(environment)
    write_conda_files(environment)
    folder = tmp_path / "tools"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "conda-pack"]
    if subprocess.run(command, check=False, timeout=300).returncode:
        pytest.skip("conda-pack can't be installed here")
    archive = tmp_path / "environment.tar.gz"
    program = str(folder / "bin" / "conda-pack")
    subprocess.run([program, "-q", "-p", str(environment), "-o", str(archive)], check=True)
    return archive


CONDA = """
import os, sys, where

class TritonPythonModel:
    def execute(self, requests):
        found = [sys.prefix, where.where, os.environ["CONDA_PREFIX"], os.environ["SHARE"]]
        out = pb_utils.Tensor("OUT", np.array(found, np.object_))
        return [pb_utils.InferenceResponse([out])]
"""


async def test_the_scripts_of_a_conda_environment_have_run(tmp_path: Path) -> None:
    environment = tmp_path / "an environment"
    make_environment(environment)
    write_conda_files(environment)
    write_model(
        tmp_path / "repository",
        "m",
        CONDA,
        output_datatype="TYPE_STRING",
        extra='parameters { key: "EXECUTION_ENV_PATH" '
        f'value {{ string_value: "{environment}" }} }}',
    )
    settings = {"execution-env-directory": str(tmp_path)}
    async with serving(tmp_path / "repository", settings=settings) as engine:
        folder = str(environment)
        assert await value(engine, "m", floats(0)) == [folder, folder, folder, f"{folder}/share"]


@pytest.mark.full
async def test_an_archive_of_conda_pack_itself_runs_where_it_is_unpacked(
    tmp_path: Path, conda_archive: Path
) -> None:
    write_model(
        tmp_path / "repository",
        "m",
        CONDA,
        output_datatype="TYPE_STRING",
        extra='parameters { key: "EXECUTION_ENV_PATH" '
        'value { string_value: "$$TRITON_MODEL_DIRECTORY/environment.tar.gz" } }',
    )
    shutil.move(conda_archive, tmp_path / "repository" / "m" / conda_archive.name)
    async with serving(tmp_path / "repository") as engine:
        prefix, where, conda_prefix, share = await value(engine, "m", floats(0))
        assert "naiad-environment-" in prefix
        assert where == conda_prefix == prefix
        assert share == f"{prefix}/share"


async def test_what_is_no_archive_of_an_environment_is_said(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "m",
        CONDA,
        extra='parameters { key: "EXECUTION_ENV_PATH" '
        'value { string_value: "$$TRITON_MODEL_DIRECTORY/environment.zip" } }',
    )
    (tmp_path / "m" / "environment.zip").write_bytes(b"PK")
    async with serving(tmp_path, ModelControlMode.EXPLICIT) as engine:
        with pytest.raises(Exception, match=r"conda-pack makes one with '--format tar\.gz'"):
            await engine.load_model("m", None, {})


@pytest.mark.parametrize("kind", ["folder", "archive"])
async def test_a_model_runs_in_an_environment_of_its_own(tmp_path: Path, kind: str) -> None:
    environment = tmp_path / "environment"
    make_environment(environment)
    repository = tmp_path / "repository"
    text = str(environment)
    if kind == "archive":
        text = "$$TRITON_MODEL_DIRECTORY/environment.tar.gz"
    write_model(
        repository,
        "m",
        """
        import sys

        class TritonPythonModel:
            def execute(self, requests):
                out = pb_utils.Tensor("OUT", np.array([sys.prefix], np.object_))
                return [pb_utils.InferenceResponse([out])]
        """,
        output_datatype="TYPE_STRING",
        extra=f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{text}" }} }}',
    )
    if kind == "archive":
        with tarfile.open(repository / "m" / "environment.tar.gz", "w:gz") as archive:
            for entry in environment.iterdir():
                archive.add(entry, entry.name)
    settings = {"execution-env-directory": str(tmp_path)} if kind == "folder" else None
    async with serving(repository, settings=settings) as engine:
        (prefix,) = await value(engine, "m", floats(0))
        if kind == "folder":
            assert prefix == str(environment)
        else:
            assert "naiad-environment-" in prefix


@pytest.fixture
def old_environment(tmp_path: Path) -> Path:
    """An environment with numpy 1."""
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "numpy==1.26.4"]
    if subprocess.run(command, check=False, timeout=300).returncode:
        pytest.skip("numpy 1.26.4 can't be installed here")
    return folder


@pytest.mark.full
async def test_all_of_it_runs_with_numpy_1(tmp_path: Path, old_environment: Path) -> None:
    parameter = f'key: "EXECUTION_ENV_PATH" value {{ string_value: "{old_environment}" }}'
    repository = tmp_path / "repository"
    settings = {"execution-env-directory": str(tmp_path)}
    write_model(
        repository,
        "helpers",
        HELPERS + '\nassert np.__version__ == "1.26.4"\n',
        datatype="TYPE_STRING",
        extra=f"parameters {{ {parameter} }}",
    )
    write_model(
        repository,
        "echo",
        """
        class TritonPythonModel:
            def execute(self, requests):
                return [pb_utils.InferenceResponse([
                    pb_utils.Tensor.from_dlpack("OUT", r.inputs()[0])]) for r in requests]
        """,
        extra=f"parameters {{ {parameter} }}",
    )
    data = np.arange(1 << 20, dtype=np.float32)
    async with serving(repository, settings=settings) as engine:
        assert await value(engine, "helpers", texts("a", "b")) == ["changed", "b"]
        response = await ask(engine, "echo", tensor("IN", data))
        assert response.error is None
        assert np.array_equal(response.outputs[0].data, data)
