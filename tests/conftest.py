"""What holds for every test: how long something takes is no failure."""

from hypothesis import HealthCheck, settings

# A machine that does other things meanwhile is slow, not wrong.
settings.register_profile(
    "any_machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any_machine")
