"""Needs no config.pbtxt: the model says itself what it takes and gives."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "LENGTH", "data_type": "TYPE_INT64", "dims": [1]})
        config.set_max_batch_size(8)
        config.set_dynamic_batching()
        return config

    def execute(self, requests):
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            lengths = [[len(text.decode())] for (text,) in texts]
            output = pb_utils.Tensor("LENGTH", np.array(lengths, np.int64))
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
