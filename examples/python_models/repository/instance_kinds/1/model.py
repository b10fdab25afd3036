"""What a model learns of the place that its config gives it."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        # "CPU", "GPU" or "MODEL"; with "GPU", model_instance_device_id says which one.
        self.kind = args["model_instance_kind"]
        self.instance = args["model_instance_name"]

    def execute(self, requests):
        return [self._answer() for _ in requests]

    def _answer(self):
        texts = {"KIND": self.kind, "INSTANCE": self.instance}
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, np.array([text], np.object_)) for name, text in texts.items()]
        )
