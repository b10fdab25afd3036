"""Which versions of a model a reload need not load, because nothing of theirs has changed.

Source: Triton, ``model_lifecycle.cc`` (AsyncLoad), which compares the same three things.
"""

from collections.abc import Mapping
from typing import Final

from naiad.engine.loader import ModelPlan
from naiad.engine.model import Model
from naiad.model_config.schema import ModelConfig
from naiad.repository.layout import CONFIG_FILENAME, CUSTOM_CONFIG_FOLDER, FolderStamp

_NO_VERSION: Final = ""


def kept_versions(
    serving: Mapping[int, Model], old: ModelPlan | None, new: ModelPlan
) -> dict[int, Model]:
    """The versions that already serve as the new plan would load them.

    Args:
        serving: what serves now, of the old plan.
        old: None where nothing does.
        new: complete.

    Returns:
        Those whose own files are the same, where the files beside the version folders and the
        config are too. Which versions a config selects does not count, nor its instance groups,
        nor its text.
    """
    if old is None or not _may_share(old, new):
        return {}
    before, after = _by_version(old.stamp), _by_version(new.stamp)
    if before.get(_NO_VERSION) != after.get(_NO_VERSION):
        return {}
    return {
        version: model
        for version, model in serving.items()
        if version in new.versions
        and before.get(str(version)) == after.get(str(version))
        and not model.executor.problem()
    }


def _may_share(old: ModelPlan, new: ModelPlan) -> bool:
    # Files that were copied here go with their plan, and ensembles are made of other models.
    has_own_files = old.files is None and new.files is None
    return has_own_files and not new.steps and _core(old.config) == _core(new.config)


def _core(config: ModelConfig) -> ModelConfig:
    core = ModelConfig()
    core.CopyFrom(config)
    core.ClearField("version_policy")
    core.ClearField("instance_group")
    return core


def _by_version(stamp: FolderStamp | None) -> dict[str, list[tuple[str, int, int]]]:
    """The entries of a stamp by version folder, and all others together."""
    found: dict[str, list[tuple[str, int, int]]] = {}
    for entry in stamp or ():
        folder = entry[0].partition("/")[0]
        if folder not in {CONFIG_FILENAME, CUSTOM_CONFIG_FOLDER}:
            found.setdefault(folder if folder.isdecimal() else _NO_VERSION, []).append(entry)
    return found
