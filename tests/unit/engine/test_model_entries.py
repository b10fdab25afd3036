from naiad.engine.model_entries import UNLOADED_REASON, VersionEntry
from naiad.inference.states import ModelState


def test_what_was_said_of_a_state_ends_with_it() -> None:
    entry = VersionEntry()
    entry.become(ModelState.UNAVAILABLE, "Internal: no file", "config.pbtxt:3:1")
    assert entry.has_failed
    entry.become(ModelState.LOADING)
    assert (entry.reason, entry.advice, entry.has_failed) == ("", "", False)


def test_what_was_unloaded_has_not_failed() -> None:
    entry = VersionEntry()
    entry.become(ModelState.UNAVAILABLE, UNLOADED_REASON)
    assert not entry.has_failed
