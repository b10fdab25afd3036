"""The page for those who come from other servers: its examples are served and asked."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.served_repository import Server, running_server

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "migrating.md"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    path = tmp_path_factory.mktemp("migrated") / "app.py"
    path.write_text("\n\n".join(blocks))
    with running_server(path) as running:
        yield running


def test_the_class_from_litserve(server: Server) -> None:
    answer = json.loads(server.post("/v2/models/Scorer/generate", {"x": [3, 4]}))
    assert answer["score"] == 10


def test_the_function_from_pytriton(server: Server) -> None:
    tensor = {"name": "data", "datatype": "FP32", "shape": [2, 3], "data": list(range(6))}
    answer = json.loads(server.post("/v2/models/Linear/infer", {"inputs": [tensor]}))
    assert answer["outputs"][0]["data"] == [1, 3, 5, 7, 9, 11]


def test_the_handler_from_torchserve(server: Server) -> None:
    body = {"data": "Good good bad", "factor": 3}
    answer = json.loads(server.post("/v2/models/Handler/generate", body))
    assert json.loads(answer["prediction"]) == {"score": 3}
