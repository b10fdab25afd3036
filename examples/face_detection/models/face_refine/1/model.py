"""From RNet's answers to the cut-outs that ONet looks at."""

import cascade
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        boxes = cascade.refine(given["BOXES"], given["PROBABILITIES"], given["MOVES"])
        crops = cascade.cut_out(given["PIXELS"], boxes, 48)
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("REFINED", boxes.astype(np.float64)),
                pb_utils.Tensor("CROPS", crops),
            ]
        )
