"""The ``naiad`` command itself: its help, and the way to each verb."""

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from naiad.cli.main import main

VERBS = main.list_commands(click.Context(main))


def test_the_help_names_each_verb_in_one_line() -> None:
    result = CliRunner().invoke(main, ["--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    listed = result.stdout.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == VERBS
    assert {"export", "serve", "verify", "infer"} <= set(VERBS)
    assert all(len(line) <= 80 and line.endswith(".") for line in listed)


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_explains_itself(verb: str) -> None:
    result = CliRunner().invoke(main, [verb, "--help"])
    assert result.exit_code == 0, result.output
    assert verb in result.stdout
    assert "Usage:" in result.stdout


@pytest.mark.parametrize(
    ("typed", "advice"),
    [
        ("exprot", "No such command 'exprot'; did you mean 'export'?"),
        ("srve", "No such command 'srve'; did you mean 'serve'?"),
        ("train", f"No such command 'train'; there are {', '.join(VERBS)}."),
    ],
)
def test_an_unknown_verb_is_named_beside_the_one_that_was_meant(typed: str, advice: str) -> None:
    result = CliRunner().invoke(main, [typed])
    assert result.exit_code == 2
    assert advice in result.stderr


def completions(*typed: str) -> list[tuple[str, str]]:
    *arguments, incomplete = typed
    found = ShellComplete(main, {}, "naiad", "_NAIAD_COMPLETE").get_completions(
        arguments, incomplete
    )
    return [(item.type, item.value) for item in found]


def test_the_shell_completes_verbs_and_their_options() -> None:
    assert completions("ver") == [("plain", "verify")]
    assert completions("verify", "models", "--jun") == [("plain", "--junit")]


def test_the_shell_completes_options_of_the_server() -> None:
    assert completions("serve", "models", "--http-po") == [("plain", "--http-port")]
    assert ("plain", "--help") in completions("serve", "-")
    # Taken for Triton's sake alone, so nobody has to be led there.
    assert completions("serve", "--enable-peer") == []


@pytest.mark.parametrize("typed", [["mod"], ["--model-repository=mod"], ["--exit-timeout", "mod"]])
def test_what_is_no_option_of_the_server_is_completed_as_a_path(typed: list[str]) -> None:
    assert completions("serve", *typed) == [("file", "mod")]
