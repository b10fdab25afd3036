"""The ONNX project's own tests through the server: a sample here, all of it in the whole matrix."""

import json

import pytest
from tests.conformance.onnx.run_suite import RESULTS, run, sample_cases, select_cases
from tests.conformance.onnx.suite import PATTERN, REQUIREMENT
from tests.support.wheels import require_wheel

SAMPLE = 100


def test_the_kept_results_are_of_a_clean_run() -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))

    assert not results["failed"]
    assert not results["accepted"]
    assert len(results["passed"]) > 1500
    assert results["commit"]
    assert results["machine"]


@pytest.mark.slow
def test_a_sample_passes() -> None:
    require_wheel(REQUIREMENT, PATTERN)
    report = run(sample_cases(SAMPLE))

    assert report.is_clean(), report.faults()
    # Another onnxruntime than that of the kept results may fail a few itself.
    assert len(report.passed) > SAMPLE * 0.9


@pytest.mark.slow
def test_models_with_values_that_no_request_carries_are_refused() -> None:
    require_wheel(REQUIREMENT, PATTERN)
    names = ["identity_sequence", "optional_has_element_tensor_input", "cast_FLOAT_to_INT4"]
    report = run(select_cases(f"^test_({'|'.join(names)})$"))

    assert report.is_clean(), report.faults()
    assert list(report.refused) == sorted(f"test_{name}" for name in names)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.timeout(900)
def test_every_case_passes() -> None:
    require_wheel(REQUIREMENT, PATTERN)
    report = run(select_cases())

    assert report.is_clean(), report.faults()
    assert len(report.passed) > 1400
