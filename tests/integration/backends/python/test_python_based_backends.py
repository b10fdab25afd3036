"""A backend that is itself a model of the Python backend, for all models that name it."""

from pathlib import Path

import pytest
from tests.support.python_models import ask, floats
from tests.support.repository_builder import RepositoryBuilder

from naiad.backends.registry import BackendRegistry
from naiad.clock import SystemClock
from naiad.engine.engine import Engine, EngineOptions, ModelControlMode
from naiad.engine.loader import Loader, LoaderOptions
from naiad.errors import InvalidArgumentError

pytestmark = pytest.mark.slow

BACKEND = """
import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]})
        return config

    def initialize(self, args):
        path = os.path.join(args["model_repository"], args["model_version"], "factor.json")
        self.factor = np.float32(json.load(open(path)))

    def execute(self, requests):
        return [pb_utils.InferenceResponse([
            pb_utils.Tensor("OUT", r.inputs()[0].as_numpy() * self.factor)]) for r in requests]
"""


def make_engine(path: Path) -> Engine:
    registry = BackendRegistry(path / "backends")
    loader = Loader(LoaderOptions((path / "models",)), registry)
    return Engine(EngineOptions("naiad", "1", ModelControlMode.EXPLICIT), loader, SystemClock())


async def test_models_share_a_backend_and_bring_their_own_files(tmp_path: Path) -> None:
    backend = tmp_path / "backends" / "scale" / "model.py"
    backend.parent.mkdir(parents=True)
    backend.write_text(BACKEND)
    (tmp_path / "models").mkdir()
    builder = RepositoryBuilder(tmp_path / "models")
    for name, factor in (("double", 2), ("triple", 3)):
        builder.add_model(name, 'backend: "scale"', {"{version}/factor.json": str(factor)})
    engine = make_engine(tmp_path)
    await engine.start()
    try:
        for name, factor in (("double", 2), ("triple", 3)):
            await engine.load_model(name, None, {})
            response = await ask(engine, name, floats(1, 5))
            assert response.outputs[0].data.tolist() == [factor, 5 * factor]
            assert engine.model_metadata(name).inputs[0].name == "IN"
    finally:
        await engine.stop()


def test_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "scale").mkdir()
    (tmp_path / "scale" / "model.py").touch()
    (tmp_path / "empty").mkdir()
    registry = BackendRegistry(tmp_path)
    assert "scale" in registry.names
    assert registry.module_name("scale") == str(tmp_path / "scale" / "model.py")
    registry.check("scale")
    for name in ("empty", "../scale", "nope"):
        with pytest.raises(InvalidArgumentError, match="unable to find backend library"):
            registry.get(name)
