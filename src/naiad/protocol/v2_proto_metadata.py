"""What a server, a model and a repository say about themselves, as protobuf messages.

Sources: KServe's inference_grpc.md, Triton's extension_model_repository.md and
extension_statistics.md.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from naiad.errors import InvalidArgumentError
from naiad.inference.statistics import DurationStatistic, ModelStatistics
from naiad.model_config.schema import ModelConfig
from naiad.protocol.pb import grpc_service as pb
from naiad.protocol.v2_metadata import IndexDescription, ModelDescription, TensorDescription

_FILE_PREFIX = "file:"


def encode_model_metadata(model: ModelDescription) -> pb.ModelMetadataResponse:
    """The answer to ``ModelMetadata``."""
    return pb.ModelMetadataResponse(
        name=model.name,
        versions=model.versions,
        platform=model.platform,
        inputs=_tensors(model.inputs),
        outputs=_tensors(model.outputs),
    )


def _tensors(
    tensors: Iterable[TensorDescription],
) -> list[pb.ModelMetadataResponse.TensorMetadata]:
    return [
        pb.ModelMetadataResponse.TensorMetadata(
            name=tensor.name, datatype=tensor.datatype, shape=tensor.shape
        )
        for tensor in tensors
    ]


def encode_model_config(config: ModelConfig) -> pb.ModelConfigResponse:
    """The answer to ``ModelConfig``."""
    response = pb.ModelConfigResponse()
    # The messages are of two descriptor pools, so they can only meet as bytes.
    response.config.MergeFromString(config.SerializeToString())
    return response


def encode_statistics(
    models: Iterable[tuple[str, int, ModelStatistics]],
) -> pb.ModelStatisticsResponse:
    """The answer to ``ModelStatistics``, from name, version and counters of each model."""
    return pb.ModelStatisticsResponse(model_stats=[_statistics(*model) for model in models])


def _statistics(name: str, version: int, counted: ModelStatistics) -> pb.ModelStatistics:
    return pb.ModelStatistics(
        name=name,
        version=str(version),
        last_inference=counted.last_inference_ms,
        inference_count=counted.inference_count,
        execution_count=counted.execution_count,
        inference_stats=pb.InferStatistics(
            success=_duration(counted.success),
            fail=_duration(counted.fail),
            queue=_duration(counted.queue),
            compute_input=_duration(counted.compute_input),
            compute_infer=_duration(counted.compute_infer),
            compute_output=_duration(counted.compute_output),
            cache_hit=_duration(counted.cache_hit),
            cache_miss=_duration(counted.cache_miss),
        ),
        batch_stats=[
            pb.InferBatchStatistics(
                batch_size=batch_size,
                compute_input=_duration(batch.compute_input),
                compute_infer=_duration(batch.compute_infer),
                compute_output=_duration(batch.compute_output),
            )
            for batch_size, batch in sorted(counted.batches.items())
        ],
    )


def _duration(statistic: DurationStatistic) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=statistic.count, ns=statistic.ns)


def encode_index(entries: Iterable[IndexDescription]) -> pb.RepositoryIndexResponse:
    """The answer to ``RepositoryIndex``."""
    return pb.RepositoryIndexResponse(
        models=[
            pb.RepositoryIndexResponse.ModelIndex(
                name=entry.name,
                version=entry.version,
                state=entry.state or "",
                reason=entry.reason,
            )
            for entry in entries
        ]
    )


def decode_load_parameters(
    parameters: Mapping[str, pb.ModelRepositoryParameter],
    large: Mapping[str, memoryview] = MappingProxyType({}),
) -> tuple[str | None, Mapping[str, bytes | memoryview]]:
    """The config override, as JSON text, and the file overrides by path of a load request.

    Args:
        parameters: of the request.
        large: parameters of bytes that are not among them, from ``read_load_request``.

    Raises:
        InvalidArgumentError: a parameter that is unknown or of the wrong kind.
    """
    config: str | None = None
    files: dict[str, bytes | memoryview] = {}
    for key in (*parameters, *large):
        choice = "bytes_param"
        if key not in large:
            choice = parameters[key].WhichOneof("parameter_choice")
        if key == "config":
            if choice != "string_param":
                raise _wrong_kind(key, "string_param")
            config = parameters[key].string_param
        elif key.startswith(_FILE_PREFIX):
            if choice != "bytes_param":
                raise _wrong_kind(key, "bytes_param")
            content = large[key] if key in large else parameters[key].bytes_param
            files[key.removeprefix(_FILE_PREFIX)] = content
        else:
            raise InvalidArgumentError(f"unrecognized load parameter '{key}'.")
    return config, files


def _wrong_kind(key: str, expected: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"invalid value type for load parameter '{key}', expected {expected}."
    )


def decode_unload_parameters(parameters: Mapping[str, pb.ModelRepositoryParameter]) -> bool:
    """Whether the models that an ensemble depends on are to be unloaded with it.

    Raises:
        InvalidArgumentError: the parameter is not a boolean; others are ignored, as by Triton.
    """
    key = "unload_dependents"
    if key not in parameters:
        return False
    parameter = parameters[key]
    if parameter.WhichOneof("parameter_choice") != "bool_param":
        raise InvalidArgumentError(
            f"invalid value type for '{key}' parameter, expected bool_param."
        )
    return parameter.bool_param
