"""Decodes a photograph and makes a pyramid of it."""

import cascade
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        encoded = pb_utils.get_input_tensor_by_name(request, "PHOTO").as_numpy()[0]
        try:
            pixels = cascade.decode(encoded)
        except OSError as error:
            invalid = pb_utils.TritonError(
                f"no photograph: {error}", pb_utils.TritonError.INVALID_ARG
            )
            return pb_utils.InferenceResponse(error=invalid)
        canvas, levels = cascade.make_pyramid(pixels)
        outputs = {"PIXELS": pixels, "CANVAS": canvas, "LEVELS": levels}
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, np.ascontiguousarray(data)) for name, data in outputs.items()]
        )
