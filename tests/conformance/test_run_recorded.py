"""The comparison itself: what it forgives, what it doesn't, and the page that it writes."""

import json
import re
from typing import Any

import pytest
from tests.conformance.run_recorded import (
    DIFFERENCES,
    PAGE,
    PENDING,
    DeliberateKinds,
    Outcome,
    PendingCases,
    Report,
    read_list,
    render_page,
    replay,
    without_models,
)

REFUSED_LATER = {
    "kind": "a word",
    "group": "words",
    "want_status": 500,
    "status": 400,
    "body": "word",
    "reason": "client-fault",
    "why": "The caller wrote the word.",
    "triton": "500",
    "naiad": "400",
}


def case(case_id: str = "words-001", **fields: Any) -> dict[str, Any]:
    return {
        "id": case_id,
        "group": "words",
        "session": "main",
        "note": "a word",
        "request": {"method": "GET", "path": "/v2"},
        "response": {"status": 500, "headers": {}, "body_text": "no"},
    } | fields


def answer(status: int, text: str) -> dict[str, Any]:
    return {"status": status, "headers": {}, "body_text": text}


def test_a_kind_covers_only_the_answer_that_it_describes() -> None:
    kinds = DeliberateKinds([REFUSED_LATER])

    assert kinds.why(case(), answer(400, "bad word")) == "client-fault: The caller wrote the word."
    assert kinds.why(case(), answer(400, "something else")) is None
    assert kinds.why(case(), answer(500, "bad word")) is None
    assert kinds.why(case(group="letters"), answer(400, "bad word")) is None


def test_a_kind_may_ask_that_the_text_begins_as_the_recorded_one() -> None:
    kinds = DeliberateKinds([REFUSED_LATER | {"begins": True, "body": "."}])
    recorded = case(response=answer(500, '{"error":"bad word;\\n"}'))

    assert kinds.why(recorded, answer(400, '{"error":"bad word: zzz"}')) is not None
    assert kinds.why(recorded, answer(400, '{"error":"a bad word"}')) is None


def test_a_kind_may_ask_that_all_but_something_is_the_same() -> None:
    kinds = DeliberateKinds([REFUSED_LATER | {"alike": r"version \d+", "body": "."}])
    recorded = case(response=answer(500, "needs version 13, sorry"))

    assert kinds.why(recorded, answer(400, "needs version 14, sorry")) is not None
    assert kinds.why(recorded, answer(400, "needs version 14")) is None


def test_a_kind_that_no_case_needed_is_stale() -> None:
    kinds = DeliberateKinds([REFUSED_LATER])
    assert kinds.unused() == ["differences.json, entry 0 (a word): no case needed it"]

    kinds.why(case(), answer(400, "bad word"))
    assert kinds.unused() == []


@pytest.mark.parametrize(
    "entry",
    [
        {"issue": "Words", "group": "words"},
        {"issue": "Words", "group": "words", "note": "a w.*"},
        {"issue": "Words", "session": "main", "cases": ["words-001"]},
    ],
)
def test_a_pending_entry_names_the_issue_of_its_cases(entry: dict[str, Any]) -> None:
    pending = PendingCases([entry])

    assert pending.issue(case()) == "Words"
    assert pending.issue(case("words-002", note="other", session="other", group="other")) is None
    assert pending.stale(is_whole=True) == []


def test_a_pending_case_that_is_equal_is_stale() -> None:
    pending = PendingCases([{"issue": "Words", "group": "words"}])
    pending.issue(case("words-001"))
    pending.note_equal(case("words-002"))

    assert pending.stale(is_whole=False) == [
        "pending.json, entry 0 (Words): equal by now: words-002"
    ]


def test_a_pending_entry_without_cases_is_stale_after_a_whole_run_only() -> None:
    pending = PendingCases([{"issue": "Words", "group": "words"}])

    assert pending.stale(is_whole=False) == []
    assert pending.stale(is_whole=True) == ["pending.json, entry 0 (Words): no case needed it"]


def test_pending_grpc_cases_do_not_excuse_http_ones() -> None:
    pending = PendingCases([{"issue": "gRPC", "protocol": "grpc"}])

    assert pending.issue(case()) is None
    assert pending.stale(is_whole=True) == []


def test_models_left_out_leave_the_index_and_the_statistics_only() -> None:
    names = frozenset({"b"})
    index = answer(200, json.dumps([{"name": "a"}, {"name": "b", "version": "1"}]))
    statistics = answer(200, json.dumps({"model_stats": [{"name": "b"}, {"name": "a"}]}))
    metadata = answer(200, json.dumps({"name": "b", "versions": ["1"]}))

    assert json.loads(without_models(index, names)["body_text"]) == [{"name": "a"}]
    assert json.loads(without_models(statistics, names)["body_text"]) == {
        "model_stats": [{"name": "a"}]
    }
    assert without_models(metadata, names) is metadata
    assert without_models(answer(200, ""), names) == answer(200, "")


def test_the_summary_counts_each_verdict() -> None:
    report = Report([Outcome(case(), "equal"), Outcome(case(session="other"), "different", "x")])

    assert report.summary() == "2 cases: 1 equal, 0 deliberate, 0 pending, 1 different"
    assert report.summary("main") == "1 cases: 1 equal, 0 deliberate, 0 pending, 0 different"
    assert not report.is_clean()


def test_each_deliberate_kind_is_described() -> None:
    for entry in read_list(DIFFERENCES):
        assert entry["reason"] in replay.REASONS
        assert entry["why"].endswith("."), entry
        assert {"kind", "triton", "naiad", "group"} <= entry.keys(), entry
        assert {"want_status", "want_body"} & entry.keys(), entry
        assert {"status", "body"} & entry.keys(), entry
        assert (entry["reason"] == "newer") == ("source" in entry), entry
        assert not re.search(r"-\d{3}\b", entry["group"]), "a kind, never single cases"


def test_each_pending_entry_names_its_issue_and_known_cases() -> None:
    files = ("http_cases.jsonl", "grpc_cases.jsonl")
    cases = {each["id"] for name in files for each in replay.load(name)}
    for entry in read_list(PENDING):
        assert entry["issue"]
        assert set(entry) - {"issue"}, "it would excuse everything"
        assert set(entry.get("cases", ())) <= cases


def test_the_page_is_rendered_from_the_list() -> None:
    assert PAGE.read_text(encoding="utf-8") == render_page(read_list(DIFFERENCES))
