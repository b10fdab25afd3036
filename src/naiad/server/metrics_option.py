"""The values of ``--metrics-config``, as Triton spells them.

Source: server's ``command_line_parser.cc`` and core's ``metric_model_reporter.cc``. What Triton
passes over in silence there, a switch that is neither true nor false and a quantile that is none,
keeps the server from starting here: whoever asked for a metric would miss it when it is needed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from naiad.inference.latency_summaries import DEFAULT_TARGETS, QuantileTarget
from naiad.server.option import parse_boolean

# Finer errors take more memory and time than latencies are worth.
MIN_ERROR: Final = 0.0001
MAX_ERROR: Final = 0.5


@dataclass(frozen=True, slots=True)
class MetricsAssignment:
    """One setting and what its text means; None for a setting that there is not."""

    setting: str
    value: Any


@dataclass(frozen=True, slots=True)
class MetricsChoice:
    """Which latency metrics there are.

    Attributes:
        has_counters: sums of latencies.
        has_histograms: times to first responses.
        targets: quantiles of latencies; empty for none.
        unknown: settings that were given and are none.
    """

    has_counters: bool = True
    has_histograms: bool = False
    targets: tuple[QuantileTarget, ...] = ()
    unknown: tuple[str, ...] = ()


def _parse_number(text: str, pair: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"Invalid option: [{pair}]. Error: '{text}' is no number. Expected format is "
            "<quantile>:<error>"
        ) from None


def _parse_target(pair: str) -> QuantileTarget:
    quantile_text, colon, error_text = pair.partition(":")
    if not colon:
        raise ValueError(
            f"Invalid option: [{pair}]. No ':' delimiter found. Expected format is "
            "<quantile>:<error>"
        )
    quantile = _parse_number(quantile_text, pair)
    error = _parse_number(error_text, pair)
    if not 0 <= quantile <= 1:
        raise ValueError(f"Invalid option: [{pair}]. A quantile is a number from 0 to 1")
    if not MIN_ERROR <= error <= MAX_ERROR:
        raise ValueError(
            f"Invalid option: [{pair}]. An error is a number from {MIN_ERROR} to {MAX_ERROR}"
        )
    return QuantileTarget(quantile, error)


def _parse_quantiles(text: str) -> tuple[QuantileTarget, ...]:
    targets = tuple(_parse_target(pair.strip()) for pair in text.split(","))
    if len({target.quantile for target in targets}) < len(targets):
        raise ValueError(f"a quantile is given twice: {text}")
    return targets


_SETTINGS: Final[Mapping[str, Callable[[str], Any]]] = MappingProxyType(
    {
        "counter_latencies": parse_boolean,
        "histogram_latencies": parse_boolean,
        "summary_latencies": parse_boolean,
        "summary_quantiles": _parse_quantiles,
    }
)
SETTING_NAMES: Final = tuple(_SETTINGS)


def parse_metrics_config(text: str) -> MetricsAssignment:
    """One ``SETTING=VALUE``.

    Raises:
        ValueError: the text is none, or the setting has no such value.
    """
    setting, _, value = text.partition("=")
    if not setting or not value or "," in setting:
        raise ValueError(
            f"--metrics-config option format is <setting>=<value>. Got {text}. Settings are "
            f"{', '.join(SETTING_NAMES)}"
        )
    parse = _SETTINGS.get(setting)
    if parse is None:
        return MetricsAssignment(setting, None)
    try:
        return MetricsAssignment(setting, parse(value))
    except ValueError as error:
        raise ValueError(f"setting {setting}: {error}") from None


def choose_metrics(assignments: Sequence[MetricsAssignment]) -> MetricsChoice:
    """What several settings ask for together; of one that is given twice the last counts."""
    values = {assignment.setting: assignment.value for assignment in assignments}
    targets = values.get("summary_quantiles", DEFAULT_TARGETS)
    return MetricsChoice(
        has_counters=values.get("counter_latencies", True),
        has_histograms=values.get("histogram_latencies", False),
        targets=targets if values.get("summary_latencies", False) else (),
        unknown=tuple(setting for setting in values if setting not in _SETTINGS),
    )
