"""What a config's model_warmup becomes, and what it can not be."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.engine.warmup import WarmupSample, make_samples
from naiad.errors import InternalError, InvalidArgumentError, NaiadError
from naiad.model_config.signature import ModelSignature
from naiad.model_config.text_format import parse_config

CONFIG = """name: "m" max_batch_size: {max_batch_size}
input [ {{ name: "IN" data_type: {data_type} dims: [ {dims} ] }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }} ]
model_warmup [ {{ name: "s" {warmup} }} ]
"""


def make(
    folder: Path,
    entry: str,
    *,
    data_type: str = "TYPE_FP32",
    batch: str = "batch_size: 1",
    dims: str = "2",
    name: str = "IN",
    max_batch_size: int = 8,
) -> list[WarmupSample]:
    value = f"data_type: {data_type} dims: [ {dims} ] {entry}"
    warmup = f'{batch} inputs {{ key: "{name}" value {{ {value} }} }}'
    text = CONFIG.format(data_type=data_type, dims=-1, warmup=warmup, max_batch_size=max_batch_size)
    config = parse_config(text, "config.pbtxt")
    return make_samples(config, ModelSignature.from_config(config), folder)


def data_of(folder: Path, entry: str, **how: Any) -> Any:
    [sample] = make(folder, entry, **how)
    return sample.inputs["IN"].data


def test_zeros_have_a_batch_axis_where_the_model_has_one(tmp_path: Path) -> None:
    assert data_of(tmp_path, "zero_data: true").tolist() == [[0.0, 0.0]]
    assert data_of(tmp_path, "zero_data: true", max_batch_size=0).tolist() == [0.0, 0.0]


def test_random_numbers_are_legal_in_most_models(tmp_path: Path) -> None:
    floats = data_of(tmp_path, "random_data: true", dims="1000")
    assert 0 <= floats.min() < floats.max() < 1
    numbers = data_of(tmp_path, "random_data: true", data_type="TYPE_INT64", dims="1000")
    assert set(numbers.ravel()) == {0, 1}
    assert data_of(tmp_path, "random_data: true", data_type="TYPE_BF16").dtype == np.uint16
    assert data_of(tmp_path, "random_data: true", data_type="TYPE_BOOL").dtype == np.bool_


def test_texts_are_empty(tmp_path: Path) -> None:
    for entry in ("zero_data: true", "random_data: true"):
        assert data_of(tmp_path, entry, data_type="TYPE_STRING").tolist() == [[b"", b""]]


def test_data_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "raw").write_bytes(np.array([1, 2, 3], np.float32).tobytes())
    assert data_of(tmp_path, 'input_data_file: "raw"').tolist() == [[1.0, 2.0]]
    (tmp_path / "warmup" / "texts").write_bytes(b"\x02\0\0\0hi\0\0\0\0")
    texts = data_of(tmp_path, 'input_data_file: "texts"', data_type="TYPE_STRING")
    assert texts.tolist() == [[b"hi", b""]]
    (tmp_path / "warmup" / "bits").write_bytes(b"\x00\x07")
    bits = data_of(tmp_path, 'input_data_file: "bits"', data_type="TYPE_BOOL")
    assert bits.tolist() == [[False, True]]


def test_count_and_batch(tmp_path: Path) -> None:
    [sample] = make(tmp_path, "zero_data: true", batch="batch_size: 4 count: 3")
    assert (sample.request_count, sample.count) == (4, 3)
    assert make(tmp_path, "zero_data: true")[0].count == 1
    assert make(tmp_path, "zero_data: true", batch="") == []


@pytest.mark.parametrize(
    ("entry", "how", "kind", "text"),
    [
        ("zero_data: true", {"dims": "-1"}, InvalidArgumentError,
         "warmup setting expects all variable-size dimensions are specified for input 'IN'"),
        ("", {}, InvalidArgumentError,
         "[request id: <id_unknown>] warmup setting expects input 'IN' to have input_data_type "
         "set"),
        ('input_data_file: "short"', {}, InvalidArgumentError,
         "[request id: <id_unknown>] warmup setting expects 8 bytes, but the data provided from "
         "short only has 3 bytes"),
        ('input_data_file: "short"', {"data_type": "TYPE_STRING"}, InvalidArgumentError,
         "warmup setting expects 2 string elements, each after its length in 4 bytes"),
        ('input_data_file: "none"', {}, InternalError, "failed to open text file for read"),
        ('input_data_file: "../../secret"', {}, InvalidArgumentError, "is outside of"),
        ('input_data_file: "link"', {}, InvalidArgumentError, "is outside of"),
        ("zero_data: true", {"name": "X"}, InvalidArgumentError,
         "[request id: <id_unknown>] expected 1 inputs but got 0 inputs for model 'm'"),
        ("zero_data: true", {"dims": "1099511627776"}, InvalidArgumentError,
         "warmup setting expects 4398046511104 bytes for input 'IN', more than 2147483648"),
        ("zero_data: true", {"batch": "batch_size: 4000000000"}, InvalidArgumentError,
         "warmup sample 's' has a batch of 4000000000 requests of 8 bytes"),
    ],
)  # fmt: skip
def test_what_no_warmup_can_be(
    tmp_path: Path, entry: str, how: dict[str, Any], kind: type[NaiadError], text: str
) -> None:
    folder = tmp_path / "m"
    (folder / "warmup").mkdir(parents=True)
    (folder / "warmup" / "short").write_bytes(b"abc")
    (tmp_path / "secret").write_bytes(bytes(8))
    (folder / "warmup" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(kind) as failure:
        make(folder, entry, **how)
    assert text in failure.value.message
