"""Answers a request as many times as the number in it says, from a thread, at its own pace."""

import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.threads = []

    def execute(self, requests):
        self.threads = [thread for thread in self.threads if thread.is_alive()]
        for request in requests:
            number = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0]
            thread = threading.Thread(
                target=self.answer, args=(request.get_response_sender(), number)
            )
            thread.start()
            self.threads.append(thread)

    def answer(self, sender, number):
        for _ in range(number):
            if sender.is_cancelled():
                break
            output = pb_utils.Tensor("OUT", np.array([number], np.int32))
            sender.send(pb_utils.InferenceResponse([output]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self):
        for thread in self.threads:
            thread.join()
