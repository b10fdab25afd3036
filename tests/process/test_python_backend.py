"""Python models behind the installed command: protocols, and what is left when the server ends."""

import json
import os
import signal
import threading
from pathlib import Path

import pytest
from tests.support.processes import children, has_ended
from tests.support.python_models import write_model
from tests.support.served_repository import Server, running_server

pytestmark = pytest.mark.slow

# A generator of text: as many words as it is asked for, each when it is there.
WORDS = """
import os, time

class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            sender = r.get_response_sender()
            n = int(r.inputs()[0].as_numpy()[0])
            if n == 99:
                open(os.path.join(pb_utils.get_model_dir(), "hanging"), "w").close()
                time.sleep(3600)
            for i in range(n):
                out = pb_utils.Tensor("OUT", np.array([f"word{i} {os.getpid()}"], np.object_))
                sender.send(pb_utils.InferenceResponse([out]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def has_named_memory(pid: int) -> bool:
    """Whether a process has memory in use that would stay when nobody has it any more."""
    return " /dev/shm/" in Path(f"/proc/{pid}/maps").read_text()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write_model(
        tmp_path,
        "words",
        WORDS,
        extra="model_transaction_policy { decoupled: true }\n"
        "instance_group [ { count: 2 kind: KIND_CPU } ]",
        datatype="TYPE_INT32",
        output_datatype="TYPE_STRING",
    )
    return tmp_path


def test_words_come_as_events(repository: Path) -> None:
    with running_server(repository) as server:
        events = server.post("/v2/models/words/generate_stream", {"IN": 3}).split("\n\n")
        words = [json.loads(event.removeprefix("data: "))["OUT"] for event in events if event]
        assert [word.split()[0] for word in words] == ["word0", "word1", "word2"]
        answer = json.loads(server.post("/v2/models/words/generate", {"IN": 1}))
        assert answer["OUT"].startswith("word0")
        assert 'nv_inference_request_success{model="words",version="1"} 2' in server.get(
            "/metrics", "Metrics Service"
        )
        assert server.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_and_no_memory_is_left_when_the_server_ends(
    repository: Path, number: signal.Signals
) -> None:
    with running_server(repository) as server:
        server.post("/v2/models/words/generate_stream", {"IN": 3})
        pids = children(server.pid)
        assert not any(map(has_named_memory, (server.pid, *pids)))
        processes = [os.pidfd_open(pid) for pid in pids]
        assert len(processes) == 2
        server.stop(number)
        assert all(map(has_ended, processes))
        for descriptor in processes:
            os.close(descriptor)


def test_a_signal_to_all_processes_lets_models_clean_up(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "m",
        """
        import os

        class TritonPythonModel:
            def execute(self, requests):
                return [pb_utils.InferenceResponse([]) for _ in requests]

            def finalize(self):
                open(os.path.join(pb_utils.get_model_dir(), "clean"), "w").close()
        """,
    )
    with running_server(tmp_path) as server:
        # As systemd stops a service.
        for pid in children(server.pid):
            os.kill(pid, signal.SIGTERM)
        assert server.stop() == 0
    assert (tmp_path / "m" / "1" / "clean").exists()


def test_a_process_in_the_middle_of_execute_ends_with_the_server(repository: Path) -> None:
    with running_server(repository) as server:
        thread = threading.Thread(target=_ask_in_vain, args=(server,))
        thread.start()
        # The model says when it is in there.
        mark = repository / "words" / "1" / "hanging"
        while not mark.exists():
            assert server.is_running()
        processes = [os.pidfd_open(pid) for pid in children(server.pid)]
        server.stop(signal.SIGKILL)
        assert all(map(has_ended, processes))
        for descriptor in processes:
            os.close(descriptor)
        thread.join()


FORKING = """
import os, signal, subprocess, time

class TritonPythonModel:
    def initialize(self, args):
        if (forked := os.fork()) == 0:
            time.sleep(3600)
        started = subprocess.Popen(["sleep", "3600"])
        with open(os.path.join(pb_utils.get_model_dir(), "pids"), "w") as file:
            print(forked, started.pid, file=file)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_model_has_forked_ends_with_the_server(
    tmp_path: Path, number: signal.Signals
) -> None:
    write_model(tmp_path, "m", FORKING)
    with running_server(tmp_path) as server:
        pids = [int(pid) for pid in (tmp_path / "m" / "1" / "pids").read_text().split()]
        assert len(pids) == 2
        processes = [os.pidfd_open(pid) for pid in pids]
        server.stop(number)
        assert all(map(has_ended, processes))
        for descriptor in processes:
            os.close(descriptor)


def _ask_in_vain(server: Server) -> None:
    with pytest.raises(OSError):  # noqa: PT011 - the connection breaks, whatever its error
        server.post("/v2/models/words/generate_stream", {"IN": 99})
