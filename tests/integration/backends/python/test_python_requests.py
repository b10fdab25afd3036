"""What a model sees of a request, and what becomes of its answers."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from tests.support.python_models import (
    Asked,
    ask,
    error,
    floats,
    serving,
    texts,
    value,
    write_model,
)
from tests.support.requests import tensor

from naiad.inference.datatypes import BF16, BY_NAME, BYTES
from naiad.inference.tensor import Tensor

pytestmark = pytest.mark.slow

ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())]
            )
            for r in requests
        ]
"""


async def test_a_model_answers_every_request_of_a_batch_by_itself(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "count",
        """
        class TritonPythonModel:
            def execute(self, requests):
                out = np.array([[len(requests)]], np.float32)
                return [
                    pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out + len(r.inputs()))])
                    for r in requests
                ]
        """,
        max_batch_size=8,
        extra="dynamic_batching { max_queue_delay_microseconds: 200000 }",
    )
    async with serving(tmp_path) as engine:
        rows = [tensor("IN", np.zeros((n, 1), np.float32)) for n in (1, 2, 5)]
        asked = [Asked(engine, "count", row).send() for row in rows]
        answers = [(await one.all())[0] for one in asked]
        assert [a.outputs[0].data.tolist() for a in answers] == [[[4.0]]] * 3
        statistics = engine.find("count").statistics
        assert statistics.execution_count == 1
        assert statistics.success.count == 3
        assert statistics.inference_count == 8


@pytest.mark.parametrize("size", [0, 1, 5000, 3_000_000])
async def test_tensors_of_any_size_come_back(tmp_path: Path, size: int) -> None:
    write_model(tmp_path, "echo", ECHO)
    async with serving(tmp_path) as engine:
        data = np.random.default_rng(size).random(size, np.float32)
        for _ in range(3):
            response = await ask(engine, "echo", tensor("IN", data))
            assert response.error is None
            np.testing.assert_array_equal(response.outputs[0].data, data)


async def test_memory_of_large_tensors_is_used_again(tmp_path: Path) -> None:
    write_model(tmp_path, "echo", ECHO)
    async with serving(tmp_path, settings={"shm-region-max-byte-size": str(20 << 20)}) as engine:
        data = np.ones(2 << 20, np.float32)
        for _ in range(20):  # 160 MB in each direction through regions of 20
            response = await ask(engine, "echo", tensor("IN", data))
            assert response.error is None, response.error
            assert response.outputs[0].data[-1] == 1
            del response


async def test_a_tensor_that_is_too_large_for_the_region_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path, "echo", ECHO)
    async with serving(tmp_path, settings={"shm-region-max-byte-size": "1048576"}) as engine:
        text = await error(engine, "echo", tensor("IN", np.ones(1 << 20, np.float32)))
        assert "1048576 are allowed" in text
        assert await value(engine, "echo", floats(3)) == [3]


@pytest.mark.parametrize(
    "name",
    ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
     "FP16", "FP32", "FP64", "BYTES", "BF16"],
)  # fmt: skip
async def test_every_datatype_goes_both_ways(tmp_path: Path, name: str) -> None:
    datatype = BY_NAME[name]
    source = ECHO.replace(".as_numpy()", "")
    if datatype is BF16:
        source = source.replace('pb_utils.Tensor("OUT"', 'pb_utils.Tensor.from_dlpack("OUT"')
    else:
        source = ECHO
    write_model(tmp_path, "echo", source, datatype=datatype.config_name)
    data = np.array([0, 1, 1, 0, 1], datatype.dtype)
    if datatype is BYTES:
        data = np.array([b"", b"a\x00b", "\u00fc".encode(), b"\xff", b"x" * 70000], np.object_)
    async with serving(tmp_path) as engine:
        response = await ask(engine, "echo", Tensor("IN", datatype, data.shape, data))
        assert response.error is None, response.error
        (output,) = response.outputs
        assert output.datatype is datatype
        assert output.data.tolist() == data.tolist()


async def test_a_model_sees_everything_that_belongs_to_a_request(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "show",
        """
        import json

        class TritonPythonModel:
            def execute(self, requests):
                return [
                    pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([json.dumps([
                        r.request_id(), r.correlation_id(), r.flags(), r.timeout(),
                        sorted(r.requested_output_names()), json.loads(r.parameters()),
                        r.is_cancelled(), r.trace().get_context(), r.inputs()[0].shape(),
                        r.inputs()[0].triton_dtype(), r.inputs()[0].is_cpu(),
                    ])], np.object_))])
                    for r in requests
                ]
        """,
        outputs=("OUT", "MORE"),
        output_datatype="TYPE_STRING",
    )
    async with serving(tmp_path) as engine:
        asked = Asked(engine, "show", floats(1, 2), request_id="mine")
        request = asked.request
        request.correlation_id = "sequence"
        request.sequence_start = True
        request.timeout_us = 5_000_000
        request.output_names = ["OUT"]
        request.parameters = {"a": 1, "b": "x", "c": True}
        (response,) = await asked.send().all()
        assert response.error is None
        assert json.loads(response.outputs[0].data[0]) == [
            "mine", "sequence", 1, 5_000_000, ["OUT"], {"a": 1, "b": "x", "c": True},
            False, None, [2], 11, True,
        ]  # fmt: skip


async def test_only_the_outputs_that_were_asked_for_are_answered(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "two",
        """
        class TritonPythonModel:
            def execute(self, requests):
                tensors = [pb_utils.Tensor(n, np.zeros(1, np.float32)) for n in ("B", "A", "X")]
                return [pb_utils.InferenceResponse(tensors) for _ in requests]
        """,
        outputs=("A", "B"),
    )
    async with serving(tmp_path) as engine:
        response = await ask(engine, "two", floats(0))
        assert [output.name for output in response.outputs] == ["B", "A"]
        asked = Asked(engine, "two", floats(0))
        asked.request.output_names = ["A"]
        (response,) = await asked.send().all()
        assert [output.name for output in response.outputs] == ["A"]


async def test_a_response_carries_parameters(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "parameters",
        """
        class TritonPythonModel:
            def execute(self, requests):
                return [
                    pb_utils.InferenceResponse([], parameters={"n": 3, "b": False, "s": "x"})
                    for _ in requests
                ]
        """,
    )
    async with serving(tmp_path) as engine:
        response = await ask(engine, "parameters", floats(0))
        assert response.parameters == {"n": 3, "b": False, "s": "x"}


ERRORS = {
    "raise": "raise ValueError('boom')",
    "number": "return 7",
    "short": "return []",
    "thing": "return ['x'] * len(requests)",
    "closed": """
        for r in requests:
            r.get_response_sender().send(
                pb_utils.InferenceResponse([]), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return [pb_utils.InferenceResponse([]) for _ in requests]""",
    "forget": "return [None]",
}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("raise", "message: ValueError: boom"),
        ("number", "message: Expected a list in the execute return, found type '<class 'int'>'."),
        (
            "short",
            "message: Number of InferenceResponse objects do not match the number of "
            "InferenceRequest objects. InferenceRequest(s) size is:1, and InferenceResponse(s) "
            "size is:0\n",
        ),
        (
            "thing",
            "message: Expected an 'InferenceResponse' object in the execute function return list, "
            "found type '<class 'str'>'.",
        ),
    ],
)
async def test_what_execute_does_wrong_reaches_the_client_without_paths(
    tmp_path: Path, kind: str, expected: str
) -> None:
    source = "class TritonPythonModel:\n    def execute(self, requests):\n        "
    write_model(tmp_path, "wrong", source + ERRORS[kind])
    async with serving(tmp_path) as engine:
        head = "Internal: Failed to process the request(s) for model 'wrong_0_0', "
        assert await error(engine, "wrong", floats(1)) == head + expected
        assert (
            await error(engine, "wrong", floats(1), request_id="r7")
            == head + expected + " [request id: r7]"
        )
        statistics = engine.find("wrong").statistics
        assert statistics.fail.count == 2
        assert statistics.success.count == 0


async def test_a_request_that_a_model_lets_go_of_fails(tmp_path: Path) -> None:
    source = "class TritonPythonModel:\n    def execute(self, requests):\n        "
    write_model(tmp_path, "forget", source + ERRORS["forget"])
    write_model(tmp_path, "closed", source + ERRORS["closed"].strip())
    async with serving(tmp_path) as engine:
        assert "let go of the request without answering it" in await error(
            engine, "forget", floats(1)
        )
        # The client has its answer from the sender; the second one is nobody's.
        assert (await ask(engine, "closed", floats(1))).error is None


async def test_errors_have_the_code_that_the_model_gives_them(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "code",
        """
        class TritonPythonModel:
            def execute(self, requests):
                found = []
                for r in requests:
                    name = r.inputs()[0].as_numpy()[0].decode()
                    code = getattr(pb_utils.TritonError, name)
                    found.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("t", code)))
                return found
        """,
        datatype="TYPE_STRING",
    )
    labels = {
        "UNKNOWN": "Unknown", "INTERNAL": "Internal", "NOT_FOUND": "Not found",
        "INVALID_ARG": "Invalid argument", "UNAVAILABLE": "Unavailable",
        "UNSUPPORTED": "Unsupported", "ALREADY_EXISTS": "Already exists",
        "CANCELLED": "Cancelled",
    }  # fmt: skip
    async with serving(tmp_path) as engine:
        for name, label in labels.items():
            assert await error(engine, "code", texts(name)) == f"{label}: t"


async def test_one_bad_request_leaves_the_others_of_its_batch_alone(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "odd",
        """
        class TritonPythonModel:
            def execute(self, requests):
                found = []
                for r in requests:
                    x = r.inputs()[0].as_numpy()
                    if x[0, 0] % 2:
                        found.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("odd")))
                    else:
                        found.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x)]))
                return found
        """,
        max_batch_size=8,
        extra="dynamic_batching { max_queue_delay_microseconds: 100000 }",
    )
    async with serving(tmp_path) as engine:
        asked = [
            Asked(engine, "odd", tensor("IN", np.array([[n]], np.float32))).send() for n in range(4)
        ]
        answers = [(await one.all())[0] for one in asked]
        assert [a.error is None for a in answers] == [True, False, True, False]


async def test_instances_work_side_by_side(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "meet",
        """
        import os, pathlib

        class TritonPythonModel:
            def initialize(self, args):
                self.folder = pathlib.Path(args["model_repository"])

            def execute(self, requests):
                (self.folder / f"here{os.getpid()}").touch()
                while len(list(self.folder.glob("here*"))) < 2:
                    pass
                out = pb_utils.Tensor("OUT", np.array([os.getpid()], np.float32))
                return [pb_utils.InferenceResponse([out]) for _ in requests]
        """,
        extra="instance_group [ { count: 2 kind: KIND_CPU } ]",
    )
    async with serving(tmp_path) as engine:
        pids = await asyncio.gather(*(value(engine, "meet", floats(0)) for _ in range(2)))
        assert pids[0] != pids[1]


async def test_a_process_that_a_model_forks_leaves_its_connection_alone(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "forks",
        """
        import gc, os

        class TritonPythonModel:
            def execute(self, requests):
                readable, writable = os.pipe()
                pid = os.fork()
                if not pid:
                    # Everything that the batch is made of ends in this process.
                    x = requests[0].inputs()[0]
                    made = pb_utils.InferenceRequest(model_name="forks", inputs=[x],
                                                     requested_output_names=["OUT"])
                    try:
                        made.exec()
                    except Exception as error:
                        os.write(writable, str(error).encode())
                    pb_utils.Logger.log_warn("from the fork")
                    requests.clear()
                    del x, made
                    gc.collect()
                    os._exit(0)
                os.waitpid(pid, 0)
                reason = os.read(readable, 1000).decode()
                assert "forked" in reason, reason
                return [pb_utils.InferenceResponse([
                    pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
        """,
    )
    data = np.arange(1 << 20, dtype=np.float32)
    async with serving(tmp_path) as engine:
        for _ in range(3):
            response = await ask(engine, "forks", tensor("IN", data))
            assert response.error is None, response.error
            assert np.array_equal(response.outputs[0].data, data)
