"""What a process is told when it starts."""

from pathlib import Path
from typing import Final

import orjson

from naiad.backends.base import ModelSource
from naiad.model_config.instances import InstancePlace
from naiad.model_config.json_format import config_to_json
from naiad.model_config.schema import ModelInstanceGroup

_KINDS: Final = {
    ModelInstanceGroup.KIND_GPU: "GPU",
    ModelInstanceGroup.KIND_MODEL: "MODEL",
}


def start_arguments(source: ModelSource, place: InstancePlace, path: Path) -> dict[str, str]:
    """What ``initialize`` gets, and what the process needs to find the model."""
    config = source.config
    return {
        "model_config": orjson.dumps(config_to_json(config)).decode(),
        "model_instance_kind": _KINDS.get(place.kind, "CPU"),
        "model_instance_name": place.name,
        "model_instance_device_id": str(place.gpu or 0),
        "model_repository": str(source.version_directory.parent),
        "model_version": str(source.version),
        "model_name": source.name,
        "model_directory": str(source.version_directory),
        "model_file": str(path),
        "is_decoupled": str(int(config.model_transaction_policy.decoupled)),
    }
