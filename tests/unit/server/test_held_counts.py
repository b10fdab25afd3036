import pytest

from naiad.server.settings import BadOptionError, read_held_counts


def test_tests_of_clients_may_hold_batches_back_as_with_triton() -> None:
    assert read_held_counts({}) == (0, 0)
    environment = {
        "TRITONSERVER_DELAY_SCHEDULER": "12",
        "TRITONSERVER_BACKLOG_DELAY_SCHEDULER": "3",
    }
    assert read_held_counts(environment) == (12, 3)


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(BadOptionError, match="TRITONSERVER_DELAY_SCHEDULER"):
        read_held_counts({"TRITONSERVER_DELAY_SCHEDULER": "many"})
