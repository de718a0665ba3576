"""The scripts of `tidemill completion` in real shells."""

import argparse
import os
import shutil
import subprocess
import sys

import pytest

from stacks import cli


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """Shell -> the file with its script."""
    folder = tmp_path_factory.mktemp("completion")

    def write(shell):
        path = folder / shell
        done = subprocess.run(
            [sys.executable, "-m", "stacks.cli", "completion", shell], capture_output=True, text=True, check=True
        )
        path.write_text(done.stdout)
        return path

    return write


@pytest.fixture(scope="module")
def completed(script):
    """Lines that end where the cursor is -> what bash offers for each, in one shell."""
    path = script("bash")

    def ask(lines):
        calls = [
            f'COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _shtab_tidemill; echo "${{COMPREPLY[*]}}"'
            for line in lines
        ]
        program = "\n".join([f"source {path}", *calls])
        done = subprocess.run(
            ["bash", "--norc"], input=program, cwd=path.parent, capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        return dict(zip(lines, map(str.split, done.stdout.splitlines()), strict=True))

    return ask


def parsers(parser, words=()):
    """The words of each command that takes options, with its parser."""
    below = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    for each in below:
        for name, command in each.choices.items():
            yield (*words, name), command
            yield from parsers(command, (*words, name))


def test_bash_offers_every_command_and_option(completed):
    """Also those of commands below others; nothing that the command does not take."""
    known = dict(parsers(cli._new_parser([])))
    asked = {f"tidemill {' '.join(words)} -": parser for words, parser in known.items()}
    offered = completed([*asked, "tidemill ''", "tidemill gitops ''"])

    assert {line: sorted(offered[line]) for line in asked} == {
        line: sorted(parser._option_string_actions) for line, parser in asked.items()
    }
    assert set(offered["tidemill ''"]) == {words[0] for words in known if len(words) == 1}
    assert set(offered["tidemill gitops ''"]) == {words[1] for words in known if len(words) == 2}


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("tidemill pla", ["plan"]),
        ("tidemill plan spec.yaml --format ''", ["text", "json"]),
        ("tidemill gitops check --fail", ["--fail-on"]),
        ("tidemill completion ''", ["bash", "fish", "zsh"]),
        ("tidemill plan ba", ["bash"]),  # the script's own file, where bash runs
        ("tidemill plan -o ba", ["bash"]),
    ],
)
def test_bash_offers_what_fits(completed, line, offered):
    """Choices after an option that has them, files where any value is right."""
    assert completed([line])[line] == offered


@pytest.mark.skipif(not shutil.which("fish") and not os.environ.get("CI"), reason="fish (Debian's package) is missing")
def test_fish_offers_what_bash_does(script):
    """With what each is for."""
    asked = ["tidemill pla", "tidemill gitops check --ba", "tidemill plan --format "]
    program = "\n".join([f"source {script('fish')}", *(f"complete -C '{line}'" for line in asked)])
    done = subprocess.run(["fish", "--no-config"], input=program, capture_output=True, text=True, check=True)

    words = [line.partition("\t") for line in done.stdout.splitlines()]
    assert [word for word, _, _ in words] == ["plan", "--base", "text", "json"]
    assert words[0][2].startswith("Compile a spec into a plan")


@pytest.mark.skipif(not shutil.which("zsh") and not os.environ.get("CI"), reason="zsh (Debian's package) is missing")
def test_zsh_reads_its_script(script):
    """Its completion system knows the function afterwards."""
    program = f'autoload -U compinit; compinit -D -u; eval "$(cat {script("zsh")})"; echo $_comps[tidemill]'
    done = subprocess.run(["zsh", "-f", "-c", program], capture_output=True, text=True, check=True)

    assert (done.stdout, done.stderr) == ("_shtab_tidemill\n", "")
