"""Load requests over gRPC, with files that stay in the message."""

import pytest

from naiad.errors import InternalError
from naiad.protocol.load_message import read_load_request
from naiad.protocol.pb.grpc_service import ModelRepositoryParameter, RepositoryModelLoadRequest
from naiad.protocol.v2_proto_metadata import decode_load_parameters

LARGE = bytes(range(256)) * 400


def load_message(**parameters: ModelRepositoryParameter) -> bytes:
    request = RepositoryModelLoadRequest(repository_name="r", model_name="m")
    for key, value in parameters.items():
        request.parameters[key.replace("_", ":")].CopyFrom(value)
    return request.SerializeToString()


def test_large_files_are_views_of_the_message() -> None:
    data = b"12345" + load_message(
        config=ModelRepositoryParameter(string_param="{}"),
        file_a=ModelRepositoryParameter(bytes_param=LARGE),
        file_b=ModelRepositoryParameter(bytes_param=b"small"),
    )
    request, large = read_load_request(data, 5)
    assert (request.repository_name, request.model_name) == ("r", "m")
    assert set(large) == {"file:a"}
    assert large["file:a"].obj is data
    assert decode_load_parameters(request.parameters, large) == (
        "{}",
        {"a": LARGE, "b": b"small"},
    )


@pytest.mark.parametrize(
    "parameter",
    [
        ModelRepositoryParameter(string_param="x" * len(LARGE)),
        ModelRepositoryParameter.FromString(
            ModelRepositoryParameter(bytes_param=LARGE).SerializeToString()
            + ModelRepositoryParameter(bool_param=True).SerializeToString()
        ),
    ],
)
def test_what_is_no_plain_file_is_left_to_protobuf(parameter: ModelRepositoryParameter) -> None:
    data = load_message(config=parameter)
    request, large = read_load_request(data, 0)
    assert not large
    assert request == RepositoryModelLoadRequest.FromString(data)


def test_of_a_file_that_is_given_twice_the_last_counts() -> None:
    first = load_message(file_a=ModelRepositoryParameter(bytes_param=LARGE))
    second = load_message(file_a=ModelRepositoryParameter(bytes_param=LARGE[:-1]))
    request, large = read_load_request(first + second, 0)
    assert not request.parameters
    assert large == {"file:a": LARGE[:-1]}


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"\x1a\xff\xff\x7f",
        load_message(file_a=ModelRepositoryParameter(bytes_param=LARGE))[:-1],
        b"\x0a\x01\xff",
    ],
)
def test_what_is_no_message(data: bytes) -> None:
    with pytest.raises(InternalError, match="Unable to parse request"):
        read_load_request(data, 0)
