"""The cascade of real networks finds the face in a photograph, as an ensemble and by one model."""

import io
import json
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from tests.support.served_repository import Server, running_server
from tests.support.wheels import require_wheel

pytestmark = pytest.mark.full

EXAMPLE = Path(__file__).parents[2] / "examples" / "face_detection"
PHOTO = EXAMPLE / "assets" / "astronaut.jpg"
MODELS = ("face_detector", "face_detector_bls")
Answer = dict[str, npt.NDArray[Any]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    weights = require_wheel("facenet-pytorch==2.6.0", "facenet_pytorch/data/*")
    repository = tmp_path_factory.mktemp("faces") / "repository"
    command = [sys.executable, str(EXAMPLE / "build.py"), str(weights), str(repository)]
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    with running_server(repository) as running:
        yield running


def find_faces(server: Server, model: str, photo: bytes) -> Answer:
    """What one request over HTTP answers."""
    tensor = {
        "name": "PHOTO",
        "datatype": "BYTES",
        "shape": [1],
        "parameters": {"binary_data_size": len(photo) + 4},
    }
    head = json.dumps({"inputs": [tensor]}).encode()
    body = head + len(photo).to_bytes(4, "little") + photo
    text = server.post_binary(f"/v2/models/{model}/infer", body, header_length=len(head))
    return {
        output["name"]: np.array(output["data"]).reshape(output["shape"])
        for output in json.loads(text)["outputs"]
    }


@pytest.mark.parametrize("model", MODELS)
def test_the_face_is_found(server: Server, model: str) -> None:
    answer = find_faces(server, model, PHOTO.read_bytes())
    (box,) = answer["FACES"]
    # Where Eileen Collins' face is in her portrait of 256 by 256 pixels.
    assert np.abs(box - [90, 31, 133, 88]).max() < 4, box
    assert answer["SCORES"][0] > 0.99
    left_eye, right_eye, nose, left_mouth, right_mouth = answer["LANDMARKS"][0]
    assert left_eye[0] < nose[0] < right_eye[0]
    assert max(left_eye[1], right_eye[1]) < nose[1] < min(left_mouth[1], right_mouth[1])


def test_both_ways_are_alike(server: Server) -> None:
    photo = PHOTO.read_bytes()
    ensemble, asking = (find_faces(server, model, photo) for model in MODELS)
    for name, found in ensemble.items():
        # The same networks and the same cut-outs: not a bit is different.
        np.testing.assert_array_equal(found, asking[name])


def test_both_ways_over_grpc(server: Server) -> None:
    grpcclient = pytest.importorskip("tritonclient.grpc")
    tensor = grpcclient.InferInput("PHOTO", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([PHOTO.read_bytes()], np.object_))
    with grpcclient.InferenceServerClient(server.grpc_address) as client:
        boxes = [client.infer(model, [tensor]).as_numpy("FACES") for model in MODELS]
    np.testing.assert_array_equal(*boxes)
    assert boxes[0].shape == (1, 4)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("size", [(64, 64), (8, 8)])
def test_there_may_be_no_face(server: Server, model: str, size: tuple[int, int]) -> None:
    encoded = io.BytesIO()
    Image.new("RGB", size, (90, 120, 90)).save(encoded, "PNG")
    answer = find_faces(server, model, encoded.getvalue())
    shapes = {name: found.shape for name, found in answer.items()}
    assert shapes == {"FACES": (0, 4), "SCORES": (0,), "LANDMARKS": (0, 5, 2)}


@pytest.mark.parametrize("model", MODELS)
def test_what_is_no_photograph_is_refused(server: Server, model: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        find_faces(server, model, b"words")
    assert refused.value.code == 400
    assert "no photograph" in refused.value.read().decode()
    refused.value.close()
