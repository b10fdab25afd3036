"""Which versions of a model are served."""

from collections.abc import Iterable

from naiad.errors import InvalidArgumentError
from naiad.model_config.schema import ModelConfig


def select_versions(config: ModelConfig, available: Iterable[int]) -> tuple[int, ...]:
    """The versions that the model's version policy picks, ascending.

    Args:
        config: without a policy, the latest version is picked.
        available: the versions that the repository has.

    Raises:
        InvalidArgumentError: the policy picks none.
    """
    ascending = sorted(set(available))
    policy = config.version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        selected = ascending
    elif choice == "specific":
        selected = [version for version in ascending if version in policy.specific.versions]
    else:
        count = policy.latest.num_versions if choice == "latest" else 1
        selected = ascending[-count:] if count else []
    if not selected:
        raise InvalidArgumentError(
            "at least one version must be available under the version policy of model "
            f"'{config.name}'"
        )
    return tuple(selected)
