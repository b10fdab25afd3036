"""Asks another model, waits, and passes its error on if there is one."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        inner = pb_utils.InferenceRequest(
            model_name="add_sub",
            requested_output_names=["OUTPUT0"],
            inputs=request.inputs(),
            request_id=request.request_id(),
        )
        response = inner.exec()
        if response.has_error():
            return pb_utils.InferenceResponse(error=response.error())
        total = pb_utils.get_output_tensor_by_name(response, "OUTPUT0").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("SUM", total)])
