"""Instances of groups with a host policy run on its cores, with all that they start."""

import os
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from tests.integration.engine.test_instance_updates import set_groups
from tests.support.python_models import error, floats, serving, value, write_model
from tests.support.repository_builder import RepositoryBuilder, add_model
from tests.support.requests import tensor

from naiad.backends.cores import kept_to
from naiad.engine.engine import ModelControlMode
from naiad.errors import InternalError

ALL = frozenset(os.sched_getaffinity(0))
FIRST, LAST = frozenset({min(ALL)}), frozenset({max(ALL)})
POLICIES = {"first": FIRST, "last": LAST}
ROW = tensor("IN", np.array([[1]], np.float32))

pytestmark = pytest.mark.skipif(len(ALL) < 2, reason="one core is like the other")

# Two threads of a pool beside the one that asks, wherever it runs.
_ONNX = """
name: "m" backend: "onnxruntime" max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
parameters { key: "intra_op_thread_count" value { string_value: "3" } }
"""
# What each thread of the process may use; a request below zero ends it.
_CORES = """
import os

class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        if request.inputs()[0].as_numpy()[0] < 0:
            os._exit(3)
        threads = map(int, os.listdir("/proc/self/task"))
        cores = set().union(*map(os.sched_getaffinity, threads))
        out = pb_utils.Tensor("OUT", np.array(sorted(cores), np.float32))
        return [pb_utils.InferenceResponse([out])]
"""


def groups(*policies: str) -> list[str]:
    return [
        "count: 1 kind: KIND_CPU" + (f' host_policy: "{policy}"' if policy else "")
        for policy in policies
    ]


def add_onnx(path: Path, *policies: str) -> Path:
    folder = RepositoryBuilder(path).add_onnx("m", add_model(1), _ONNX)
    set_groups(folder, *groups(*policies))
    return folder


class Started:
    """The threads that were not there when this was made; other tests may have left some."""

    def __init__(self) -> None:
        self._threads = set(threading.enumerate())
        self._numbers = set(_list_threads())

    def instances(self) -> dict[str, frozenset[int]]:
        """The cores of those that run the instances of model ``m``, by name."""
        return {
            thread.name: frozenset(os.sched_getaffinity(thread.native_id))
            for thread in threading.enumerate()
            if thread not in self._threads
            and thread.native_id is not None
            and thread.name.startswith("m_")
        }

    def pools(self) -> Counter[frozenset[int]]:
        """How many that are not Python's run on which cores."""
        own = {thread.native_id for thread in threading.enumerate()}
        found: Counter[frozenset[int]] = Counter()
        for number in set(_list_threads()) - self._numbers - own:
            with suppress(ProcessLookupError):
                found[frozenset(os.sched_getaffinity(number))] += 1
        return found


def _list_threads() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/task")]


async def test_each_group_of_an_onnx_model_has_threads_on_its_own_cores(tmp_path: Path) -> None:
    add_onnx(tmp_path, "first", "last", "")
    started = Started()
    async with serving(tmp_path, policy_cores=POLICIES) as engine:
        assert started.instances() == {"m_0": FIRST, "m_1": LAST, "m_2": ALL}
        # A session for each, and none of their threads anywhere else.
        pools = started.pools()
        assert (pools[FIRST], pools[LAST]) == (2, 2)
        assert frozenset(os.sched_getaffinity(0)) == ALL
        assert await value(engine, "m", ROW) == [2]


async def test_a_group_that_names_no_policy_has_that_of_its_kind(tmp_path: Path) -> None:
    add_onnx(tmp_path, "", "first")
    started = Started()
    async with serving(tmp_path, policy_cores={"cpu": LAST, "first": FIRST}):
        assert started.instances() == {"m_0": LAST, "m_1": FIRST}


async def test_instances_move_with_a_change_of_their_policy(tmp_path: Path) -> None:
    folder = add_onnx(tmp_path, "first")
    async with serving(tmp_path, ModelControlMode.EXPLICIT, policy_cores=POLICIES) as engine:
        await engine.load_model("m", None, {})
        started = Started()
        set_groups(folder, *groups("last"))
        await engine.load_model("m", None, {})
        assert started.instances() == {"m_1": LAST}
        assert started.pools()[LAST] == 2
        assert await value(engine, "m", ROW) == [2]


async def test_a_policy_that_nobody_says_the_cores_of_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add_onnx(tmp_path, "third", "first")
    started = Started()
    async with serving(tmp_path, policy_cores=POLICIES):
        assert started.instances() == {"m_0": ALL, "m_1": FIRST}
    assert "model 'm': host_policy 'third' has no effect, as no --host-policy says" in caplog.text
    assert "'first'" not in caplog.text


@pytest.mark.slow
async def test_the_process_of_a_python_model_has_the_cores_also_when_it_comes_back(
    tmp_path: Path,
) -> None:
    extra = "".join(f"instance_group {{ {text} }}\n" for text in groups("last"))
    write_model(tmp_path, "m", _CORES, extra=extra)
    async with serving(tmp_path, policy_cores=POLICIES) as engine:
        assert await value(engine, "m", floats(0)) == sorted(LAST)
        assert "exit code 3" in await error(engine, "m", floats(-1))
        assert await value(engine, "m", floats(0)) == sorted(LAST)


async def test_cores_that_are_not_there_any_more_are_an_error() -> None:
    missing = frozenset({max(ALL) + 1000})
    text = f"can't run on the cores {max(missing)} of its host policy"
    with pytest.raises(InternalError, match=text), kept_to(missing):
        pytest.fail("it runs")
    assert frozenset(os.sched_getaffinity(0)) == ALL
