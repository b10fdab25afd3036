"""On which device each instance of a model runs."""

from typing import Final

import torch

from naiad.errors import UnsupportedError
from naiad.model_config.instances import InstancePlace, list_instances
from naiad.model_config.schema import ModelConfig, ModelInstanceGroup

CPU: Final = torch.device("cpu")


def instance_devices(config: ModelConfig) -> list[torch.device | None]:
    """The device of each instance, in the order of their numbers.

    None for KIND_MODEL: the model chose its devices itself when it was saved, and takes its
    inputs on the CPU.
    """
    return [_device(place) for place in list_instances(config)] or [CPU]


def check_device(model_name: str, device: torch.device | None) -> None:
    """Refuse a GPU that torch can't use here.

    Raises:
        UnsupportedError: with what is missing, and how to run the model without it.
    """
    if device is None or device.type != "cuda":
        return
    missing = _missing(device)
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


def _missing(device: torch.device) -> str:
    # Builds for AMD's GPUs have the same interface under the same names.
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} was built without CUDA; install a build with it"
    count = torch.cuda.device_count()
    if not count:
        return "torch finds no GPU; check the driver and CUDA_VISIBLE_DEVICES"
    if device.index >= count:
        return f"torch finds only {count}, numbered from 0; name one of these in 'gpus'"
    return ""
