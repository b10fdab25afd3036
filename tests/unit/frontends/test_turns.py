"""Long work between everything else."""

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from naiad.errors import InternalError, NaiadError
from naiad.frontends.turns import Turns


def count_to(end: int, log: list[str], name: str) -> Generator[None, None, int]:
    for number in range(end):
        log.append(f"{name}{number}")
        yield
    return end


def unheard(value: Any) -> None:
    raise AssertionError(value)


async def test_works_take_turns() -> None:
    log: list[str] = []
    done = asyncio.Event()
    turns = Turns()
    turns.start(count_to(2, log, "a"), lambda end: log.append(f"a ends {end}"), unheard)
    turns.start(count_to(3, log, "b"), lambda _: done.set(), unheard)
    await done.wait()
    assert log == ["a0", "b0", "a1", "b1", "a ends 2", "b2"]


async def test_errors_are_told_and_others_go_on() -> None:
    def failing() -> Generator[None, None, None]:
        yield
        raise InternalError("no")

    errors: list[NaiadError] = []
    done = asyncio.Event()
    turns = Turns()
    turns.start(failing(), unheard, errors.append)
    turns.start(count_to(5, [], ""), lambda _: done.set(), unheard)
    await done.wait()
    assert [error.message for error in errors] == ["no"]


async def test_a_fault_stops_nothing_else() -> None:
    def faulty() -> Generator[None, None, None]:
        yield
        raise ZeroDivisionError

    errors: list[NaiadError] = []
    done = asyncio.Event()
    turns = Turns()
    turns.start(faulty(), unheard, errors.append)
    turns.start(count_to(5, [], ""), lambda _: done.set(), unheard)
    await done.wait()
    assert [type(error) for error in errors] == [InternalError]


async def test_dropped_work_is_not_heard_of() -> None:
    log: list[str] = []
    done = asyncio.Event()
    turns = Turns()
    dropped = turns.start(count_to(100, log, "x"), unheard, unheard)
    turns.start(count_to(5, [], ""), lambda _: done.set(), unheard)
    await asyncio.sleep(0)
    dropped.is_dropped = True
    await done.wait()
    assert log == ["x0"]


async def test_work_may_begin_while_other_work_ends() -> None:
    done = asyncio.Event()
    turns = Turns()

    def again(_: int) -> None:
        turns.start(count_to(1, [], ""), lambda _: done.set(), unheard)

    turns.start(count_to(1, [], ""), again, unheard)
    await done.wait()


async def test_a_coroutine_waits_for_what_comes_of_it() -> None:
    assert await Turns().run(count_to(3, [], "")) == 3


async def test_a_coroutine_gets_the_error() -> None:
    def failing() -> Generator[None, None, None]:
        yield
        raise InternalError("no")

    with pytest.raises(InternalError, match="no"):
        await Turns().run(failing())


async def test_the_work_of_a_coroutine_that_is_cancelled_stops() -> None:
    log: list[str] = []
    done = asyncio.Event()
    turns = Turns()
    waiting = asyncio.ensure_future(turns.run(count_to(100, log, "x")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    turns.start(count_to(5, [], ""), lambda _: done.set(), unheard)
    await done.wait()
    assert len(log) < 3
