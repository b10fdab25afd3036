"""Instances are made side by side where they are processes, and all or none."""

import threading

import pytest

from naiad.backends.base import Instance
from naiad.engine.instance_starts import make_instances
from naiad.errors import InternalError
from naiad.model_config.instances import InstancePlace
from naiad.model_config.schema import ModelInstanceGroup

PLACES = {n: InstancePlace(f"m_{n}", ModelInstanceGroup.KIND_CPU, None) for n in range(3)}


class Made:
    """An instance that notes its end."""

    def __init__(self, index: int, closed: list[int]) -> None:
        self.index = index
        self._closed = closed

    def execute(self, inputs: object, output_names: object) -> list[object]:
        return []

    def close(self) -> None:
        self._closed.append(self.index)


class Alone:
    """A model whose instances must not be made at the same time."""

    def __init__(self, broken: int = -1) -> None:
        self.closed: list[int] = []
        self.made: list[int] = []
        self._broken = broken
        self._lock = threading.Lock()

    def create_instance(self, index: int) -> Instance:
        assert self._lock.acquire(blocking=False)
        instance = Made(index, self.closed)
        self.made.append(index)
        self._lock.release()
        if index == self._broken:
            raise InternalError("broken")
        return instance  # type: ignore[return-value]

    def close(self) -> None:
        """Nothing is held."""


class Processes(Alone):
    """A model each of whose instances is there only once all have begun."""

    has_processes = True

    def __init__(self) -> None:
        super().__init__()
        self._barrier = threading.Barrier(len(PLACES))

    def create_instance(self, index: int) -> Instance:
        self._barrier.wait(300)
        return Made(index, self.closed)  # type: ignore[return-value]


def indices(instances: list[object]) -> list[int]:
    return [instance.index for instance in instances if isinstance(instance, Made)]


def test_processes_start_side_by_side() -> None:
    assert indices([*make_instances(Processes(), PLACES, {})]) == [0, 1, 2]


def test_others_come_one_after_the_other() -> None:
    model = Alone()
    assert indices([*make_instances(model, PLACES, {})]) == model.made == [0, 1, 2]


def test_a_failure_closes_those_that_were_made() -> None:
    model = Alone(broken=1)
    with pytest.raises(InternalError, match="broken"):
        make_instances(model, PLACES, {})
    assert 0 in model.closed
    assert set(model.closed) == set(model.made) - {1}
