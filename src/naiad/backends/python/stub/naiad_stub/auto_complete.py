"""The object that ``auto_complete_config`` gets and returns.

Texts are Triton's; source: python_backend's triton_python_backend_utils.py.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

_INPUT = (("name", "data_type", "dims", "optional"), "'name', 'data_type', 'dims' and 'optional'")
_OUTPUT = (("name", "data_type", "dims"), "'name', 'data_type' and 'dims'")


class ModelConfig:
    """A model config that a model completes.

    Args:
        model_config: as JSON.
    """

    def __init__(self, model_config: str) -> None:
        self._model_config: dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> dict[str, Any]:
        """The config; to be read only."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set it where the config has none, or a smaller one.

        Raises:
            ValueError: the config has a larger one.
        """
        given = self._model_config["max_batch_size"]
        if given > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {given}, but in auto-complete-config "
                f"function for model '{self._name()}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Batch dynamically, where the config says nothing else.

        Raises:
            ValueError: it names another scheduler.
        """
        for scheduler in ("sequence_batching", "ensemble_scheduling"):
            if scheduler in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{scheduler}', but "
                    f"auto-complete-config function for model '{self._name()}' tries to set "
                    "scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: dict[str, Any]) -> None:  # noqa: A002 - Triton's name
        """Add an input, or fill what the config leaves open of one.

        Raises:
            ValueError: it is not whole, or not what the config says.
        """
        self._add("input", input, *_INPUT)

    def add_output(self, output: dict[str, Any]) -> None:
        """Add an output, or fill what the config leaves open of one.

        Raises:
            ValueError: it is not whole, or not what the config says.
        """
        self._add("output", output, *_OUTPUT)

    def set_model_transaction_policy(self, transaction_policy_dict: dict[str, Any]) -> None:
        """Say whether a request may have any number of responses.

        Raises:
            ValueError: the config says otherwise, or the dict holds something else.
        """
        if any(key != "decoupled" for key in transaction_policy_dict):
            raise ValueError(
                "model transaction property in auto-complete-config function for model "
                f"'{self._name()}' contains property other than 'decoupled'."
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        wanted = transaction_policy_dict["decoupled"]
        if policy.get("decoupled", wanted) != wanted:
            raise ValueError(
                "trying to change decoupled property in auto-complete-config for model "
                f"'{self._name()}', which is already set to '{policy['decoupled']}'."
            )
        policy["decoupled"] = wanted

    def _name(self) -> str:
        return str(self._model_config["name"])

    def _add(
        self, kind: str, tensor: dict[str, Any], properties: Iterable[str], listed: str
    ) -> None:
        self._check_properties(kind, tensor, properties, listed)
        tensors = self._model_config.setdefault(kind, [])
        for given in tensors:
            if given["name"] == tensor["name"]:
                self._fill(kind, given, tensor)
                return
        tensors.append(tensor)

    def _check_properties(
        self, kind: str, tensor: dict[str, Any], properties: Iterable[str], listed: str
    ) -> None:
        where = f"in auto-complete-config function for model '{self._name()}'"
        named = f"{kind} '{tensor['name']}'" if "name" in tensor else kind
        if any(key not in properties for key in tensor):
            raise ValueError(f"{named} {where} contains property other than {listed}.")
        for key in ("name", "data_type", "dims"):
            if key not in tensor:
                raise ValueError(f"{named} {where} is missing '{key}' property.")

    def _fill(self, kind: str, given: dict[str, Any], tensor: dict[str, Any]) -> None:
        name = tensor["name"]
        datatype = given.get("data_type", "TYPE_INVALID")
        if datatype not in {"TYPE_INVALID", tensor["data_type"]}:
            raise ValueError(
                f"unable to load model '{self._name()}', configuration expects datatype {datatype} "
                f"for {kind} '{name}', model provides {tensor['data_type']}"
            )
        for key in ("dims", "optional"):
            is_open = not given.get(key) if key == "dims" else key not in given
            if key in tensor and not is_open and given[key] != tensor[key]:
                raise ValueError(
                    f"model '{self._name()}', tensor '{name}': the model expects {key} "
                    f"{tensor[key]} but the model configuration specifies {key} {given[key]}"
                )
        given.update(tensor)
