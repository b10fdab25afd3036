"""Where instances go on a machine with GPUs; nothing here needs one."""

from pathlib import Path

import pytest
from tests.support.repository_builder import RepositoryBuilder

from naiad.backends.registry import BackendRegistry
from naiad.engine.loader import Loader, LoaderOptions, Override
from naiad.repository.model_id import ModelId

MODEL = 'name: "m" backend: "identity" max_batch_size: 0 instance_group [ { GROUP } ]'
TENSORS = """
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


@pytest.mark.parametrize(
    ("group", "kind", "gpus"),
    [
        ("kind: KIND_GPU", "KIND_GPU", [0, 1]),
        ("kind: KIND_GPU gpus: [ 1 ]", "KIND_GPU", [1]),
        ("kind: KIND_AUTO", "KIND_CPU", []),
        ("count: 2", "KIND_CPU", []),
    ],
)
def test_only_a_group_that_names_gpus_gets_them(
    tmp_path: Path, group: str, kind: str, gpus: list[int]
) -> None:
    RepositoryBuilder(tmp_path).add_model(
        "m", MODEL.replace("GROUP", group) + TENSORS, {"{version}/.keep": b""}
    )
    loader = Loader(LoaderOptions((tmp_path,), gpu_ids=(0, 1)), BackendRegistry())
    plan = loader.plan(ModelId("m"), Override())
    loader.complete(plan)
    [made] = plan.config.instance_group
    assert made.Kind.Name(made.kind) == kind
    assert list(made.gpus) == gpus
