"""Models as plain functions: ``naiad serve examples/python_models/app.py``."""

import numpy as np

import naiad


@naiad.model(inputs=["x:FP32:4"], outputs=["mean:FP32:1", "spread:FP32:1"], max_batch_size=16)
def describe(x):
    """Rows of all requests that came together, and one row of answer for each."""
    return x.mean(axis=1, keepdims=True), np.ptp(x, axis=1, keepdims=True)


@naiad.model(inputs=["text:BYTES:1"], outputs=["word:BYTES:1"])
def words(text, parameters):
    """A stream: each word when it is ready, at most ``max_words`` of them."""
    found = text[0].decode().split()
    for word in found[: parameters.get("max_words", len(found))]:
        yield np.array([word.upper().encode()])


@naiad.model(inputs=["x:INT64:1"], outputs=["total:INT64:1"], instances=1)
class Adder:
    """Made once in each process, so it can keep things."""

    def __init__(self):
        self.total = np.zeros(1, np.int64)

    def __call__(self, x):
        self.total = self.total + x
        return self.total
