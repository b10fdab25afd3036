"""Python models for callers that have arrays and no engine."""

from pathlib import Path

import numpy as np
import pytest
from tests.support.python_models import write_model

from naiad.backends.base import ModelSource
from naiad.backends.merged_instance import merge_requests
from naiad.backends.python.backend import PythonBackend
from naiad.errors import InternalError
from naiad.model_config.normalize import normalize_config
from naiad.model_config.signature import ModelSignature
from naiad.model_config.text_format import parse_config

SOURCE = """
class TritonPythonModel:
    def execute(self, requests):
        found = []
        for r in requests:
            x = r.inputs()[0].as_numpy()
            if x[0] < 0:
                raise ValueError("negative")
            if x[0] == 0:
                found.append(pb_utils.InferenceResponse([]))
                continue
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", 2 * x)]))
        return found
"""


@pytest.mark.slow
@pytest.mark.parametrize("in_process", ["true", "false"])
def test_a_batch_is_one_request(tmp_path: Path, in_process: str) -> None:
    extra = f'parameters {{ key: "IN_PROCESS" value {{ string_value: "{in_process}" }} }}'
    write_model(tmp_path, "double", SOURCE, extra=extra)
    config = parse_config((tmp_path / "double" / "config.pbtxt").read_text(), "config.pbtxt")
    normalize_config(config, directory_name="double", artifact_names=["model.py"])
    loaded = PythonBackend().load(ModelSource("double", 1, config, tmp_path / "double" / "1"))
    instance = merge_requests(loaded.create_instance(0), ModelSignature.from_config(config))
    try:
        (output,) = instance.execute({"IN": np.array([1, 2], np.float32)}, ["OUT"])
        assert output.data.tolist() == [2, 4]
        with pytest.raises(InternalError, match="ValueError: negative"):
            instance.execute({"IN": np.array([-1], np.float32)}, ["OUT"])
        with pytest.raises(InternalError, match="did not answer with output 'OUT'"):
            instance.execute({"IN": np.array([0], np.float32)}, ["OUT"])
    finally:
        instance.close()
        loaded.close()
