"""From ONet's answers to faces."""

import cascade
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        answers = cascade.answer(
            given["REFINED"], given["PROBABILITIES"], given["MOVES"], given["POINTS"]
        )
        names = ("FACES", "SCORES", "LANDMARKS")
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, data) for name, data in zip(names, answers, strict=True)]
        )
