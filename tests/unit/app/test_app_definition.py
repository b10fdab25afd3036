"""What the decorator takes, refuses, and makes a config of."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import naiad
from naiad.app.definition import ServedModel, model
from naiad.app.repository import format_config, load_models, write_models
from naiad.errors import InvalidArgumentError
from naiad.model_config.text_format import parse_config


def test_a_decorated_function_stays_callable() -> None:
    @naiad.model(inputs=["x:FP32"], outputs=["y:FP32"])
    def double(x: Any) -> Any:
        return 2 * x

    assert double(3) == 6
    assert double.name == "double"


def test_the_config_says_what_the_decorator_says() -> None:
    @model(
        inputs=["image:FP32:3,-1,224", "label:BYTES:1"],
        outputs=["scores:FP64:10"],
        name="other",
        max_batch_size=8,
        max_delay_ms=1.5,
        instances=2,
    )
    def classify(image: Any, label: Any) -> Any:
        return image, label

    config = parse_config(format_config(classify), "config.pbtxt")
    assert config.name == "other"
    assert config.backend == "python"
    assert config.max_batch_size == 8
    assert [(t.name, list(t.dims)) for t in config.input] == [
        ("image", [3, -1, 224]),
        ("label", [1]),
    ]
    assert [(t.name, list(t.dims)) for t in config.output] == [("scores", [10])]
    assert config.dynamic_batching.max_queue_delay_microseconds == 1500
    assert config.instance_group[0].count == 2
    assert not config.model_transaction_policy.decoupled


def test_what_yields_is_decoupled() -> None:
    @model(inputs=["n:INT32:1"], outputs=["i:INT32:1"])
    class Count:
        def __call__(self, n: Any) -> Any:
            yield from n

    # For a type checker a decorated class is the class.
    served = cast("ServedModel", Count)
    assert served.is_streaming
    config = parse_config(format_config(served), "config.pbtxt")
    assert config.model_transaction_policy.decoupled
    assert not config.HasField("dynamic_batching")


def identity(x: Any) -> Any:
    return x


def stream(x: Any) -> Any:
    yield x


@pytest.mark.parametrize(
    ("options", "function", "text"),
    [
        ({"inputs": ["x:FP31"]}, identity, "'x:FP31' is no tensor"),
        ({"inputs": ["x:BF16"]}, identity, "'x:BF16' is no tensor"),
        ({"inputs": ["x"]}, identity, "'x' is no tensor"),
        ({"inputs": ["x:FP32:3,a"]}, identity, "dims are positive numbers"),
        ({"inputs": ["x:FP32:0"]}, identity, "dims are positive numbers"),
        ({"inputs": ["y:FP32"]}, identity, "don't fit the arguments"),
        ({"inputs": ["x:FP32"], "name": "../x"}, identity, "the name must be"),
        ({"inputs": ["x:FP32"], "outputs": []}, identity, "needs an output"),
        ({"inputs": ["x:FP32"], "instances": 0}, identity, "needs an output"),
        ({"inputs": ["x:FP32"], "concurrency": 0}, identity, "a concurrency of at least 1"),
        (
            {"inputs": ["x:FP32"], "concurrency": 2, "max_batch_size": 2},
            identity,
            "leave concurrency out",
        ),
        ({"inputs": ["x:FP32"], "max_batch_size": 2}, stream, "answers one request a call"),
    ],
)
def test_what_the_decorator_refuses(options: dict[str, Any], function: Any, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        model(**{"outputs": ["y:FP32"], **options})(function)


def test_what_is_async_is_known() -> None:
    async def once(x: Any) -> Any:
        return x

    async def many(x: Any) -> Any:
        yield x

    def served(function: Any) -> ServedModel:
        return model(inputs=["x:FP32"], outputs=["y:FP32"])(function)

    assert [(served(f).is_async, served(f).is_streaming) for f in (identity, stream)] == [
        (False, False),
        (False, True),
    ]
    assert [(served(f).is_async, served(f).is_streaming) for f in (once, many)] == [
        (True, False),
        (True, True),
    ]


HEAD = "import naiad\n"
ONE = '@naiad.model(inputs=["x:FP32"], outputs=["y:FP32"]{})\ndef {}(x):\n    return x\n'


def test_every_model_of_a_file_is_written(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(HEAD + ONE.format("", "a") + ONE.format(", name='c'", "b"))
    assert write_models(path, tmp_path / "repository") == ["a", "c"]
    assert (tmp_path / "repository" / "a" / "config.pbtxt").exists()
    assert str(path) in (tmp_path / "repository" / "c" / "1" / "model.py").read_text()
    found = load_models(path)["a"](np.ones(1))
    assert found.tolist() == [1]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("x = 1", "defines no model"),
        (HEAD + ONE.format("", "a") + ONE.format(", name='a'", "b"), "two models 'a'"),
        ("import nothing_of_that_name", "can't be imported: ModuleNotFoundError"),
    ],
)
def test_what_a_file_can_do_wrong(tmp_path: Path, source: str, text: str) -> None:
    path = tmp_path / "app.py"
    path.write_text(source)
    with pytest.raises(InvalidArgumentError, match=text):
        load_models(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"there is no file .*lost\.py"):
        load_models(tmp_path / "lost.py")
