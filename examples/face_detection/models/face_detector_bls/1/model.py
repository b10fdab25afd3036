"""The whole cascade as one model, which asks the three networks itself.

It can do what an ensemble can't: where nothing is left, the networks that follow are not asked.
"""

import cascade
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        encoded = pb_utils.get_input_tensor_by_name(request, "PHOTO").as_numpy()[0]
        try:
            answers = self._find(cascade.decode(encoded))
        except OSError as error:
            invalid = pb_utils.TritonError(
                f"no photograph: {error}", pb_utils.TritonError.INVALID_ARG
            )
            return pb_utils.InferenceResponse(error=invalid)
        names = ("FACES", "SCORES", "LANDMARKS")
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, data) for name, data in zip(names, answers, strict=True)]
        )

    def _find(self, pixels):
        canvas, levels = cascade.make_pyramid(pixels)
        boxes = cascade.propose(levels, *self._ask("pnet", canvas))
        if len(boxes):
            boxes = cascade.refine(boxes, *self._ask("rnet", cascade.cut_out(pixels, boxes, 24)))
        if len(boxes):
            return cascade.answer(boxes, *self._ask("onet", cascade.cut_out(pixels, boxes, 48)))
        return tuple(np.empty(shape, np.float32) for shape in ((0, 4), 0, (0, 5, 2)))

    def _ask(self, name, data):
        outputs = ["PROBABILITIES", "MOVES", *(["POINTS"] if name == "onet" else [])]
        response = pb_utils.InferenceRequest(
            model_name=name,
            inputs=[pb_utils.Tensor("INPUT", data)],
            requested_output_names=outputs,
        ).exec()
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        return [
            pb_utils.get_output_tensor_by_name(response, output).as_numpy() for output in outputs
        ]
