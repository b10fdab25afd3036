"""Which device an instance gets, and what an unusable one is told."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.integration.backends.pytorch_models import fp32, make_source, row, save_script

from naiad.backends.pytorch.backend import PyTorchBackend
from naiad.backends.pytorch.placement import TorchGpus, check_device, instance_devices
from naiad.errors import UnsupportedError
from naiad.model_config.schema import ModelConfig

pytestmark = pytest.mark.slow

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU and a build of torch with CUDA"
)
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


def test_every_instance_has_the_device_of_its_group() -> None:
    config = ModelConfig()
    config.instance_group.add(count=2, kind="KIND_GPU", gpus=[0, 1])
    config.instance_group.add(count=1, kind="KIND_CPU")
    config.instance_group.add(count=1, kind="KIND_GPU", passive=True)
    config.instance_group.add(count=1, kind="KIND_MODEL")
    assert [str(device) for device in instance_devices(config)] == [
        "cuda:0",
        "cuda:0",
        "cuda:1",
        "cuda:1",
        "cpu",
        "None",
    ]
    assert [str(device) for device in instance_devices(ModelConfig())] == ["cpu"]


@needs_no_gpu
def test_without_a_gpu_the_error_says_what_to_change(tmp_path: Path) -> None:
    save_script(tmp_path, torch.nn.Identity())
    source = make_source(tmp_path, fp32("input"), fp32("OUT"))
    source.config.instance_group.add(name="g", count=1, kind="KIND_GPU", gpus=[0])
    with pytest.raises(UnsupportedError) as failure:
        PyTorchBackend().load(source)
    assert failure.value.message.startswith(
        "model 'm' has an instance group of KIND_GPU on GPU 0, and torch "
    )
    assert failure.value.message.endswith(
        "Write 'instance_group [ { kind: KIND_CPU } ]' into its config.pbtxt to run it on the CPU, "
        "or start the server with '--gpu-fallback=cpu'"
    )


def test_the_cpu_and_the_models_own_choice_need_nothing() -> None:
    gpus = TorchGpus(is_supported=False, count=0)
    check_device("m", torch.device("cpu"), gpus)
    check_device("m", None, gpus)


@pytest.mark.parametrize(
    ("gpus", "text"),
    [
        (TorchGpus(is_supported=False, count=0), "was built without CUDA; install a build"),
        (TorchGpus(is_supported=True, count=0), "torch finds no GPU; check the driver and"),
        (TorchGpus(is_supported=True, count=1), "torch finds only 1, numbered from 0; name"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused_with_the_reason(gpus: TorchGpus, text: str) -> None:
    with pytest.raises(UnsupportedError, match=text):
        check_device("m", torch.device("cuda", 1), gpus)
    check_device("m", torch.device("cuda", 1), TorchGpus(is_supported=True, count=2))


@pytest.mark.parametrize("kind", ["KIND_CPU", "KIND_MODEL"])
def test_a_model_runs_on_the_cpu(kind: str, tmp_path: Path) -> None:
    save_script(tmp_path, torch.nn.Linear(2, 2))
    source = make_source(tmp_path, fp32("input"), fp32("OUT"))
    source.config.instance_group.add(name="g", count=1, kind=kind)
    instance = PyTorchBackend().load(source).create_instance(0)
    (output,) = instance.execute({"input": row(1, 2)}, ["OUT"])
    assert output.data.shape == (1, 2)


@needs_gpu
def test_a_model_runs_on_the_gpu(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 2).eval()
    save_script(tmp_path, module)
    source = make_source(tmp_path, fp32("input"), fp32("OUT"), ENABLE_CACHE_CLEANING="true")
    source.config.instance_group.add(name="g", count=1, kind="KIND_GPU", gpus=[0])
    before = torch.cuda.memory_allocated()
    instance = PyTorchBackend().load(source).create_instance(0)
    assert torch.cuda.memory_allocated() > before
    (output,) = instance.execute({"input": row(1, 2)}, ["OUT"])
    with torch.no_grad():
        expected = module(torch.tensor([[1.0, 2.0]])).numpy()
    # TF32 and another order of the sums.
    np.testing.assert_allclose(output.data, expected, atol=1e-3)
