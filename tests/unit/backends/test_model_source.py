"""The numbers of cores of instances that host policies keep to some."""

from pathlib import Path

from naiad.backends.base import ModelSource
from naiad.model_config.schema import ModelConfig

FIRST, SECOND = frozenset({0, 1, 2, 3}), frozenset({4, 5})


def source(*cores: frozenset[int] | None, core_count: int = 8) -> ModelSource:
    return ModelSource("m", 1, ModelConfig(), Path(), {}, 2, None, core_count, cores)


def counts(given: ModelSource, index: int) -> tuple[int, int]:
    found = given.for_instance(index)
    return found.thread_count, found.core_count


def test_without_policies_all_instances_are_alike() -> None:
    given = source()
    assert given.for_instance(3) is given
    assert given.cores_of(3) is None


def test_instances_that_are_kept_to_the_same_cores_share_them_out() -> None:
    given = source(FIRST, SECOND, None, FIRST)
    assert [counts(given, n) for n in range(4)] == [(2, 4), (2, 2), (2, 8), (2, 4)]
    assert given.cores_of(1) == SECOND


def test_there_are_no_more_threads_than_the_container_has_cores() -> None:
    assert counts(source(FIRST, core_count=3), 0) == (3, 3)
    assert counts(source(SECOND, SECOND, SECOND), 0) == (1, 2)
