"""Options have one name each, in every command."""

import argparse
import json
import shlex

import pytest

from planner.command.options import EXAMPLES
from planner.problems.errors import CallError
from runtime.gateway.tenants.keys import KeyRing
from stacks import cli
from stacks.live import status_cli


@pytest.fixture
def commands(monkeypatch):
    """Name -> parser of each command of `tidemill`, but those that the runtime parses."""
    parsers = []
    monkeypatch.setattr(cli, "run", lambda parser, _: parsers.append(parser) or 0)
    cli.main([])
    return {name: parser for name, parser in _commands_of(parsers[0]).items() if parser.add_help}


def _commands_of(parser):
    """Name -> parser of each command that was added."""
    (of_all,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    return of_all.choices


def test_no_command_takes_the_beginning_of_an_option(commands):
    """`--slots` is not `--slots-per-gpu`: it is refused, whatever else is missing, with what it begins."""
    tried = 0
    for name, parser in commands.items():
        options = [each for each in parser._option_string_actions if each.startswith("--")]
        for option in options:
            beginning = next((option[:end] for end in range(3, len(option)) if option[:end] not in options), None)
            if beginning is None:
                continue
            with pytest.raises(CallError) as error:
                parser.parse_args([beginning, "1"])
            (problem,) = error.value.findings
            tried += 1

            assert problem.reason == f"{beginning} is not known", name
            assert option in str(problem.fix), name

    assert commands.keys() >= {"validate", "plan", "experts", "render", "up", "down", "status", "doctor"}
    assert tried > 30


def test_every_command_that_takes_a_spec_takes_overlays(commands):
    """`-f` may be repeated, and keeps its order."""
    given = {"spec", "specs", "given", "old"}
    commands |= _commands_of(commands.pop("gitops"))
    readers = {name for name, parser in commands.items() if given & {each.dest for each in parser._actions}}
    overlays = {name: parser._option_string_actions.get("-f") for name, parser in commands.items()}

    assert readers == {name for name, option in overlays.items() if option}
    assert {option.dest for option in overlays.values() if option} == {"overlays"}
    assert readers >= {"validate", "plan", "diff", "render", "up", "down", "status", "doctor", "simulate", "check"}


def test_a_key_s_entry_lets_it_in(capsys, tmp_path):
    """The file that is made of the entry knows the key; a key is never made twice."""
    assert cli.main(["key", "--name", "team-a"]) == 0
    key, entry = (line.partition(": ")[2] for line in capsys.readouterr().out.splitlines())
    assert cli.main(["key", "--format", "json"]) == 0
    other = json.loads(capsys.readouterr().out)
    file = tmp_path / "keys.json"
    file.write_text(f'{{"keys": [{entry}, {json.dumps({"name": "b", "hash": other["hash"]})}]}}')
    ring = KeyRing(file)

    assert [ring.find_account(f"Bearer {each}", "").name for each in (key, other["key"])] == ["team-a", "b"]


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_a_command_that_is_called_is_the_only_one_that_is_added(name, monkeypatch):
    """So that it does not wait for the imports of others."""
    added = []
    monkeypatch.setattr(cli, "run", lambda parser, _: added.extend(_commands_of(parser)) or 0)
    cli.main([name, "--help"])

    assert added == [name]


@pytest.mark.parametrize("command", EXAMPLES)
def test_examples_of_a_command_are_calls_that_it_takes(command, monkeypatch, capsys):
    """Each example in a command's help parses, and stands there."""
    monkeypatch.setattr(cli, "run", lambda parser, words: bool(parser.parse_args(words).command))
    calls = [shlex.split(f"{command} {words}") for words, _ in EXAMPLES[command]]

    assert all(cli.main(call) for call in calls)
    with pytest.raises(SystemExit):
        cli.main([*command.split(), "--help"])
    shown = capsys.readouterr().out
    assert [words for words, _ in EXAMPLES[command] if f"  tidemill {command} {words}".rstrip() not in shown] == []


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_examples(name):
    """A command, or each command below it, shows how it is called."""
    assert [each for each in EXAMPLES if each.split()[0] == name]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["plna"], "did you mean plan?"),
        (["plan", "spec.yaml", "--format", "jsno"], "did you mean json?"),
        (["frobnicate"], "see tidemill --help"),
    ],
)
def test_a_wrong_word_is_answered_with_the_one_that_was_meant(words, meant, capsys):
    """Commands, options and their values; exit 2."""
    assert cli.main(words) == 2
    assert meant in capsys.readouterr().err


def test_a_watched_status_is_shown_when_it_changes(monkeypatch, capsys):
    """Until Ctrl-C, which is no failure; the exit status is the last one's. It is no JSON document."""
    moments = iter([1, 2, 3, "Ctrl-C"])
    said = iter([("starting", 0), ("ready", 0), ("ready", 0), ("failed", 1)])

    def show(_):
        text, status = next(said)
        print(text)
        return status

    def sleep(_):
        if next(moments) == "Ctrl-C":
            raise KeyboardInterrupt

    monkeypatch.setattr(status_cli, "_status_now", show)
    monkeypatch.setattr(status_cli.time, "sleep", sleep)

    assert cli.main(["status", "--watch"]) == 1
    assert capsys.readouterr().out.split() == ["starting", "ready", "failed"]
    assert cli.main(["status", "--watch", "--format", "json"]) == 2
