"""Compares Naiad with the recorded answers of a real Triton, session by session.

``make conformance`` runs all of it. Each case ends in one of four ways:

* equal: Naiad answered as Triton did;
* deliberate: it answered otherwise, and ``differences.json`` describes that kind and says why;
* pending: it answered otherwise because of work that has an issue, named in ``pending.json``, or
  the case asks a model that this server cannot load yet and was started without;
* different: a fault.

The run fails when a case is different, and when an entry of one of the lists has become stale: a
deliberate kind that no case needed, or a pending case that is equal by now.
"""

import argparse
import base64
import contextlib
import fcntl
import importlib.util
import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

HERE = Path(__file__).parent
RECORDED = HERE / "recorded"
DIFFERENCES = HERE / "differences.json"
PENDING = HERE / "pending.json"
PAGE = HERE.parents[1] / "docs" / "reference" / "differences.md"
SERVE = (
    f"{shlex.quote(sys.executable)} -m naiad serve --model-repository={{repository}}"
    " --http-port={http} --grpc-port={grpc} --metrics-port={metrics}"
    " --allow-client-shm=true --allow-file-override=true {args}"
)

Case = Mapping[str, Any]
Answer = dict[str, Any]
Verdict = Literal["equal", "deliberate", "pending", "different"]
Protocol = Literal["http", "grpc"]


def _load_replay() -> Any:
    """The corpus's own runner; it is a script of the record, not a module of this package."""
    spec = importlib.util.spec_from_file_location("recorded_replay", RECORDED / "replay.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


replay = _load_replay()


# ---------------------------------------------------------------------------- what is asked for


@dataclass(frozen=True, slots=True)
class Selection:
    """Which cases run, and against what.

    Attributes:
        sessions: names, or empty for all of them.
        only: regex that a case's id must contain.
        is_stateless_only: leave out cases that depend on the ones before.
        protocols: a session's cases of one protocol share a fresh server.
        url: ``http://host:port`` of a server that is up already, instead of starting one.
        grpc_address: ``host:port``, with ``url``.
        command: template that starts a server for a session.
    """

    sessions: tuple[str, ...] = ()
    only: str = ""
    is_stateless_only: bool = False
    protocols: tuple[Protocol, ...] = ("http",)
    url: str = ""
    grpc_address: str = "127.0.0.1:8001"
    command: str = SERVE

    def is_whole(self) -> bool:
        """Whether every case of the corpus runs, so that unused entries are stale."""
        is_part = self.sessions or self.only or self.is_stateless_only or self.url
        return not is_part and set(self.protocols) == set(get_args(Protocol))

    def cases(self, session: str, protocol: Protocol) -> list[Case]:
        """The cases of a session in the order that they were recorded in."""
        return [
            case
            for case in replay.load(f"{protocol}_cases.jsonl")
            if case["session"] == session
            and re.search(self.only, case["id"])
            and not (self.is_stateless_only and case["stateful"])
        ]


# -------------------------------------------------------------------------------- what came out


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one case ended; ``detail`` says what differs or why that is all right."""

    case: Case
    verdict: Verdict
    detail: str = ""


@dataclass(slots=True)
class Report:
    """What a run found.

    Attributes:
        outcomes: one for each case, in order.
        left_out: reason by ``session/model`` of the models that the server was started without.
        stale: entries of the two lists that should go.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    stale: list[str] = field(default_factory=list)

    def different(self) -> list[Outcome]:
        """The faults."""
        return [outcome for outcome in self.outcomes if outcome.verdict == "different"]

    def is_clean(self) -> bool:
        """Whether nothing is different and nothing is stale."""
        return not self.different() and not self.stale

    def summary(self, session: str = "") -> str:
        """Counts of one session, or of all."""
        counts = Counter(
            outcome.verdict
            for outcome in self.outcomes
            if not session or outcome.case["session"] == session
        )
        parts = [
            f"{counts[verdict]} {verdict}"
            for verdict in ("equal", "deliberate", "pending", "different")
        ]
        return f"{counts.total()} cases: {', '.join(parts)}"


# ------------------------------------------------------------------------------------ the lists


class DeliberateKinds:
    """``differences.json``: kinds of answers in which Naiad differs on purpose.

    An entry is as ``replay.py --help`` says and may be stricter than the replay checks it:
    ``begins`` says that Naiad's error text begins with the recorded one, ``alike`` is a regex, and
    both answers are the same once its matches are struck out of them. ``timed`` says that the
    difference shows only where something else was over in time, so that the entry is never stale.
    """

    def __init__(self, entries: Sequence[Mapping[str, Any]]) -> None:
        self._entries = entries
        self._used: set[int] = set()

    def why(self, case: Case, got: Answer) -> str | None:
        """The reason of the kind that this difference is of, or None."""
        for index, entry in enumerate(self._entries):
            if replay.listed([entry], case, got) is None:
                continue
            if _is_as_close_as(entry, case["response"], got):
                self._used.add(index)
                return f"{entry['reason']}: {entry['why']}"
        return None

    def unused(self) -> list[str]:
        """What no case needed so far."""
        return [
            f"differences.json, entry {index} ({entry['kind']}): no case needed it"
            for index, entry in enumerate(self._entries)
            if index not in self._used and not entry.get("timed")
        ]


def _is_as_close_as(entry: Mapping[str, Any], wanted: Answer, got: Answer) -> bool:
    if entry.get("begins") and not _error(got).startswith(_error(wanted).rstrip(";\n")):
        return False
    if "alike" in entry:
        return re.sub(entry["alike"], "", _text(wanted)) == re.sub(entry["alike"], "", _text(got))
    return True


def _text(answer: Answer) -> str:
    """The body, where a binary one has a character for each byte."""
    if "body_base64" in answer:
        return base64.b64decode(answer["body_base64"]).decode("latin-1")
    text: str = replay.text_of(answer)
    # The replay takes the n of a line end for the beginning of the path behind it.
    return text.replace("\\<REPO>", "\\n<REPO>")


def _error(answer: Answer) -> str:
    """The text of an error answer; all of it where it is not one of JSON."""
    text = _text(answer)
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text


class PendingCases:
    """``pending.json``: cases that differ until an issue is done."""

    def __init__(self, entries: Sequence[Mapping[str, Any]]) -> None:
        self._entries = entries
        self._needed: set[int] = set()
        self._equal: dict[int, list[str]] = {}

    def issue(self, case: Case) -> str | None:
        """The title of the issue that a differing case waits for, or None."""
        for index, entry in enumerate(self._entries):
            if self._covers(entry, case):
                self._needed.add(index)
                return str(entry["issue"])
        return None

    def note_equal(self, case: Case) -> None:
        """Remember a case that needs no entry."""
        for index, entry in enumerate(self._entries):
            if self._covers(entry, case):
                self._equal.setdefault(index, []).append(case["id"])

    def stale(self, *, is_whole: bool) -> list[str]:
        """Entries that cover equal cases, and after a whole run those that cover no case."""
        found = [
            f"pending.json, entry {index} ({self._entries[index]['issue']}): equal by now: "
            + " ".join(ids)
            for index, ids in sorted(self._equal.items())
        ]
        if is_whole:
            found += [
                f"pending.json, entry {index} ({entry['issue']}): no case needed it"
                for index, entry in enumerate(self._entries)
                if index not in self._needed
                and index not in self._equal
                and entry.get("protocol", "http") == "http"
            ]
        return found

    @staticmethod
    def _covers(entry: Mapping[str, Any], case: Case) -> bool:
        if entry.get("protocol", "http") != _protocol_of(case):
            return False
        if "cases" in entry and case["id"] not in entry["cases"]:
            return False
        return all(
            re.fullmatch(entry[key], case[key]) is not None
            for key in ("session", "group", "note")
            if key in entry
        )


def _protocol_of(case: Case) -> Protocol:
    return "http" if "request" in case else "grpc"


def read_list(path: Path) -> list[dict[str, Any]]:
    """The entries of one of the two lists."""
    entries: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return entries


# ----------------------------------------------------------------------------------- the server


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a server listens."""

    http: tuple[str, int]
    grpc: tuple[str, int]


class Server:
    """One server process of a session."""

    def __init__(self, command: str, repository: Path, args: Sequence[str]) -> None:
        self._ports = _ReservedPorts(3)
        ports = self._ports.numbers
        self.addresses = Addresses(("127.0.0.1", ports[0]), ("127.0.0.1", ports[1]))
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop
        line = command.format(
            repository=shlex.quote(str(repository)),
            args=" ".join(map(shlex.quote, args)),
            http=ports[0],
            grpc=ports[1],
            metrics=ports[2],
        )
        self._process = subprocess.Popen(
            shlex.split(line), stdout=self._log, stderr=self._log, start_new_session=True
        )

    def wait(self, what: str) -> bool:
        """Until the server is live or ready; False when it went away or took too long."""
        return bool(replay.wait_up(self.addresses.http, what, self._process, seconds=600))

    def is_gone(self) -> bool:
        """Whether the process ends within two seconds."""
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            return False
        return True

    def last_words(self) -> str:
        """The last line of the log."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def stop(self) -> None:
        """End the process, if need be with force."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()
        self._ports.close()


class _ReservedPorts:
    """Ports that the system gives to nobody who asks for any, until they are closed.

    A server that asks for one of them by its number gets it, if it sets SO_REUSEADDR as all do:
    these sockets have the ports and don't listen.
    """

    def __init__(self, count: int) -> None:
        self._sockets = [socket.socket() for _ in range(count)]
        for each in self._sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
        self.numbers: list[int] = [each.getsockname()[1] for each in self._sockets]

    def close(self) -> None:
        for each in self._sockets:
            each.close()


@contextlib.contextmanager
def _shared_memory(session: Mapping[str, Any]) -> Iterator[None]:
    """The session's shared memory objects. Their names are fixed, so only one run may have them."""
    with (RECORDED / "sessions.json").open("rb") as lock:
        if session.get("shm"):
            fcntl.flock(lock, fcntl.LOCK_EX)
        replay.make_shm(session)
        try:
            yield
        finally:
            replay.drop_shm(session)


# --------------------------------------------------------------------- models that do not load


def unloadable_models(command: str, session: Mapping[str, Any]) -> dict[str, str]:
    """Find by trial which models of a session's repository this server cannot load.

    Returns:
        The reason by model name; empty where the server does not even start without them.
    """
    args = [*session["args"], "--exit-on-error=false", "--strict-readiness=false"]
    server = Server(command, RECORDED / session["repository"], args)
    try:
        if not server.wait("live"):
            return {}
        got = replay.http_send(
            server.addresses.http, {"method": "POST", "path": "/v2/repository/index"}
        )
    finally:
        server.stop()
    return {
        entry["name"]: entry.get("reason", "its config was refused")
        for entry in json.loads(got["body"])
        if entry.get("state") != "READY"
    }


def _asked_model(case: Case) -> str | None:
    path = case["request"].get("path", "") if "request" in case else ""
    found = re.match(r"/v2/(?:repository/)?models/([^/?]+)", path)
    if found:
        return found[1]
    if "request" in case:
        return None
    return (case.get("request_json") or {}).get("model_name")


def without_models(answer: Answer, names: frozenset[str]) -> Answer:
    """A recorded answer as it would be, had the repository not held some models.

    Only lists of models are touched: the repository index and the statistics of all models.
    """
    try:
        body = json.loads(answer["body_text"])
    except (KeyError, ValueError):
        return answer
    models = body.get("model_stats") if isinstance(body, dict) else body
    if not isinstance(models, list):
        return answer
    kept = [m for m in models if not (isinstance(m, dict) and m.get("name") in names)]
    if len(kept) == len(models):
        return answer
    return answer | {"body_text": json.dumps({"model_stats": kept} if models is not body else kept)}


# -------------------------------------------------------------------------------------- the run


class Run:
    """One comparison: starts what has to be started and judges each case."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._deliberate = DeliberateKinds(read_list(DIFFERENCES))
        self._pending = PendingCases(read_list(PENDING))
        self.report = Report()

    def sessions(self) -> Iterator[str]:
        """Run session after session; yields the name of each that is done."""
        for name, session in replay.sessions().items():
            if self._selection.sessions and name not in self._selection.sessions:
                continue
            for protocol in self._selection.protocols:
                cases = self._selection.cases(name, protocol)
                if cases:
                    with _shared_memory(session):
                        self._run_session(name, session, cases)
            yield name
        if self._selection.is_whole():
            self.report.stale += self._deliberate.unused()
        self.report.stale += self._pending.stale(is_whole=self._selection.is_whole())

    def _run_session(self, name: str, session: Mapping[str, Any], cases: list[Case]) -> None:
        if self._selection.url:
            self._run_against_url(cases)
            return
        with tempfile.TemporaryDirectory() as scratch:
            repository = RECORDED / session["repository"]
            server = Server(self._selection.command, repository, session["args"])
            left_out: frozenset[str] = frozenset()
            try:
                is_up = server.wait(session["wait"])
                if not is_up and session["wait"] == "ready":
                    server.stop()
                    left_out = self._leave_out(name, session)
                    ignore = shutil.ignore_patterns(*left_out) if left_out else None
                    repository = Path(shutil.copytree(repository, f"{scratch}/r", ignore=ignore))
                    server = Server(self._selection.command, repository, session["args"])
                    is_up = server.wait(session["wait"])
                if not is_up:
                    self._all_differ(cases, f"the server did not start: {server.last_words()}")
                    return
                for case in cases:
                    if case["response"].get("crash"):
                        server = self._run_crash(case, server, session, repository)
                    else:
                        self._run_case(case, server.addresses, left_out)
            finally:
                server.stop()

    def _leave_out(self, name: str, session: Mapping[str, Any]) -> frozenset[str]:
        reasons = unloadable_models(self._selection.command, session)
        self.report.left_out |= {f"{name}/{model}": why for model, why in reasons.items()}
        return frozenset(reasons)

    def _run_against_url(self, cases: list[Case]) -> None:
        url = urlsplit(self._selection.url)
        host, _, port = self._selection.grpc_address.rpartition(":")
        addresses = Addresses((url.hostname or "127.0.0.1", url.port or 8000), (host, int(port)))
        for case in cases:
            if not case["response"].get("crash"):  # it may not be ours to lose
                self._run_case(case, addresses, frozenset())

    def _all_differ(self, cases: list[Case], difference: str) -> None:
        for case in cases:
            self._judge(case, difference, {"no_response": difference})

    def _run_case(self, case: Case, addresses: Addresses, left_out: frozenset[str]) -> None:
        model = _asked_model(case)
        if model in left_out:
            self._add(case, "pending", f"the server was started without '{model}'")
            return
        wanted = dict(case)
        if left_out:
            wanted["response"] = without_models(case["response"], left_out)
        if _protocol_of(case) == "http":
            difference = replay.run_http(wanted, addresses.http)
        else:
            difference = replay.run_grpc(wanted, addresses.grpc)
        self._judge(case, difference, replay.LAST[0])

    def _run_crash(
        self, case: Case, server: Server, session: Mapping[str, Any], repository: Path
    ) -> Server:
        """Send what killed the real server; equal means alive, and a 4xx that blames the client."""
        got = replay.pack(replay.http_send(server.addresses.http, case["request"], 60))
        if "status" in got and server.wait("live"):
            is_refused = 400 <= got["status"] < 500
            self._judge(case, None if is_refused else f"survived with {got}", got)
            return server
        fate = "died" if server.is_gone() else "gave no answer"
        self._judge(case, f"the server {fate}: {server.last_words()}", got)
        server.stop()
        fresh = Server(self._selection.command, repository, session["args"])
        fresh.wait(session["wait"])
        return fresh

    def _judge(self, case: Case, difference: str | None, got: Answer) -> None:
        if difference is None:
            self._pending.note_equal(case)
            self._add(case, "equal", "")
            return
        why = self._deliberate.why(case, got)
        if why is not None:
            self._pending.note_equal(case)
            self._add(case, "deliberate", why)
            return
        issue = self._pending.issue(case)
        if issue is not None:
            self._add(case, "pending", f"waits for: {issue}\n     {difference}")
            return
        self._add(case, "different", difference)

    def _add(self, case: Case, verdict: Verdict, detail: str) -> None:
        self.report.outcomes.append(Outcome(case, verdict, detail))


def compare(selection: Selection) -> Report:
    """Run everything that ``selection`` asks for."""
    run = Run(selection)
    for _ in run.sessions():
        pass
    return run.report


# ------------------------------------------------------------------------------------- the page

_HEADINGS: Mapping[str, str] = {
    "harm": "Triton's answer does harm: a crash, a hang, a wrong value passed off as right",
    "client-fault": "The caller's mistake is answered as the caller's mistake (4xx, not 5xx)",
    "newer": "Newer releases of Triton answer differently than 2.51",
    "safer-default": "The safer setting is the default",
    "honest-health": "Health says what is true",
    "appended": "Triton's text, with advice appended",
    "insides": "Names of Triton's insides that Naiad does not have",
}


def render_page(entries: Sequence[Mapping[str, Any]]) -> str:
    """``docs/reference/differences.md``, made from ``differences.json``."""
    lines = [
        "# Where Naiad differs from Triton on purpose",
        "",
        "Naiad's answers are compared with those that a real Triton 2.51 (24.10) gave to the same",
        "requests (`make conformance`). Where they differ, it is a fault, unless the kind of",
        "difference stands here. Triton's safety-relevant defects are not copied; where a newer",
        "Triton answers differently than 2.51, the newer one counts.",
        "",
        "This page is made from `tests/conformance/differences.json`:",
        "`python tests/conformance/run_recorded.py --write-page`.",
    ]
    for reason, heading in _HEADINGS.items():
        rows = [entry for entry in entries if entry["reason"] == reason]
        if rows:
            lines += ["", f"## {heading}", "", "| What | Triton 2.51 | Naiad | Why |"]
            lines += ["|---|---|---|---|"]
            lines += [_row(entry) for entry in rows]
    return "\n".join([*lines, ""])


def _row(entry: Mapping[str, Any]) -> str:
    why = entry["why"]
    if "source" in entry:
        why += f" ({entry['source']})"
    cells = (entry["kind"], entry["triton"], entry["naiad"], why)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


# ------------------------------------------------------------------------------ the command line


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison and print it; the exit status is 1 where something is wrong."""
    options = _parser().parse_args(argv)
    if options.write_page:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(render_page(read_list(DIFFERENCES)), encoding="utf-8")
        return 0
    selection = Selection(
        sessions=tuple(options.session or (("main",) if options.url else ())),
        only=options.only,
        protocols=("http", "grpc") if options.grpc else ("http",),
        url=options.url,
        grpc_address=options.grpc_address,
        command=options.command,
    )
    run = Run(selection)
    shown = 0
    for session in run.sessions():
        for outcome in run.report.outcomes[shown:]:
            _show(outcome, is_verbose=options.verbose)
        shown = len(run.report.outcomes)
        _say(f"{session}: {run.report.summary(session)}")
    for model, reason in run.report.left_out.items():
        _say(f"started without {model}: {reason}")
    for entry in run.report.stale:
        _say(f"STALE {entry}")
    _say(run.report.summary())
    if options.json:
        _write_json(Path(options.json), run.report)
    return 0 if run.report.is_clean() else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--session", action="append", help="a session's name; may be repeated")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose id contains it")
    parser.add_argument("--url", default="", help="a server that is up already, of one session")
    parser.add_argument("--grpc", action="store_true", help="the gRPC cases too (needs grpcio)")
    parser.add_argument("--grpc-address", default="127.0.0.1:8001", help="with --url and --grpc")
    parser.add_argument("--command", default=SERVE, help="template that starts a server")
    parser.add_argument("--json", metavar="FILE", help="write each case's outcome")
    parser.add_argument("--write-page", action="store_true", help=f"render {PAGE.name} and stop")
    parser.add_argument("-v", "--verbose", action="store_true", help="show each case")
    return parser


def _show(outcome: Outcome, *, is_verbose: bool) -> None:
    if outcome.verdict == "different" or is_verbose:
        case = outcome.case
        _say(f"{outcome.verdict.upper()} {case['id']} [{case['group']}] {case['note']}")
        if outcome.detail:
            _say(f"     {outcome.detail}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _write_json(path: Path, report: Report) -> None:
    outcomes = {
        outcome.case["id"]: {"verdict": outcome.verdict, "detail": outcome.detail}
        for outcome in report.outcomes
    }
    path.write_text(json.dumps(outcomes, indent=1), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
