"""A tiny text generator in the shape of a large one: a token at a time, many prompts at once.

It continues a prompt with the words that followed in the text below. ``max_tokens`` and ``seed``
are parameters of the request.
"""

import asyncio
import json
import random
from collections import defaultdict

import numpy as np
import triton_python_backend_utils as pb_utils

TEXT = """
the model reads the prompt and writes the next word and the next word follows the last word until
the reader has read enough or the model has written all that it can write and then the stream ends
"""


class TritonPythonModel:
    def initialize(self, args):
        words = TEXT.split()
        self.following = defaultdict(list)
        for word, after in zip(words, words[1:]):
            self.following[word].append(after)

    async def execute(self, requests):
        await asyncio.gather(*(self.answer(request) for request in requests))

    async def answer(self, request):
        sender = request.get_response_sender()
        parameters = json.loads(request.parameters())
        choose = random.Random(int(parameters.get("seed", 0))).choice
        (prompt,) = pb_utils.get_input_tensor_by_name(request, "PROMPT").as_numpy()
        word = (prompt.decode().split() or ["the"])[-1]
        for _ in range(int(parameters.get("max_tokens", 16))):
            if sender.is_cancelled() or word not in self.following:
                break
            word = choose(self.following[word])
            token = pb_utils.Tensor("TOKEN", np.array([word], np.object_))
            sender.send(pb_utils.InferenceResponse([token]))
            # Where a real model would compute, the other prompts have their turn.
            await asyncio.sleep(0)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
