"""Naiad gives the answers that a real Triton gave: a sample here, all of it in the whole matrix."""

import pytest
from tests.conformance.run_recorded import Report, Selection, compare


def faults(report: Report) -> str:
    """What to read when it fails: each fault with the request's purpose."""
    return "\n".join(
        [
            report.summary(),
            *(f"{o.case['id']} ({o.case['note']}): {o.detail}" for o in report.different()),
            *report.stale,
        ]
    )


@pytest.mark.slow
def test_independent_requests_get_the_recorded_answers() -> None:
    report = compare(Selection(sessions=("main",), is_stateless_only=True))

    assert len(report.outcomes) > 400
    assert report.is_clean(), faults(report)


@pytest.mark.slow
def test_what_killed_the_recorded_server_is_refused() -> None:
    report = compare(Selection(sessions=("crash",)))

    assert {outcome.verdict for outcome in report.outcomes} == {"equal"}, faults(report)


@pytest.mark.slow
def test_the_response_cache_answers_and_counts_as_recorded() -> None:
    report = compare(Selection(sessions=("cache",)))

    assert {outcome.verdict for outcome in report.outcomes} == {"equal"}, faults(report)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(900)
def test_every_recorded_answer() -> None:
    report = compare(Selection(protocols=("http", "grpc")))

    assert report.is_clean(), faults(report)
