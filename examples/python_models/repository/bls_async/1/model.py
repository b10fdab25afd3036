"""Asks two instances of another model side by side."""

import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        return await asyncio.gather(*(self.answer(request) for request in requests))

    async def answer(self, request):
        asked = [
            pb_utils.InferenceRequest(
                model_name="add_sub", requested_output_names=[name], inputs=request.inputs()
            ).async_exec()
            for name in ("OUTPUT0", "OUTPUT1")
        ]
        outputs = []
        for name, response in zip(("SUM", "DIFFERENCE"), await asyncio.gather(*asked)):
            if response.has_error():
                return pb_utils.InferenceResponse(error=response.error())
            outputs.append(pb_utils.Tensor(name, response.output_tensors()[0].as_numpy()))
        return pb_utils.InferenceResponse(outputs)
