import pytest

from naiad.inference.latency_summaries import DEFAULT_TARGETS, QuantileTarget
from naiad.server.command_line import parse_arguments
from naiad.server.metrics_option import MetricsChoice
from naiad.server.settings import BadOptionError, Settings


def parse(*settings: str) -> Settings:
    return parse_arguments(["models", *(f"--metrics-config={text}" for text in settings)], {})


def test_by_default_there_are_sums_alone() -> None:
    assert parse().metrics() == MetricsChoice(has_counters=True, has_histograms=False, targets=())
    assert parse("summary_quantiles=0.5:0.05").metrics() == MetricsChoice()


def test_the_settings_in_any_order() -> None:
    assert parse("summary_latencies=true").metrics().targets == DEFAULT_TARGETS
    choice = parse(
        "summary_quantiles=0.1:0.0001, 1:0.5",
        "histogram_latencies=TRUE",
        "counter_latencies=false",
        "summary_latencies=false",
        "summary_latencies=1",
    ).metrics()
    assert choice == MetricsChoice(
        has_counters=False,
        has_histograms=True,
        targets=(QuantileTarget(0.1, 0.0001), QuantileTarget(1, 0.5)),
    )


def test_a_setting_that_there_is_not_is_kept_apart() -> None:
    settings = parse("nope=1", "summary_latencies=true")
    assert settings.metrics().unknown == ("nope",)
    assert settings.metrics().targets == DEFAULT_TARGETS


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "summary_latencies",
            "--metrics-config option format is <setting>=<value>. Got summary_latencies. Settings "
            "are counter_latencies, histogram_latencies, summary_latencies, summary_quantiles",
        ),
        ("summary_latencies=", "<setting>=<value>. Got summary_latencies=."),
        ("=true", "<setting>=<value>. Got =true."),
        ("m,summary_latencies=true", "<setting>=<value>. Got m,summary_latencies=true."),
        ("summary_latencies=yes please", "setting summary_latencies: expected true or false, got"),
        ("counter_latencies=2", "setting counter_latencies: expected true or false, got '2'"),
        (
            "summary_quantiles=0.5",
            "setting summary_quantiles: Invalid option: [0.5]. No ':' delimiter found. Expected "
            "format is <quantile>:<error>",
        ),
        ("summary_quantiles=0.5:0.05,", "Invalid option: []. No ':' delimiter found."),
        ("summary_quantiles=half:0.05", "Invalid option: [half:0.05]. Error: 'half' is no number."),
        ("summary_quantiles=0.1:0.0.1", "Invalid option: [0.1:0.0.1]. Error: '0.0.1' is no number"),
        ("summary_quantiles=1.5:0.05", "[1.5:0.05]. A quantile is a number from 0 to 1"),
        ("summary_quantiles=nan:0.05", "[nan:0.05]. A quantile is a number from 0 to 1"),
        ("summary_quantiles=0.5:0", "[0.5:0]. An error is a number from 0.0001 to 0.5"),
        ("summary_quantiles=0.5:nan", "[0.5:nan]. An error is a number from 0.0001 to 0.5"),
        ("summary_quantiles=0.5:0.05,0.50:0.01", "a quantile is given twice: 0.5:0.05,0.50:0.01"),
    ],
)
def test_a_wrong_value_keeps_the_server_from_starting(text: str, reason: str) -> None:
    with pytest.raises(BadOptionError) as caught:
        parse(text)
    assert caught.value.message.startswith('Bad option: "--metrics-config".\ninvalid argument for')
    assert reason in caught.value.message
