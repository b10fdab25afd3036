import pytest
from tests.support.configs import normalized

from naiad.errors import InvalidArgumentError
from naiad.model_config.schema import ModelConfig
from naiad.model_config.validate import validate_config


def _step(inputs: str, outputs: str, model: str = "a") -> str:
    maps = [f'input_map {{ key: "I{i}" value: "{name}" }}' for i, name in enumerate(inputs)]
    maps += [f'output_map {{ key: "O{i}" value: "{name}" }}' for i, name in enumerate(outputs)]
    return f'step {{ model_name: "{model}" {" ".join(maps)} }}'


def _ensemble(inputs: str, outputs: str, *steps: str, more: str = "") -> ModelConfig:
    tensors = [f'input {{ name: "{name}" }}' for name in inputs]
    tensors += [f'output {{ name: "{name}" }}' for name in outputs]
    scheduling = f"ensemble_scheduling {{ {' '.join(steps)} }}"
    return normalized(f"{' '.join(tensors)} {scheduling} {more}", artifacts=[])


def test_a_graph_that_flows_from_inputs_to_outputs_passes() -> None:
    validate_config(
        _ensemble("xy", "zw", _step("m", "z"), _step("xy", "mw"))  # order of steps is free
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (_ensemble("x", "z"), "must specify 'step' for ensemble 'm'"),
        (
            _ensemble("x", "z", _step("x", "z", model="")),
            "must specify 'model_name' in step 0 of ensemble 'm'",
        ),
        (
            _ensemble("x", "z", _step("x", "z"), _step("", "w")),
            "must specify 'input_map' in step 1 of ensemble 'm'",
        ),
        (
            _ensemble("x", "z", _step("x", "")),
            "must specify 'output_map' in step 0 of ensemble 'm'",
        ),
        (
            _ensemble("x", "z", _step("x", "z"), _step("x", "z")),
            "ensemble tensor 'z' can appear in an output map only once for ensemble 'm' step 1",
        ),
        (
            _ensemble("xy", "z", _step("x", "z")),
            "ensemble input 'y' for ensemble m' is not used",
        ),
        (
            _ensemble("x", "zw", _step("x", "z")),
            "ensemble output 'w' for ensemble m' is not used",
        ),
        (
            _ensemble("x", "z", _step("xa", "b"), _step("b", "z")),
            "output 'z' for ensemble 'm' is not written: at least one of its depending tensors, "
            "'a', is not connected",
        ),
        (
            _ensemble("x", "z", _step("xb", "a"), _step("a", "b"), _step("b", "z")),
            "output 'z' for ensemble 'm' is not written: at least one of its depending tensors, "
            "'a', is not connected",
        ),
        (
            _ensemble("x", "z", _step("x", "zw")),
            "ensemble tensor 'w' is unused in ensemble 'm'",
        ),
        (
            _ensemble("x", "z", _step("x", "z"), more="model_warmup { }"),
            "model_warmup can not be specified for ensemble 'm'",
        ),
        (
            _ensemble("x", "z", _step("x", "z"), more="optimization { }"),
            "optimization should not be specified for ensemble 'm'",
        ),
        (
            _ensemble("x", "z", _step("x", "z"), more="instance_group { }"),
            "instance group should not be specified for ensemble 'm'",
        ),
        (
            _ensemble("x", "z", _step("x", "z"), more='backend: "python"'),
            "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble",
        ),
    ],
)
def test_a_broken_graph_is_named_in_tritons_words(config: ModelConfig, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        validate_config(config)

    assert caught.value.message == message
