"""One process that runs a model: how it starts, what it says, and why it ended."""

import contextlib
import logging
import os
import queue
import select
import signal
import socket
import subprocess
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol

from naiad.backends.python.environment import Environment
from naiad.backends.python.errors import error_from_wire
from naiad.backends.python.stub.naiad_stub import wire
from naiad.backends.python.stub.naiad_stub.channel import Channel, ChannelClosedError, Frame
from naiad.backends.python.stub.naiad_stub.process import PROTOCOL
from naiad.backends.python.stub.naiad_stub.region import create_region
from naiad.errors import InternalError

_log = logging.getLogger(__name__)

_PROGRAM: Final = Path(__file__).parent / "stub" / "naiad_model_process.py"
# Of what a process last wrote, for the reason of its end.
_LAST_LINES: Final = 10
_LINE_BYTES: Final = 4096
# Between the end of the connection and that of the process.
_END_TIMEOUT_S: Final = 5.0
_LEVELS: Final = (logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """How a process is made.

    Attributes:
        name: of the instance, for the log.
        environment: whose interpreter runs it.
        region_bytes: limit of each of the two regions.
        start_timeout_s: until it speaks.
    """

    name: str
    environment: Environment
    region_bytes: int
    start_timeout_s: float


class ProcessListener(Protocol):
    """Who hears what a process says. All of it is called by the thread that reads."""

    def on_frame(self, process: "ModelProcess", frame: Frame) -> None:
        """A frame that is not about the start, the end or the log."""
        ...

    def on_end(self, process: "ModelProcess") -> None:
        """The process is gone; nothing follows."""
        ...


class ModelProcess:
    """A running process.

    Args:
        options: how it is made.
        listener: hears what it says.

    Attributes:
        channel: to it.
        ended: set once it is gone and the listener knows.
        kill_reason: why the server has ended it; empty where it has not.

    Raises:
        InternalError: it can't be started, or doesn't speak.
    """

    def __init__(self, options: ProcessOptions, listener: ProcessListener) -> None:
        self._options = options
        self._listener = listener
        self._replies: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self.kill_reason = ""
        self.ended = threading.Event()
        self.channel, self._process = self._spawn()
        name = options.name
        self._printer = threading.Thread(
            target=self._print_lines, args=(self._process.stdout,), name=f"{name}-log", daemon=True
        )
        self._printer.start()
        threading.Thread(target=self._receive, name=f"{name}-reader", daemon=True).start()
        threading.Thread(target=self._hang_up_at_exit, name=f"{name}-exit", daemon=True).start()
        hello = self._wait_for_reply(options.start_timeout_s, "did not start")
        if hello.kind != wire.HELLO or hello.key != PROTOCOL:
            self.kill("it speaks another protocol")
            raise InternalError(f"Stub process '{options.name}' speaks another protocol")

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def ask(self, kind: int, text: str, timeout_s: float | None) -> str:
        """Let it do something that it does before or after all requests.

        Args:
            kind: of the frame.
            text: goes with it.
            timeout_s: None waits as long as it takes.

        Returns:
            What it answers.

        Raises:
            InternalError: it ended, or took too long.
            NaiadError: it failed, with the text and kind of its failure.
        """
        writer = self.channel.writer()
        writer.text(text)
        with contextlib.suppress(ChannelClosedError):  # the reply says why
            self.channel.send(kind, 0, writer.payload())
        frame = self._wait_for_reply(timeout_s, "was not done in time")
        reader = self.channel.reader(frame)
        answer = reader.text()
        if frame.kind == wire.FAILED:
            details = reader.text()
            if details:
                _log.error("%s: %s", self._options.name, details)
            raise error_from_wire(wire.WireError(frame.flags, answer))
        return answer

    def kill(self, reason: str) -> None:
        """End it now; the listener hears of it."""
        self.kill_reason = self.kill_reason or reason
        self._process.kill()

    def has_ended(self) -> bool:
        """Whether it is gone."""
        return self._process.poll() is not None

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended; False where it hasn't."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def cause(self) -> str:
        """Why it ended, once it has: for clients, without what it wrote."""
        if self.kill_reason:
            return self.kill_reason
        code = self._process.returncode
        if code is None:
            return "it closed its connection"
        if code >= 0:
            return f"it ended with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = "unknown"
        hint = "; out of memory looks like this" if -code == signal.SIGKILL else ""
        return f"it was ended by signal {-code} ({name}){hint}"

    def last_lines(self) -> str:
        """The last lines that it wrote, for whoever runs the server."""
        return "\n".join(self._lines)

    def _spawn(self) -> tuple[Channel, "subprocess.Popen[bytes]"]:
        options = self._options
        ours, theirs = socket.socketpair()
        regions = [create_region(), create_region()]
        descriptors = [theirs.fileno(), *reversed(regions)]
        command = [
            *options.environment.command(),
            "-u",
            str(_PROGRAM),
            *map(str, descriptors),
            str(options.region_bytes),
            str(options.environment.folder or ""),
        ]
        try:
            process = subprocess.Popen(  # noqa: S603 - the interpreter that the config names
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,
                pass_fds=[descriptor for descriptor in descriptors if descriptor >= 0],
            )
        except OSError as error:
            ours.close()
            _close_all(regions)
            raise InternalError(
                f"Failed to start the process of model instance '{options.name}' with "
                f"'{options.environment.interpreter}': {error.strerror}"
            ) from error
        finally:
            theirs.close()
        return Channel(ours, regions[0], regions[1], options.region_bytes), process

    def _wait_for_reply(self, timeout_s: float | None, failure: str) -> Frame:
        name = self._options.name
        try:
            frame = self._replies.get(timeout=timeout_s)
        except queue.Empty:
            self.kill(f"it {failure} ({timeout_s:g} s)")
            raise InternalError(
                f"Stub process '{name}' {failure}: the limit is {timeout_s:g} s"
            ) from None
        if frame is None:
            raise InternalError(self.describe_end())
        return frame

    def describe_end(self) -> str:
        """The reason for whoever runs the server."""
        cause = self.cause()
        text = f"Stub process '{self._options.name}' is not healthy. {cause[:1].upper()}{cause[1:]}"
        lines = self.last_lines()
        return f"{text}. It last wrote:\n{lines}" if lines else text

    def _receive(self) -> None:
        channel, listener = self.channel, self._listener
        try:
            while True:
                frame = channel.receive()
                if frame.kind in {wire.HELLO, wire.DONE, wire.FAILED}:
                    self._replies.put(frame)
                elif frame.kind == wire.LOG:
                    level = _LEVELS[frame.flags] if frame.flags < len(_LEVELS) else logging.INFO
                    _log.log(level, "%s", channel.reader(frame).text())
                else:
                    listener.on_frame(self, frame)
                del frame
        except ChannelClosedError:
            pass
        except Exception:  # noqa: BLE001 - the thread must see to the end of the process
            # Whatever it sent, nothing after it can be understood.
            _log.exception("%s: the process sent what can't be read", self._options.name)
            self.kill("it sent what can't be read")
        self._end()

    def _hang_up_at_exit(self) -> None:
        """End what the model has forked with it, and see to it that the reader notices the end.

        A process that moved to a group or session of its own lives on, and may have the other end
        of the connection, which is not closed before both are gone.
        """
        try:
            exit_notice = os.pidfd_open(self.pid)
        except OSError:  # it is gone, and known to be
            return
        try:
            select.select([exit_notice], (), ())
            # Its number is that of its group as long as anybody is left in there.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        finally:
            os.close(exit_notice)
        self.channel.hang_up()

    def _end(self) -> None:
        if not self.wait(_END_TIMEOUT_S):
            self.kill("it closed its connection and went on")
            self._process.wait()
        # What it wrote last is read by now, unless a process that it started has kept the pipe.
        self._printer.join(1.0)
        self._replies.put(None)
        self.channel.close()
        self._listener.on_end(self)
        self.ended.set()

    def _print_lines(self, stream: IO[bytes]) -> None:
        name = self._options.name
        with stream:
            while line := stream.readline(_LINE_BYTES):
                text = line.decode(errors="replace").rstrip()
                if text:
                    self._lines.append(text)
                    _log.info("%s: %s", name, text)


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        if descriptor >= 0:
            os.close(descriptor)
