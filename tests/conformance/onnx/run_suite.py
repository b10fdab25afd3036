"""Runs the ONNX project's backend test suite through the server.

    python tests/conformance/onnx/run_suite.py [--only REGEX] [--json FILE]

Every case that the installed onnxruntime itself passes and whose tensors the protocol can hold is
loaded by explicit control, inferred over HTTP with binary data and over gRPC, held against the
suite's outputs with the suite's tolerance, and unloaded. Models with other values must be refused
at load. Ends with a line ``N of N pass``, and with status 1 if it is not all of them.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from tests.conformance.onnx.oracle import Kind, judge  # noqa: E402  (the path comes first)
from tests.conformance.onnx.served import SuiteServer  # noqa: E402
from tests.conformance.onnx.suite import (  # noqa: E402
    PATTERN,
    REQUIREMENT,
    Case,
    list_cases,
)
from tests.support.wheels import unpack_wheel  # noqa: E402

RESULTS = Path(__file__).with_name("results.json")
_PACKAGES = ("naiad", "onnxruntime", "onnx", "numpy")


@dataclass(slots=True)
class Report:
    """What came of each case, by name.

    Attributes:
        passed: served as the suite wants it.
        failed: servable and not served so, with the reason; there should be none.
        refused: with the values that no request can carry; refused at load.
        accepted: such models that were not refused as they should; there should be none.
        onnxruntime_fails: the library itself can't load or run the model.
        onnxruntime_differs: the library itself does not give the suite's outputs.
    """

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    accepted: dict[str, str] = field(default_factory=dict)
    onnxruntime_fails: dict[str, str] = field(default_factory=dict)
    onnxruntime_differs: dict[str, str] = field(default_factory=dict)

    def is_clean(self) -> bool:
        return not self.failed and not self.accepted

    def faults(self) -> str:
        faults = {**self.failed, **self.accepted}
        return "\n".join(f"{name}: {why}" for name, why in faults.items())

    def total(self) -> int:
        return len(self.passed) + len(self.failed)


def run(cases: Sequence[Case]) -> Report:
    """Hold the cases against onnxruntime and the server."""
    report = Report()
    with tempfile.TemporaryDirectory() as repository, SuiteServer(Path(repository)) as server:
        for case in cases:
            _run_case(case, server, report)
    return report


def _run_case(case: Case, server: SuiteServer, report: Report) -> None:
    judgement = judge(case)
    if judgement.kind is Kind.FAILS:
        report.onnxruntime_fails[case.name] = judgement.why
    elif judgement.kind is Kind.DIFFERS:
        report.onnxruntime_differs[case.name] = judgement.why
    elif judgement.kind is Kind.UNSERVABLE:
        why = server.explain_acceptance(case)
        if why:
            report.accepted[case.name] = why
        else:
            report.refused[case.name] = judgement.why
    else:
        why = server.explain_failure(case)
        if why:
            report.failed[case.name] = why
        else:
            report.passed.append(case.name)


def select_cases(pattern: str = "") -> list[Case]:
    """The cases whose name contains a match; downloads the suite if need be."""
    return [c for c in list_cases(unpack_wheel(REQUIREMENT, PATTERN)) if re.search(pattern, c.name)]


def sample_cases(count: int) -> list[Case]:
    """Always the same cases, evenly over those that passed when the results were written."""
    passed = json.loads(RESULTS.read_text(encoding="utf-8"))["passed"]
    names = {passed[index * len(passed) // count] for index in range(count)}
    return [case for case in select_cases() if case.name in names]


def describe_conditions() -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--match="],
        cwd=ROOT, capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    cores = len(os.sched_getaffinity(0))
    return {
        "suite": REQUIREMENT,
        "commit": commit or "unknown",
        "machine": f"{platform.machine()}, {cores} cores, Linux {platform.release()}",
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose name contains it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    options = parser.parse_args()
    cases = select_cases(options.only)
    report = run(cases)
    for name, why in {**report.onnxruntime_fails, **report.onnxruntime_differs}.items():
        print(f"onnxruntime itself: {name}: {why}")  # noqa: T201  a script for people
    if report.faults():
        print(report.faults())  # noqa: T201
    if options.json:
        document = {**describe_conditions(), "cases": len(cases), **asdict(report)}
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(  # noqa: T201
        f"{len(cases)} cases; onnxruntime itself fails {len(report.onnxruntime_fails)} and gives "
        f"other outputs for {len(report.onnxruntime_differs)}; "
        f"{len(report.refused)} of {len(report.refused) + len(report.accepted)} models with other "
        "values are refused"
    )
    print(f"{len(report.passed)} of {report.total()} pass")  # noqa: T201
    return 0 if report.is_clean() else 1


if __name__ == "__main__":
    sys.exit(main())
