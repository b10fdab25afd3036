import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from naiad.inference.latency_summaries import DEFAULT_TARGETS, LatencySummaries, QuantileTarget
from naiad.inference.statistics import (
    BatchStatistic,
    BatchTuning,
    CacheStatistics,
    FailureReason,
    LatencyHistogram,
    ModelStatistics,
)
from naiad.metrics.cpu import MachineMonitor
from naiad.metrics.exposition import MetricsRenderer

RECORDED = Path(__file__).parents[2] / "conformance" / "recorded"
# Naiad pins no memory, so it has no pool to report.
NOT_OURS = ("nv_pinned_memory_pool_total_bytes", "nv_pinned_memory_pool_used_bytes")
PROC = {
    "stat": "cpu  10 0 10 80 0 0 0 0 0 0\ncpu0 10 0 10 80 0 0 0 0 0 0\n",
    "meminfo": "MemTotal:  2048 kB\nMemFree: 1 kB\nMemAvailable:  512 kB\n",
}


@dataclass
class Model:
    name: str
    version: int = 1
    statistics: ModelStatistics = field(default_factory=ModelStatistics)
    metric_tags: Mapping[str, str] = field(default_factory=dict)
    namespace: str = ""


class StoppedClock:
    def now_ns(self) -> int:
        return 0

    def wall_ns(self) -> int:
        return 0


def render(*models: Model, with_machine: bool = False) -> list[str]:
    machine = MachineMonitor(StoppedClock(), 1, PROC.__getitem__) if with_machine else None
    text = MetricsRenderer(lambda: models, machine).render().decode()
    assert text.endswith("\n")
    return text.splitlines()


def series_of(lines: list[str]) -> set[str]:
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


def recorded_models(theirs: set[str]) -> list[Model]:
    """The models that the recorded server had."""
    pattern = re.compile(r'nv_inference_count\{.*model="(\w+)",version="(\d+)"\}')
    models = [
        Model(match[1], int(match[2]), metric_tags={"team": "a b"} if match[1] == "tags" else {})
        for series in theirs
        if (match := pattern.fullmatch(series))
    ]
    assert len(models) == 13
    return models


def without_ours(lines: list[str]) -> list[str]:
    """Without the metrics that Triton doesn't have."""
    return [line for line in lines if "naiad_" not in line]


def recorded_lines(name: str = "metrics_after.txt") -> list[str]:
    return [
        line
        for line in (RECORDED / name).read_text().splitlines()
        if not line.startswith("# golden") and not any(name in line for name in NOT_OURS)
    ]


def test_headers_are_tritons_in_its_order() -> None:
    lines = without_ours(render(with_machine=True))
    ours = [line for line in lines if line.startswith("#")]
    assert ours == [line for line in recorded_lines() if line.startswith("#")]


def test_series_are_tritons() -> None:
    theirs = series_of(recorded_lines())
    models = recorded_models(theirs)
    ours = series_of(without_ours(render(*models, with_machine=True)))
    # This model was unloaded. Triton keeps its failures on show, with us all its series go.
    assert theirs - ours == {
        f'nv_inference_request_failure{{model="fixed4",reason="{reason}",version="1"}}'
        for reason in FailureReason
    }
    assert ours <= theirs


def test_values_are_those_of_the_statistics() -> None:
    model = Model("m", 3)
    statistics = model.statistics
    statistics.success.add(5_500_999, 4)
    statistics.queue.add(1_999)
    statistics.inference_count = 13
    statistics.execution_count = 5
    statistics.failures[FailureReason.BACKEND] = 2
    statistics.pending_count = 7
    lines = render(model)
    labels = '{model="m",version="3"}'
    assert f"nv_inference_request_success{labels} 4" in lines
    assert f"nv_inference_request_duration_us{labels} 5500" in lines
    assert f"nv_inference_queue_duration_us{labels} 1" in lines
    assert f"nv_inference_count{labels} 13" in lines
    assert f"nv_inference_exec_count{labels} 5" in lines
    assert f"nv_inference_pending_request_count{labels} 7" in lines
    failures = 'nv_inference_request_failure{model="m",reason="%s",version="3"} %d'
    assert failures % ("BACKEND", 2) in lines
    assert failures % ("REJECTED", 0) in lines


@pytest.mark.parametrize("value", ['a "b"', "back\\slash", "two\nlines", "\N{SNOWMAN}"])
def test_prometheus_reads_back_any_label(value: str) -> None:
    model = Model("m", metric_tags={"the-team": value})
    text = MetricsRenderer(lambda: [model]).render().decode()
    families = list(text_string_to_metric_families(text))
    samples = [sample for family in families for sample in family.samples]
    assert samples
    assert all(sample.labels["_the_team"] == value for sample in samples)


def test_models_of_one_name_are_told_apart_by_their_namespace() -> None:
    lines = render(Model("m", namespace="/first"), Model("m", namespace="/second"))
    for namespace in ("/first", "/second"):
        labels = f'{{model="m",namespace="{namespace}",version="1"}}'
        assert f"nv_inference_request_success{labels} 0" in lines


def test_machine_metrics() -> None:
    lines = render(with_machine=True)
    assert "nv_cpu_utilization 0.0" in lines
    assert "nv_cpu_memory_total_bytes 2097152" in lines
    assert "nv_cpu_memory_used_bytes 1572864" in lines
    assert not [line for line in render() if "nv_cpu" in line]


def cached_model(name: str, hits: int, misses: int) -> Model:
    model = Model(name)
    model.statistics.is_cached = True
    model.statistics.cache_hit.add(hits * 2000, hits)
    model.statistics.cache_miss.add(misses * 3000, misses)
    return model


def test_metrics_of_a_response_cache_are_tritons() -> None:
    models = [cached_model("cached", 4, 2), Model("cached_off"), cached_model("cached_dyn", 1, 1)]
    machine = MachineMonitor(StoppedClock(), 1, PROC.__getitem__)
    cache = CacheStatistics(1000, used_bytes=250, entry_count=3, hit_count=5, miss_count=3)
    text = MetricsRenderer(lambda: models, machine, cache=cache).render().decode()
    ours = without_ours(text.splitlines())
    theirs = recorded_lines("metrics_after_cache.txt")
    assert [line for line in ours if line.startswith("#")] == [
        line for line in theirs if line.startswith("#")
    ]
    assert series_of(ours) == series_of(theirs)
    for line in theirs:
        if line.startswith("nv_cache_num") and "model=" in line:
            assert line in ours
    labels = '{model="cached",version="1"}'
    assert f"nv_cache_hit_duration_per_model{labels} 8" in ours
    assert f"nv_cache_miss_duration_per_model{labels} 6" in ours
    assert "nv_cache_util 0.25" in ours
    assert "nv_cache_num_lookups 8" in ours


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("metrics_after_summary_latencies.txt", DEFAULT_TARGETS),
        (
            "metrics_after_summary_quantiles.txt",
            (QuantileTarget(0.5, 0.05), QuantileTarget(0.9, 0.01)),
        ),
    ],
)
def test_summaries_are_tritons(name: str, targets: tuple[QuantileTarget, ...]) -> None:
    recorded = recorded_lines(name)
    theirs = {series for series in series_of(recorded) if "summary" in series}
    models = recorded_models(series_of(recorded))
    for model in models:
        model.statistics.summaries = LatencySummaries(targets, StoppedClock())
    lines = render(*models)
    assert {series for series in series_of(lines) if "summary" in series} == theirs
    for line in recorded:
        if line.startswith("#") and "summary" in line:
            assert line in lines


def test_values_of_a_summary_are_the_windows_its_count_and_sum_those_of_all_time() -> None:
    model = Model("m")
    statistics = model.statistics
    statistics.queue.add(5_001_999, 7)
    lines = render(model)
    assert not [line for line in lines if "summary" in line]
    statistics.summaries = LatencySummaries((QuantileTarget(0.5, 0.05),), StoppedClock())
    series = 'nv_inference_queue_summary_us{model="m",version="1",quantile="0.5"}'
    assert f"{series} NaN" in render(model)
    for us in (1, 2, 3):
        statistics.summaries.add_request(0, us * 1000, 0)
    lines = render(model)
    assert f"{series} 2" in lines
    assert 'nv_inference_queue_summary_us_count{model="m",version="1"} 7' in lines
    assert 'nv_inference_queue_summary_us_sum{model="m",version="1"} 5001' in lines


def test_summaries_of_a_cached_model_are_tritons() -> None:
    cached, plain = cached_model("cached", 4, 2), Model("plain")
    for model in (cached, plain):
        model.statistics.summaries = LatencySummaries(DEFAULT_TARGETS, StoppedClock())
        model.statistics.summaries.cache_miss.add(3_000_000)
    lines = render(cached, plain)
    counts = [line for line in lines if "request_summary_us_count" in line]
    assert counts == ['nv_inference_request_summary_us_count{model="plain",version="1"} 0']
    labels = '{model="cached",version="1"}'
    assert f"nv_cache_hit_summary_per_model_count{labels} 4" in lines
    assert f"nv_cache_hit_summary_per_model_sum{labels} 8" in lines
    assert f"nv_cache_miss_summary_per_model_count{labels} 2" in lines
    series = 'nv_cache_miss_summary_per_model{model="cached",version="1",quantile="0.99"}'
    assert f"{series} 3000" in lines
    assert not [line for line in lines if "nv_cache" in line and "plain" in line]
    # With nothing but cached models, not even the header is there.
    assert not [line for line in render(cached) if "nv_inference_request_summary" in line]


def test_first_responses_are_a_histogram_in_tritons_form() -> None:
    model, other = Model("m"), Model("other")
    assert not [line for line in render(model) if "first_response" in line]
    for measured, bounds in ((model, (-1.0, 0.0, 1.0, 2.5)), (other, (100.0, 500.0))):
        histogram = measured.statistics.first_responses = LatencyHistogram(bounds)
        for ns in (0, 900_000, 2_600_000):
            histogram.add(ns)
    lines = [line for line in render(model, other) if "first_response" in line]
    name = "nv_inference_first_response_histogram_ms"
    assert lines[:2] == [
        f"# HELP {name} Duration from request to first response in milliseconds",
        f"# TYPE {name} histogram",
    ]
    assert lines[2:9] == [
        f'{name}_bucket{{model="m",version="1",le="-1"}} 0',
        f'{name}_bucket{{model="m",version="1",le="0"}} 1',
        f'{name}_bucket{{model="m",version="1",le="1"}} 2',
        f'{name}_bucket{{model="m",version="1",le="2.5"}} 2',
        f'{name}_bucket{{model="m",version="1",le="+Inf"}} 3',
        f'{name}_sum{{model="m",version="1"}} 3',
        f'{name}_count{{model="m",version="1"}} 3',
    ]
    assert f'{name}_bucket{{model="other",version="1",le="100"}} 3' in lines
    assert len(lines) == 14


def test_without_sums_of_latencies_everything_else_still_counts() -> None:
    model = cached_model("m", 4, 2)
    model.statistics.success.add(5_000_000, 6)
    lines = MetricsRenderer(lambda: [model], has_latency_sums=False).render().decode().splitlines()
    assert not [line for line in lines if "duration" in line]
    labels = '{model="m",version="1"}'
    assert f"nv_inference_request_success{labels} 6" in lines
    assert f"nv_cache_num_hits_per_model{labels} 4" in lines
    with_sums = [line for line in render(model) if "duration" not in line]
    assert lines == with_sums
    # Triton shows the same families, and without its sums counts nothing at all in them.
    theirs = recorded_lines("metrics_after_no_counter_latencies.txt")
    headers = [line for line in theirs if line.startswith("#") and "nv_cpu" not in line]
    plain = MetricsRenderer(lambda: [Model("m")], has_latency_sums=False).render().decode()
    assert [line for line in without_ours(plain.splitlines()) if line.startswith("#")] == headers


def test_batch_sizes_are_a_histogram() -> None:
    model = Model("m")
    for size, count in ((1, 5), (3, 2), (2000, 1)):
        batch = model.statistics.batches[size] = BatchStatistic()
        batch.compute_infer.add(1, count)
    text = MetricsRenderer(lambda: [model]).render().decode()
    family = next(f for f in text_string_to_metric_families(text) if f.name == "naiad_batch_size")
    assert family.type == "histogram"
    buckets = {
        sample.labels["le"]: sample.value
        for sample in family.samples
        if sample.name.endswith("_bucket")
    }
    assert [buckets[bound] for bound in ("1", "2", "4", "1024", "+Inf")] == [5, 5, 7, 7, 8]
    rest = {sample.name: sample.value for sample in family.samples if "le" not in sample.labels}
    assert rest == {"naiad_batch_size_sum": 2011, "naiad_batch_size_count": 8}


def test_batches_are_counted_by_why_they_were_closed() -> None:
    model = Model("m", 2)
    model.statistics.closings["full"] += 3
    model.statistics.closings["queue_empty"] += 1
    lines = render(model)
    assert "# TYPE naiad_batch_closed_total counter" in lines
    assert 'naiad_batch_closed_total{model="m",reason="full",version="2"} 3' in lines
    assert 'naiad_batch_closed_total{model="m",reason="queue_empty",version="2"} 1' in lines


def test_what_an_adaptive_batcher_chose_is_shown_and_nothing_of_others() -> None:
    tuned = Model(
        "tuned", statistics=ModelStatistics(tuning=BatchTuning(50_000_000, 16, 2_500_000))
    )
    lines = [line for line in render(tuned, Model("plain")) if line.startswith("naiad_batching")]
    assert lines == [
        'naiad_batching_target_latency_us{model="tuned",version="1"} 50000',
        'naiad_batching_max_rows{model="tuned",version="1"} 16',
        'naiad_batching_delay_us{model="tuned",version="1"} 2500',
    ]
    assert not any("naiad_batching" in line for line in render(Model("plain")))
