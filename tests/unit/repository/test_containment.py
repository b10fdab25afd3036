"""What leads out of a model repository, and what only looks so."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from naiad.errors import InvalidArgumentError
from naiad.model_config.schema import ModelConfig
from naiad.repository.containment import check_containment, check_environment
from naiad.repository.layout import scan_model, scan_repository
from naiad.repository.onnx_external_data import external_locations, read_varint


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the models ``m`` and ``other``, and a file beside it."""
    path = tmp_path / "models"
    for name in ("m", "other"):
        (path / name / "1").mkdir(parents=True)
        (path / name / "1" / "model.onnx").write_bytes(b"no tensors")
    (tmp_path / "secret").write_bytes(b"secret")
    return path


def check(repository: Path, config: ModelConfig | None = None) -> None:
    folder = scan_model(repository / "m")
    config = config or ModelConfig()
    config.backend = config.backend or "onnxruntime"
    check_containment(folder, config, folder.versions)


def refusal(repository: Path, config: ModelConfig | None = None) -> str:
    with pytest.raises(InvalidArgumentError) as failure:
        check(repository, config)
    return failure.value.message


def test_a_whole_model_passes(repository: Path) -> None:
    check(repository, ModelConfig(default_model_filename="model.onnx"))
    check(repository, ModelConfig(default_model_filename="../1/model.onnx"))


@pytest.mark.parametrize("name", ["../../other/1/model.onnx", "../../../secret", "/etc/passwd"])
def test_a_model_file_elsewhere(repository: Path, name: str) -> None:
    assert f"path '{name}' is outside of" in refusal(
        repository, ModelConfig(default_model_filename=name)
    )
    assert "is outside of" in refusal(repository, ModelConfig(cc_model_filenames={"8.0": name}))


def test_an_operator_library_elsewhere(repository: Path) -> None:
    config = ModelConfig()
    config.model_operations.op_library_filename.append("../../secret")
    assert "is outside of" in refusal(repository, config)
    config.model_operations.op_library_filename[:] = ["1/ops.so"]
    check(repository, config)


@pytest.mark.parametrize("link", ["1/model.pt", "1/data/weights", "2"])
def test_a_link_out_of_the_repository(repository: Path, link: str) -> None:
    path = repository / "m" / link
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(repository.parent)
    assert f"'{path}' is a link that leads out of the model repository" in refusal(repository)


def test_a_link_within_the_repository_is_fine(repository: Path) -> None:
    (repository / "m" / "1" / "model.pt").symlink_to("../../other/1/model.onnx")
    (repository / "m" / "2").symlink_to("1")
    check(repository)


def test_a_model_folder_that_is_elsewhere(repository: Path) -> None:
    (repository.parent / "outside" / "1").mkdir(parents=True)
    (repository / "linked").symlink_to(repository.parent / "outside")
    folder = next(f for f in scan_repository(repository) if f.name == "linked")
    assert folder.versions == ()
    assert folder.problem.startswith("its folder is a link that leads out of the model repository")


def test_a_repository_may_itself_be_a_link(repository: Path) -> None:
    (repository.parent / "link").symlink_to(repository)
    check(repository.parent / "link")


# ------------------------------------------------------------------ external data of ONNX files


def external_tensor(location: str, name: str = "w") -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="offset", value="0")
    tensor.external_data.add(key="location", value=location)
    return tensor


def model_of(graph: onnx.GraphProto) -> onnx.ModelProto:
    model: onnx.ModelProto = helper.make_model(graph)
    return model


def graph_of(**parts: object) -> onnx.GraphProto:
    graph = onnx.GraphProto(name="g")
    for name, values in parts.items():
        getattr(graph, name).extend(values)
    return graph


def as_initializer(tensor: TensorProto) -> onnx.ModelProto:
    return model_of(graph_of(initializer=[tensor]))


def as_attribute(tensor: TensorProto) -> onnx.ModelProto:
    return model_of(graph_of(node=[helper.make_node("Constant", [], ["c"], value=tensor)]))


def as_attribute_list(tensor: TensorProto) -> onnx.ModelProto:
    node = helper.make_node("Custom", [], ["c"], values=[tensor])
    return model_of(graph_of(node=[node]))


def in_a_branch(tensor: TensorProto) -> onnx.ModelProto:
    inner = graph_of(initializer=[tensor])
    node = helper.make_node("If", ["c"], ["o"], then_branch=inner, else_branch=graph_of())
    return model_of(graph_of(node=[node]))


def as_sparse(tensor: TensorProto) -> onnx.ModelProto:
    graph = graph_of()
    graph.sparse_initializer.add().values.CopyFrom(tensor)
    return model_of(graph)


def as_sparse_attribute(tensor: TensorProto) -> onnx.ModelProto:
    sparse = onnx.SparseTensorProto(indices=tensor)
    return model_of(graph_of(node=[helper.make_node("Constant", [], ["c"], sparse_value=sparse)]))


def in_a_function(tensor: TensorProto) -> onnx.ModelProto:
    model = model_of(graph_of())
    node = helper.make_node("Constant", [], ["c"], value=tensor)
    model.functions.add(name="f", domain="d").node.append(node)
    return model


def in_training(tensor: TensorProto) -> onnx.ModelProto:
    model = model_of(graph_of())
    model.training_info.add().algorithm.initializer.append(tensor)
    return model


PLACES = (
    as_initializer, as_attribute, as_attribute_list, in_a_branch, as_sparse, as_sparse_attribute,
    in_a_function, in_training,
)  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_every_place_of_a_tensor_is_looked_at(
    repository: Path, place: Callable[[TensorProto], onnx.ModelProto]
) -> None:
    file = repository / "m" / "1" / "model.onnx"
    file.write_bytes(place(external_tensor("../../../secret")).SerializeToString())
    assert external_locations(file) == {"../../../secret"}
    assert "the external data '../../../secret' of" in refusal(repository)


@pytest.mark.parametrize("location", ["/etc/passwd", "../weights", "a/../../weights", "link"])
def test_external_data_elsewhere(repository: Path, location: str) -> None:
    folder = repository / "m" / "1"
    (folder / "link").symlink_to(repository / "other" / "1" / "model.onnx")
    (folder / "model.onnx").write_bytes(
        as_initializer(external_tensor(location)).SerializeToString()
    )
    if location == "link":  # it stays in the repository
        check(repository)
        return
    assert "put the data beside the model file" in refusal(repository)


def test_external_data_of_a_file_with_any_name(repository: Path) -> None:
    folder = repository / "m" / "1"
    content = as_initializer(external_tensor("../../../secret")).SerializeToString()
    (folder / "weights.bin").write_bytes(content)
    check(repository)
    config = ModelConfig(default_model_filename="weights.bin")
    assert "external data" in refusal(repository, config)
    (folder / "dir").mkdir()
    (folder / "dir" / "dir").write_bytes(content)
    assert "external data" in refusal(repository, ModelConfig(default_model_filename="dir"))


def test_external_data_beside_the_file_passes(repository: Path) -> None:
    file = repository / "m" / "1" / "model.onnx"
    file.write_bytes(as_initializer(external_tensor("model.onnx.data")).SerializeToString())
    assert external_locations(file) == {"model.onnx.data"}
    check(repository)


def test_a_file_without_external_data_has_none(tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(np.zeros(4, np.float32), "location")
    file = tmp_path / "f"
    file.write_bytes(as_initializer(tensor).SerializeToString())
    assert external_locations(file) == set()
    file.write_bytes(b"")
    assert external_locations(file) == set()


def test_a_file_that_is_cut_off_gives_what_is_there(tmp_path: Path) -> None:
    first, second = external_tensor("a"), external_tensor("location")
    content = model_of(graph_of(initializer=[first, second])).SerializeToString()
    file = tmp_path / "f"
    for length in range(len(content) + 1):
        file.write_bytes(content[:length])
        assert external_locations(file) <= {"a", "location"}
    assert external_locations(file) == {"a", "location"}


def test_a_number_without_an_end_is_no_number() -> None:
    with pytest.raises(IndexError, match="more than 64 bits"):
        read_varint(b"\xff" * 100, 0)
    assert read_varint(b"\xff" * 9 + b"\x01", 0) == (2**64 - 1, 10)


def environment(text: str) -> ModelConfig:
    config = ModelConfig(name="m")
    config.parameters["EXECUTION_ENV_PATH"].string_value = text
    return config


def test_an_environment_of_the_repository(repository: Path) -> None:
    folder = scan_model(repository / "m")
    inside = ("$$TRITON_MODEL_DIRECTORY/env.tar.gz", "$$TRITON_MODEL_DIRECTORY/../env", "")
    for text in (*inside, str(repository / "env")):
        check_environment(folder, environment(text), None)
    check_environment(folder, ModelConfig(name="m"), None)
    (repository / "m" / "link").symlink_to(repository.parent)
    outside = ("$$TRITON_MODEL_DIRECTORY/../../env", "$$TRITON_MODEL_DIRECTORY/link/env", "env")
    for text in (*outside, "/usr", "/", "a\0b"):
        with pytest.raises(InvalidArgumentError) as refusal:
            check_environment(folder, environment(text), None)
        assert f"is outside of the model repository '{repository}'" in refusal.value.message
        assert "--backend-config=python,execution-env-directory=DIR" in refusal.value.message


def test_an_environment_where_the_operator_keeps_them(repository: Path, tmp_path: Path) -> None:
    folder = scan_model(repository / "m")
    allowed = tmp_path / "environments"
    (allowed / "torch").mkdir(parents=True)
    (allowed / "link").symlink_to("/usr")
    check_environment(folder, environment(str(allowed / "torch")), allowed)
    check_environment(folder, environment("$$TRITON_MODEL_DIRECTORY/env"), allowed)
    for path in (allowed / ".." / "secret", allowed / "link", tmp_path):
        with pytest.raises(InvalidArgumentError, match=r"put it under '.*environments'"):
            check_environment(folder, environment(str(path)), allowed)
