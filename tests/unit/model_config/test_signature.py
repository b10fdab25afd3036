import pytest

from naiad.errors import InvalidArgumentError
from naiad.inference.datatypes import BYTES, FP32
from naiad.model_config.signature import ModelSignature
from naiad.model_config.text_format import parse_config

_CONFIG = """
name: "m" max_batch_size: 4
input [
  { name: "a" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 2, 2 ] } },
  { name: "b" data_type: TYPE_STRING dims: [ -1 ] optional: true allow_ragged_batch: true }
]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } } ]
model_transaction_policy { decoupled: true }
"""


def test_signature_holds_what_a_request_is_checked_against() -> None:
    signature = ModelSignature.from_config(parse_config(_CONFIG, "config"))

    assert (signature.name, signature.max_batch_size, signature.is_decoupled) == ("m", 4, True)
    assert list(signature.inputs) == ["a", "b"]
    assert signature.required_inputs == {"a"}
    first, second, output = *signature.inputs.values(), signature.outputs["y"]
    assert (first.datatype, first.dims, first.reshape, first.is_fixed) == (FP32, (4,), (2, 2), True)
    assert (second.datatype, second.is_fixed, second.is_optional) == (BYTES, False, True)
    assert second.allow_ragged_batch
    assert second.reshape is None
    assert output.reshape == ()


def test_a_config_that_was_not_completed_has_no_signature() -> None:
    config = parse_config('name: "m" input { name: "a" dims: 1 }', "config")

    with pytest.raises(InvalidArgumentError, match="model input 'a' must specify 'data_type'"):
        ModelSignature.from_config(config)
