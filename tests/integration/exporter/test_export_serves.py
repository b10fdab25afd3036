"""What is exported loads in the server's own backends, and answers there as the model does."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from naiad.backends.base import ModelSource
from naiad.backends.registry import BackendRegistry
from naiad.exporter.agreement import compare_case
from naiad.exporter.export import FORMATS, FormatName, export
from naiad.exporter.options import ExportOptions
from naiad.model_config.text_format import parse_config
from naiad.repository.golden import read_cases, read_manifest

pytestmark = pytest.mark.slow


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(
        self,
        input: torch.Tensor,  # noqa: A002  # a name that graphs have to change
        bias: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        scores: torch.Tensor = self.linear(input) + bias
        return {"linear": scores, "best": scores.amax(1), "passed": bias}


@pytest.mark.parametrize("form", FORMATS)
def test_the_backend_answers_every_golden_case(tmp_path: Path, form: FormatName) -> None:
    torch.manual_seed(0)
    result = export(
        Classifier(), (torch.randn(1, 4), torch.randn(1, 1)), name="net", repository=tmp_path,
        format=form, options=ExportOptions(labels=["a", "b", "c"]),
    )  # fmt: skip
    text = (result.path.parent / "config.pbtxt").read_text()
    config = parse_config(text, "config.pbtxt")
    source = ModelSource("net", result.version, config, result.path)
    backend = BackendRegistry().get(config.backend)
    loaded = backend.load(source)
    instance: Any = loaded.create_instance(0)
    manifest = read_manifest(result.path)
    for case in read_cases(result.path):
        tensors = instance.execute(case.inputs, list(case.outputs))
        actual: Mapping[str, Any] = {tensor.name: tensor.data for tensor in tensors}
        datatypes = {record.name: record.datatype for record in manifest.outputs}
        found = compare_case(case, actual, datatypes, manifest.tolerances)
        assert [difference for difference in found if not difference.equal] == []
    instance.close()
    loaded.close()
