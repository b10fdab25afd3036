"""A clock that moves only when a test says so."""


class FakeClock:
    def __init__(self, now_ns: int = 1_000_000_000) -> None:
        self.time_ns = now_ns

    def now_ns(self) -> int:
        return self.time_ns

    def wall_ns(self) -> int:
        return self.time_ns

    def advance_us(self, us: int) -> None:
        self.time_ns += us * 1000
