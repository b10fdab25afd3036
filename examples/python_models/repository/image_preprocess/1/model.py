"""Makes an encoded image the tensor that a classifier takes. Needs Pillow."""

import io

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image, UnidentifiedImageError

SIDE = 32


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        (encoded,) = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
        try:
            image = Image.open(io.BytesIO(encoded)).convert("RGB").resize((SIDE, SIDE))
        except UnidentifiedImageError:
            error = pb_utils.TritonError("IMAGE is no image", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        pixels = np.asarray(image, np.float32).transpose(2, 0, 1) / 255
        return pb_utils.InferenceResponse([pb_utils.Tensor("PIXELS", pixels)])
