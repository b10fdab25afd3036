"""Large generate requests, read in another process; see ``large_json``.

What comes back is an inference request's document, so that the server reads its tensors by the same
code. The model's inputs go along with the question, since they decide what the keys mean.
"""

import json
from typing import Any, NoReturn

import numpy as np

from naiad.errors import NaiadError
from naiad.inference.datatypes import BY_NAME, BYTES
from naiad.inference.request import ResponseCallback
from naiad.inference.response import InferResponse
from naiad.inference.tensor import Tensor
from naiad.model_config.signature import ModelSignature, TensorSpec
from naiad.protocol.binary_data import encode_list
from naiad.protocol.generate import decode_generate_request
from naiad.protocol.json_text import Buffer
from naiad.protocol.large_json import DocumentSplitter, SplitDocument
from naiad.protocol.v2_json import DecodedRequest, DecodeLimits, decode_infer_document

_PARAMETERS = "generate_parameters"


def describe_signature(signature: ModelSignature) -> bytes:
    """What ``split_generate`` must know of a model."""
    specs = [[spec.name, spec.datatype.name, spec.dims] for spec in signature.inputs.values()]
    return json.dumps([signature.name, signature.max_batch_size, specs]).encode()


def split_generate(text: Buffer, description: bytes, max_input_bytes: int) -> SplitDocument:
    """Decode a generate request and take its tensors out.

    Args:
        text: the body.
        description: of ``describe_signature``.
        max_input_bytes: of the text, and of all tensors together.
    """
    name, max_batch_size, specs = json.loads(description)
    signature = ModelSignature(
        name,
        max_batch_size,
        [TensorSpec(spec, BY_NAME[datatype], tuple(dims)) for spec, datatype, dims in specs],
        (),
    )
    try:
        request = decode_generate_request(signature, text, max_input_bytes, _no_response, 0)
        splitter = DocumentSplitter()
        return splitter.finish(
            {
                "id": request.request_id,
                "inputs": [_split(splitter, tensor) for tensor in request.inputs.values()],
                _PARAMETERS: request.parameters,
            }
        )
    except NaiadError as error:
        return SplitDocument.of_error(error)


def decode_split_generate(
    signature: ModelSignature,
    document: Any,
    limits: DecodeLimits,
    on_response: ResponseCallback,
    received_ns: int,
) -> DecodedRequest:
    """The request of what ``join_document`` made of ``split_generate``'s answer."""
    decoded = decode_infer_document(signature, document, b"", limits, on_response, received_ns)
    decoded.request.parameters = document[_PARAMETERS]
    return decoded


def _split(splitter: DocumentSplitter, tensor: Tensor) -> dict[str, Any]:
    data: Buffer
    if tensor.datatype is BYTES:
        data = encode_list(tensor.data.ravel().tolist())
    else:
        data = tensor.data.reshape(-1).view(np.uint8).data
    return {
        "name": tensor.name,
        "datatype": tensor.datatype.name,
        "shape": list(tensor.shape),
        "data": splitter.add(data),
    }


def _no_response(response: InferResponse) -> NoReturn:
    raise AssertionError(f"nobody asked for {response}")
