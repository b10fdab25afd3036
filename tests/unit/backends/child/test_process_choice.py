"""Which models of a backend run in the server's process."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from naiad.backends.base import LoadedModel, ModelSource
from naiad.backends.child.backend import ChildBackend
from naiad.backends.child.choice import ProcessChoice
from naiad.errors import InternalError, InvalidArgumentError
from naiad.model_config.schema import ModelConfig, ModelParameter


@dataclass
class FakeBackend:
    """Notes what it is asked for and loads nothing."""

    name: str
    asked: list[str] = field(default_factory=list)

    def complete_config(self, source: ModelSource) -> None:
        self.asked.append(f"complete {source.name}")

    def load(self, source: ModelSource) -> LoadedModel:
        self.asked.append(f"load {source.name}")
        raise InternalError(self.name)


def make_source(settings: dict[str, str] | None = None, **parameters: str) -> ModelSource:
    config = ModelConfig(
        name="m",
        backend="pytorch",
        parameters={key: ModelParameter(string_value=value) for key, value in parameters.items()},
    )
    return ModelSource("m", 1, config, Path(), settings or {})


@pytest.fixture
def made() -> list[FakeBackend]:
    """The backends that were made for the server's process."""
    return []


@pytest.fixture
def choice(made: list[FakeBackend]) -> ProcessChoice:
    def make() -> FakeBackend:
        made.append(FakeBackend("server"))
        return made[-1]

    return ProcessChoice(make, FakeBackend("child"))


def where(choice: ProcessChoice, source: ModelSource) -> str:
    with pytest.raises(InternalError) as answer:
        choice.load(source)
    return answer.value.message


@pytest.mark.parametrize(
    ("setting", "parameter", "place"),
    [
        (None, None, "server"),
        ("true", None, "server"),
        ("false", None, "child"),
        ("0", None, "child"),
        (None, "false", "child"),
        ("false", "true", "server"),
        ("true", "false", "child"),
    ],
)
def test_the_model_decides_before_the_server(
    choice: ProcessChoice, setting: str | None, parameter: str | None, place: str
) -> None:
    settings = {} if setting is None else {"in-process": setting}
    parameters = {} if parameter is None else {"IN_PROCESS": parameter}
    assert where(choice, make_source(settings, **parameters)) == place


def test_the_framework_is_imported_for_the_first_model_that_needs_it(
    choice: ProcessChoice, made: list[FakeBackend]
) -> None:
    choice.complete_config(make_source(IN_PROCESS="false"))
    assert not made
    choice.complete_config(make_source())
    choice.complete_config(make_source())
    assert [backend.asked for backend in made] == [["complete m", "complete m"]]


def test_a_setting_that_is_no_boolean_is_refused(choice: ProcessChoice) -> None:
    with pytest.raises(InvalidArgumentError) as failure:
        choice.load(make_source({"in-process": "child"}))
    assert failure.value.message == (
        "--backend-config=pytorch,in-process must be true or false, got 'child'"
    )


@pytest.mark.parametrize("key", ["EXECUTION_ENV_PATH", "EXECUTE_TIMEOUT_MS"])
def test_what_needs_a_process_is_refused_without_one(choice: ProcessChoice, key: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"'{key}' needs a process of its own; remove"):
        choice.load(make_source(None, **{key: "1000"}))


def test_what_needs_the_servers_process_is_refused_without_it() -> None:
    backend = ChildBackend("pytorch", ("ENABLE_WEIGHT_SHARING",))
    with pytest.raises(InvalidArgumentError, match=r"'ENABLE_WEIGHT_SHARING' needs the server's"):
        backend.load(make_source(ENABLE_WEIGHT_SHARING="true"))
    backend.load(make_source(ENABLE_WEIGHT_SHARING="false")).close()
