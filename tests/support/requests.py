"""Requests for tests of everything behind the wire."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from naiad.inference.datatypes import from_dtype
from naiad.inference.request import InferRequest
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor


def tensor(name: str, data: npt.NDArray[Any]) -> Tensor:
    datatype = from_dtype(data.dtype)
    assert datatype is not None
    return Tensor(name, datatype, data.shape, data)


def make_request(
    *tensors: Tensor,
    request_id: str = "",
    output_names: Sequence[str] | None = None,
    on_response: Callable[[InferResponse], None] = lambda response: None,
) -> InferRequest:
    return InferRequest(request_id, {t.name: t for t in tensors}, output_names, on_response)


def rows_request(rows: int, key: object = None) -> InferRequest:
    """A request of ``rows`` rows as validation leaves it."""
    request = make_request(tensor("IN", np.zeros((rows, 1), np.float32)))
    request.batch_size = rows
    request.batch_key = key
    return request
