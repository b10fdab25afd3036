"""What a server, a model and a repository say about themselves, as JSON.

Sources: KServe's inference_rest.md, Triton's extension_model_repository.md and
extension_statistics.md. Key order is Triton's.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import orjson

from naiad.errors import InvalidArgumentError
from naiad.inference.statistics import BatchStatistic, DurationStatistic, ModelStatistics
from naiad.protocol.json_text import Buffer, MemberError, TooDeepError, parse_json, wrong_type


class TensorDescription(Protocol):
    """One input or output in model metadata."""

    @property
    def name(self) -> str:
        """As in the model config."""
        ...

    @property
    def datatype(self) -> str:
        """The v2 name, for example ``FP32``."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """With a batch axis of -1 where the model has one."""
        ...


class ModelDescription(Protocol):
    """Model metadata."""

    @property
    def name(self) -> str:
        """Of the model."""
        ...

    @property
    def versions(self) -> Sequence[str]:
        """Those that serve, or the one that was asked for."""
        ...

    @property
    def platform(self) -> str:
        """The config's platform, or its backend."""
        ...

    @property
    def inputs(self) -> Sequence[TensorDescription]:
        """In the order of the config."""
        ...

    @property
    def outputs(self) -> Sequence[TensorDescription]:
        """In the order of the config."""
        ...


class IndexDescription(Protocol):
    """One line of the repository index."""

    @property
    def name(self) -> str:
        """Of the model."""
        ...

    @property
    def version(self) -> str:
        """Empty for a model that was never loaded."""
        ...

    @property
    def state(self) -> str | None:
        """None for a model that was never loaded."""
        ...

    @property
    def reason(self) -> str:
        """Why the version is in that state; empty where nothing is to say."""
        ...


def encode_server_metadata(name: str, version: str, extensions: Sequence[str]) -> bytes:
    """The answer to ``GET /v2``."""
    return orjson.dumps({"name": name, "version": version, "extensions": extensions})


def encode_model_metadata(model: ModelDescription) -> bytes:
    """The answer to ``GET /v2/models/M``."""
    return orjson.dumps(
        {
            "name": model.name,
            "versions": model.versions,
            "platform": model.platform,
            "inputs": _tensors(model.inputs),
            "outputs": _tensors(model.outputs),
        }
    )


def _tensors(tensors: Iterable[TensorDescription]) -> list[dict[str, object]]:
    return [
        {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        for tensor in tensors
    ]


def encode_index(entries: Iterable[IndexDescription]) -> bytes:
    """The answer to ``POST /v2/repository/index``; what is empty is left out."""
    return orjson.dumps([_index_entry(entry) for entry in entries])


def _index_entry(entry: IndexDescription) -> dict[str, str]:
    line = {"name": entry.name}
    if entry.version:
        line["version"] = entry.version
    if entry.state is not None:
        line["state"] = entry.state
    if entry.reason:
        line["reason"] = entry.reason
    return line


def encode_statistics(models: Iterable[tuple[str, int, ModelStatistics]]) -> bytes:
    """The answer to ``GET /v2/models/stats``, from name, version and counters of each model.

    Every key is there even where nothing was counted, since perf_analyzer reads them unchecked.
    """
    return orjson.dumps({"model_stats": [_model_statistics(*model) for model in models]})


def _model_statistics(name: str, version: int, counted: ModelStatistics) -> dict[str, object]:
    return {
        "name": name,
        "version": str(version),
        "last_inference": counted.last_inference_ms,
        "inference_count": counted.inference_count,
        "execution_count": counted.execution_count,
        "inference_stats": {
            "success": _duration(counted.success),
            "fail": _duration(counted.fail),
            "queue": _duration(counted.queue),
            "compute_input": _duration(counted.compute_input),
            "compute_infer": _duration(counted.compute_infer),
            "compute_output": _duration(counted.compute_output),
            "cache_hit": _duration(counted.cache_hit),
            "cache_miss": _duration(counted.cache_miss),
        },
        "response_stats": {},
        "batch_stats": [
            _batch(batch_size, counted.batches[batch_size])
            for batch_size in sorted(counted.batches)
        ],
        "memory_usage": [],
    }


def _duration(statistic: DurationStatistic) -> dict[str, int]:
    return {"count": statistic.count, "ns": statistic.ns}


def _batch(batch_size: int, counted: BatchStatistic) -> dict[str, object]:
    return {
        "batch_size": batch_size,
        "compute_input": _duration(counted.compute_input),
        "compute_infer": _duration(counted.compute_infer),
        "compute_output": _duration(counted.compute_output),
    }


def decode_index_request(body: Buffer) -> bool:
    """Whether only models that are ready are asked for.

    Raises:
        InvalidArgumentError: not JSON, or ``ready`` is no boolean.
    """
    text = "Invalid value for 'ready': expected a boolean"
    try:
        ready = _members(body).get("ready", False)
    except TooDeepError:  # an index request has no other member to nest in
        raise MemberError(text) from None
    if type(ready) is not bool:
        raise MemberError(text)
    return ready


def decode_load_request(body: Buffer) -> tuple[str | None, Mapping[str, bytes]]:
    """The config override, as JSON text, and the file overrides by path of a load request.

    Raises:
        InvalidArgumentError: a parameter that is unknown or of the wrong kind.
    """
    config: str | None = None
    files: dict[str, bytes] = {}
    for key, value in _parameters(body).items():
        if key != "config" and not key.startswith("file:"):
            raise InvalidArgumentError(
                f"unexpected error on creating Triton parameter: '{key}' is none of 'config' and "
                "'file:<version>/<path>'"
            )
        if type(value) is not str:
            raise MemberError(f"attempt to access JSON non-string as string: '{key}'")
        if key == "config":
            config = value
        else:
            files[key.removeprefix("file:")] = _decode_base64(key, value)
    return config, files


def _decode_base64(key: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgumentError(f"load parameter '{key}' is not base64") from None


def decode_unload_request(body: Buffer) -> bool:
    """Whether the models that an ensemble depends on are to be unloaded with it.

    Raises:
        InvalidArgumentError: not JSON, or ``unload_dependents`` is no boolean.
    """
    value = _parameters(body).get("unload_dependents", False)
    if type(value) is not bool:
        raise MemberError("attempt to access JSON non-boolean as boolean: 'unload_dependents'")
    return value


def _parameters(body: Buffer) -> dict[str, Any]:
    parameters = _members(body).get("parameters", {})
    if type(parameters) is not dict:
        raise wrong_type("parameters", "object")
    return parameters


def _members(body: Buffer) -> dict[str, Any]:
    """The members of the document; an empty body has none, and neither has what is no object."""
    if len(body) == 0:
        return {}
    document = parse_json(body)
    return document if type(document) is dict else {}
