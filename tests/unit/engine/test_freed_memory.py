"""Giving freed memory back once for all that ask."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from naiad.engine.freed_memory import FreedMemory


class ListedWork(Executor):
    """Runs what it is given when the test says so."""

    def __init__(self) -> None:
        self.work: list[Callable[[], Any]] = []
        self.is_closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        if self.is_closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        self.work.append(lambda: fn(*args, **kwargs))
        return Future()


def test_many_that_ask_share_one_return() -> None:
    threads, trims = ListedWork(), list[int]()
    memory = FreedMemory(threads, lambda: trims.append(1))
    memory.give_back()
    memory.give_back()
    assert len(threads.work) == 1
    threads.work.pop()()
    assert trims == [1]
    memory.give_back()
    assert len(threads.work) == 1


def test_what_is_freed_while_memory_is_given_back_is_given_back_next() -> None:
    threads = ListedWork()

    def trim() -> None:
        memory.give_back()

    memory = FreedMemory(threads, trim)
    memory.give_back()
    threads.work.pop()()
    assert len(threads.work) == 1


def test_a_server_that_ends_gives_nothing_back() -> None:
    threads = ListedWork()
    threads.is_closed = True
    FreedMemory(threads, lambda: None).give_back()
    assert not threads.work
