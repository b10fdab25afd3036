"""On which device each instance of a model runs."""

from dataclasses import dataclass
from typing import Final

import torch

from naiad.errors import UnsupportedError
from naiad.model_config.instances import InstancePlace, list_instances
from naiad.model_config.schema import ModelConfig, ModelInstanceGroup

CPU: Final = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class TorchGpus:
    """What torch can use.

    Attributes:
        is_supported: torch was built for GPUs.
        count: of those that it finds, numbered from 0.
    """

    is_supported: bool
    count: int


def instance_devices(config: ModelConfig) -> list[torch.device | None]:
    """The device of each instance, in the order of their numbers.

    None for KIND_MODEL: the model chose its devices itself when it was saved, and takes its
    inputs on the CPU.
    """
    return [_device(place) for place in list_instances(config)] or [CPU]


def find_gpus() -> TorchGpus:
    """The GPUs of this machine and this build of torch."""
    # Builds for AMD's GPUs have the same interface under the same names.
    is_supported = torch.version.cuda is not None or torch.version.hip is not None
    return TorchGpus(is_supported, torch.cuda.device_count() if is_supported else 0)


def check_device(model_name: str, device: torch.device | None, gpus: TorchGpus) -> None:
    """Refuse a GPU that torch can't use.

    Args:
        model_name: for the message.
        device: of an instance.
        gpus: that torch can use.

    Raises:
        UnsupportedError: with what is missing, and how to run the model without it.
    """
    if device is None or device.type != "cuda":
        return
    missing = _missing(device, gpus)
    if missing:
        raise UnsupportedError(
            f"model '{model_name}' has an instance group of KIND_GPU on GPU {device.index}, and "
            f"{missing}. Write 'instance_group [ {{ kind: KIND_CPU }} ]' into its config.pbtxt to "
            "run it on the CPU, or start the server with '--gpu-fallback=cpu'"
        )


def _device(place: InstancePlace) -> torch.device | None:
    if place.kind == ModelInstanceGroup.KIND_MODEL:
        return None
    return CPU if place.gpu is None else torch.device("cuda", place.gpu)


def _missing(device: torch.device, gpus: TorchGpus) -> str:
    if not gpus.is_supported:
        return f"torch {torch.__version__} was built without CUDA; install a build with it"
    if not gpus.count:
        return "torch finds no GPU; check the driver and CUDA_VISIBLE_DEVICES"
    if device.index >= gpus.count:
        return f"torch finds only {gpus.count}, numbered from 0; name one of these in 'gpus'"
    return ""
