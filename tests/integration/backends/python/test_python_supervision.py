"""Processes that die, hang or do not start: who hears of it, and how the model comes back."""

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest
from tests.support.processes import is_running, wait_for_end
from tests.support.python_models import (
    TIMEOUT_S,
    Asked,
    ask,
    error,
    floats,
    serving,
    texts,
    value,
    write_model,
)

from naiad.engine.engine import Engine, ModelControlMode
from naiad.inference.states import ModelState

pytestmark = pytest.mark.slow

# Does what the request says.
OBEDIENT = """
import os, signal, sys, time

class TritonPythonModel:
    def execute(self, requests):
        found = []
        for r in requests:
            order = r.inputs()[0].as_numpy()[0].decode()
            if order == "exit":
                print("last words", flush=True)
                os._exit(3)
            if order == "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            if order == "hang":
                time.sleep(3600)
            if order in {"fork", "daemon"}:
                is_set, sets = os.pipe()
                if (forked := os.fork()) == 0:
                    if order == "daemon":
                        os.setsid()
                    os.write(sets, b"1")
                    time.sleep(3600)
                # What ends with this process is its group; the daemon has left that by now.
                os.read(is_set, 1)
                print("forked", forked, flush=True)
                os._exit(5)
            if order == "sys.exit":
                sys.exit(4)
            out = np.array([str(os.getpid())], np.object_)
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
        return found
"""


# A process that starts while the gate is there, waits until somebody opens and closes it.
HELD_UP = """
if os.path.exists({gate!r}):
    with open({gate!r}) as gate:
        gate.read()
"""


def write_obedient(path: Path, name: str = "m", extra: str = "") -> None:
    write_model(path, name, OBEDIENT, datatype="TYPE_STRING", extra=extra)


async def pid(engine: Engine, name: str = "m") -> int:
    return int((await value(engine, name, texts("pid")))[0])


@pytest.mark.parametrize(
    ("order", "cause"),
    [
        ("exit", "It ended with exit code 3"),
        ("segfault", "It was ended by signal 11 (SIGSEGV)"),
        ("fork", "It ended with exit code 5"),
        # What it has forked lives on, and has the connection.
        ("daemon", "It ended with exit code 5"),
    ],
)
async def test_the_end_of_a_process_fails_its_requests_and_another_takes_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, order: str, cause: str
) -> None:
    write_obedient(tmp_path)
    async with serving(tmp_path) as engine:
        first = await pid(engine)
        text = await error(engine, "m", texts(order))
        assert text == f"Internal: Stub process 'm_0_0' is not healthy. {cause}"
        # It waits until the new process is there.
        assert await pid(engine) != first
        assert engine.is_model_ready("m")
    if order == "exit":
        assert "It last wrote:\nlast words" in caplog.text
    if order in {"fork", "daemon"}:
        (number,) = set(re.findall(r"forked (\d+)", caplog.text))
        if order == "daemon":
            assert is_running(int(number))
            os.kill(int(number), signal.SIGKILL)
        assert wait_for_end(int(number))


async def test_sys_exit_is_an_error_like_any_other(tmp_path: Path) -> None:
    write_obedient(tmp_path)
    async with serving(tmp_path) as engine:
        first = await pid(engine)
        assert (await error(engine, "m", texts("sys.exit"))).endswith("message: SystemExit: 4")
        assert await pid(engine) == first


@pytest.mark.parametrize("kills", [5, pytest.param(20, marks=pytest.mark.full)])
async def test_requests_survive_kill_9_again_and_again(tmp_path: Path, kills: int) -> None:
    write_obedient(tmp_path, extra="instance_group [ { count: 2 kind: KIND_CPU } ]")
    write_obedient(tmp_path, "other")
    async with serving(tmp_path) as engine:
        failures = answers = 0

        async def load() -> None:
            nonlocal failures, answers
            while not is_over.is_set():
                response = await ask(engine, "m", texts("pid"))
                answers += 1
                if response.error is not None:
                    failures += 1
                    assert "is not healthy" in response.error.message
                assert (await ask(engine, "other", texts("pid"))).error is None

        is_over = asyncio.Event()
        clients = [asyncio.create_task(load()) for _ in range(4)]
        killed: set[int] = set()
        while len(killed) < kills:
            victim = await ask(engine, "m", texts("pid"))
            if victim.error is None:
                number = int(victim.outputs[0].data[0])
                if number not in killed:
                    killed.add(number)
                    os.kill(number, signal.SIGKILL)
        is_over.set()
        await asyncio.wait_for(asyncio.gather(*clients), TIMEOUT_S)
        assert answers > failures
        # The last one killed may be given a request before its end is known.
        async with asyncio.timeout(TIMEOUT_S):
            while (answer := await ask(engine, "m", texts("pid"))).error is not None:
                pass
        assert int(answer.outputs[0].data[0]) not in killed
        assert engine.find("m").statistics.pending_count == 0


HOSTILE = """
import os, struct, time

class TritonPythonModel:
    def execute(self, requests):
        from naiad_stub.host import binding
        order = requests[0].inputs()[0].as_numpy()[0].decode()
        channel = binding.get()._channel
        if order == "frame":
            channel._socket.sendall(struct.pack("<IHHQ", 0xFFFFFFFF, 24, 0, 1))
        elif order == "noise":
            channel._socket.sendall(os.urandom(4096))
        elif order != "pid":
            channel.send(int(order), 1, os.urandom(64))
        if order != "pid":
            time.sleep(3600)
        out = pb_utils.Tensor("OUT", np.array([str(os.getpid())], np.object_))
        return [pb_utils.InferenceResponse([out])]
"""


# By number: EXECUTED, RESPONSE, LOG, INFER, CALL, TELL.
@pytest.mark.parametrize(
    "order",
    [
        "frame",
        "26",
        *(pytest.param(o, marks=pytest.mark.full) for o in ("noise", "23", "24", "25", "28", "29")),
    ],
)
async def test_a_process_that_sends_noise_is_ended_and_the_server_is_not(
    tmp_path: Path, order: str
) -> None:
    write_model(
        tmp_path,
        "m",
        HOSTILE,
        datatype="TYPE_STRING",
        extra='parameters { key: "EXECUTE_TIMEOUT_MS" value { string_value: "3000" } }\n',
    )
    write_obedient(tmp_path, "other")
    async with serving(tmp_path) as engine:
        assert "is not healthy" in await error(engine, "m", texts(order))
        assert await pid(engine, "other")
        # It waits for the process that takes over.
        assert await pid(engine)


async def test_a_model_is_unready_while_none_of_its_processes_lives(tmp_path: Path) -> None:
    write_obedient(tmp_path)
    gate = tmp_path / "gate"
    with (tmp_path / "m" / "1" / "model.py").open("a") as file:
        file.write(HELD_UP.format(gate=str(gate)))
    async with serving(tmp_path) as engine:
        number = await pid(engine)
        os.mkfifo(gate)
        asked = Asked(engine, "m", texts("hang")).send()
        os.kill(number, signal.SIGKILL)
        await asked.all()
        assert not engine.is_model_ready("m")
        assert not engine.is_ready()
        (line,) = await engine.index(ready_only=False)
        assert line.state is ModelState.UNAVAILABLE
        assert "signal 9 (SIGKILL)" in line.reason
        await asyncio.to_thread(gate.write_bytes, b"")
        await pid(engine)
        assert engine.is_model_ready("m")
        assert engine.is_ready()


async def test_a_hanging_execute_is_stopped_in_its_time(tmp_path: Path) -> None:
    write_obedient(
        tmp_path,
        extra='parameters { key: "EXECUTE_TIMEOUT_MS" value { string_value: "3000" } }',
    )
    async with serving(tmp_path) as engine:
        first = await pid(engine)
        text = await error(engine, "m", texts("hang"))
        assert "did not return within EXECUTE_TIMEOUT_MS (3 s)" in text
        assert await pid(engine) != first


async def test_an_instance_is_given_up_after_so_many_starts(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "m",
        """
        import os, pathlib

        class TritonPythonModel:
            def initialize(self, args):
                mark = pathlib.Path(args["model_repository"], "mark")
                if mark.exists():
                    raise ValueError("only once")
                mark.touch()

            def execute(self, requests):
                os._exit(9)
        """,
        extra='parameters { key: "RESTART_LIMIT" value { string_value: "2" } }',
    )
    async with serving(tmp_path, ModelControlMode.EXPLICIT) as engine:
        await engine.load_model("m", None, {})
        asked = [Asked(engine, "m", floats(1)).send() for _ in range(3)]
        for one in asked:
            (response,) = await one.all()
            assert response.error is not None
        # The first one was in the process; the others have waited for the next, in vain.
        assert "exit code 9" in str(asked[0].responses[0].error)
        assert "none of its instances lives" in str(asked[2].responses[0].error)
        with pytest.raises(Exception, match="none of its instances lives"):
            Asked(engine, "m", floats(1)).send()
        assert not engine.is_model_ready("m")
        (line,) = await engine.index(ready_only=False)
        assert line.state is ModelState.UNAVAILABLE
        assert line.reason == "given up after 2 starts: ValueError: only once"
        # A load starts anew, though nothing has changed on disk.
        (tmp_path / "m" / "mark").unlink()
        await engine.load_model("m", None, {})
        assert engine.is_model_ready("m")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import nothing_of_that_name", "No module named 'nothing_of_that_name'"),
        ("x = (", "SyntaxError"),
        ("x = 1", "defines no class 'TritonPythonModel'"),
        (
            "class TritonPythonModel:\n    def initialize(self, args): raise KeyError('a')",
            "KeyError: 'a'",
        ),
        ("import os\nprint('oh no', flush=True)\nos._exit(5)", "It last wrote:\noh no"),
    ],
)
async def test_what_fails_at_load_is_the_reason_of_the_index(
    tmp_path: Path, source: str, reason: str
) -> None:
    write_model(tmp_path, "m", source)
    async with serving(tmp_path, ModelControlMode.EXPLICIT) as engine:
        with pytest.raises(Exception, match="load failed for model 'm'"):
            await engine.load_model("m", None, {})
        (line,) = await engine.index(ready_only=False)
        assert line.state is ModelState.UNAVAILABLE
        assert reason in line.reason


async def test_a_missing_model_file_is_said_at_once(tmp_path: Path) -> None:
    write_obedient(tmp_path)
    (tmp_path / "m" / "1" / "model.py").unlink()
    async with serving(tmp_path, ModelControlMode.EXPLICIT) as engine:
        with pytest.raises(Exception, match="Python model file not found in"):
            await engine.load_model("m", None, {})


async def test_a_name_that_a_shell_would_read_is_refused(tmp_path: Path) -> None:
    write_obedient(tmp_path, name="a$b")
    async with serving(tmp_path, ModelControlMode.EXPLICIT) as engine:
        with pytest.raises(Exception, match="Invalid stub name: contains invalid characters"):
            await engine.load_model("a$b", None, {})


async def test_an_initialize_that_hangs_is_stopped_in_its_time(tmp_path: Path) -> None:
    source = "import time\nclass TritonPythonModel:\n    def initialize(self, args):\n"
    write_model(
        tmp_path,
        "m",
        source + "        time.sleep(3600)",
        extra='parameters { key: "INITIALIZE_TIMEOUT_MS" value { string_value: "300" } }',
    )
    async with serving(tmp_path, ModelControlMode.EXPLICIT) as engine:
        with pytest.raises(Exception, match=r"was not done in time: the limit is 0\.3 s"):
            await engine.load_model("m", None, {})


@pytest.mark.parametrize(
    ("environment", "reason"),
    [("nowhere", "there is no '"), ("empty", "has no interpreter"), ("broken", "exit code 1")],
)
async def test_a_broken_environment_is_said(tmp_path: Path, environment: str, reason: str) -> None:
    repository = tmp_path / "repository"
    folder = tmp_path / environment
    if environment != "nowhere":
        (folder / "bin").mkdir(parents=True)
    if environment == "broken":
        interpreter = folder / "bin" / "python"
        interpreter.write_text("#!/bin/sh\nexit 1\n")
        interpreter.chmod(0o755)
    write_obedient(
        repository,
        extra=f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{folder}" }} }}',
    )
    settings = {"execution-env-directory": str(tmp_path)}
    async with serving(repository, ModelControlMode.EXPLICIT, settings=settings) as engine:
        with pytest.raises(Exception, match=reason):
            await engine.load_model("m", None, {})


async def test_an_environment_of_anywhere_does_not_run(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    mark = tmp_path / "was-run"
    interpreter = tmp_path / "environment" / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    interpreter.write_text(f"#!/bin/sh\ntouch {mark}\n")
    interpreter.chmod(0o755)
    path = tmp_path / "environment"
    write_obedient(
        repository,
        extra=f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{path}" }} }}',
    )
    for completes in (False, True):
        async with serving(repository, ModelControlMode.EXPLICIT, completes=completes) as engine:
            with pytest.raises(Exception, match=r"python,execution-env-directory=DIR"):
                await engine.load_model("m", None, {})
    assert not mark.exists()


async def test_a_model_says_itself_whether_it_is_ready(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "m",
        """
        class TritonPythonModel:
            warm = False

            def is_ready(self):
                return self.warm

            def execute(self, requests):
                TritonPythonModel.warm = True
                return [pb_utils.InferenceResponse([]) for _ in requests]
        """,
    )
    async with serving(tmp_path) as engine:
        assert not engine.is_model_ready("m")
        (line,) = await engine.index(ready_only=False)
        assert line.reason == "is_ready() of the model says no"
        # It serves all the same, and is asked again each second.
        assert (await ask(engine, "m", floats(1))).error is None
        async with asyncio.timeout(TIMEOUT_S):
            while not engine.is_model_ready("m"):
                assert (await ask(engine, "m", floats(1))).error is None


async def test_a_model_that_has_used_up_its_memory_fails_and_goes_on(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "m",
        """
        import resource

        class TritonPythonModel:
            def initialize(self, args):
                resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))

            def execute(self, requests):
                leak = []
                while requests[0].inputs()[0].as_numpy()[0]:
                    leak.append(bytearray(64 << 20))
                out = pb_utils.Tensor("OUT", np.ones(1, np.float32))
                return [pb_utils.InferenceResponse([out])]
        """,
    )
    async with serving(tmp_path) as engine:
        assert (await error(engine, "m", floats(1))).endswith("message: MemoryError: ")
        assert await value(engine, "m", floats(0)) == [1]


async def test_unload_lets_the_model_clean_up_and_ends_its_process(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "m",
        """
        import os, pathlib

        class TritonPythonModel:
            def initialize(self, args):
                self.path = pathlib.Path(args["model_repository"], "finalized")

            def execute(self, requests):
                out = pb_utils.Tensor("OUT", np.array([os.getpid()], np.float32))
                return [pb_utils.InferenceResponse([out]) for _ in requests]

            def finalize(self):
                self.path.touch()
        """,
    )
    async with serving(tmp_path, ModelControlMode.EXPLICIT) as engine:
        await engine.load_model("m", None, {})
        number = int((await value(engine, "m", floats(0)))[0])
        await engine.unload_model("m", unload_dependents=False)
    assert (tmp_path / "m" / "finalized").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)
