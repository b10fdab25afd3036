from naiad.frontends.byte_budget import ByteBudget


def test_what_does_not_fit_is_not_reserved() -> None:
    budget = ByteBudget(10)
    assert budget.try_reserve(7)
    assert not budget.try_reserve(4)
    assert budget.reserved_bytes == 7
    assert budget.try_reserve(3)
    budget.release(7)
    assert budget.try_reserve(7)
    assert budget.reserved_bytes == 10
