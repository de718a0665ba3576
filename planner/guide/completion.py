"""Scripts that complete the command line in bash, zsh and fish, written from the parsers themselves.

One script has all commands, options and choices, so that a key press starts no Python. The three scripts ask the same
two questions: which command do the words before the cursor name, and does the last of them take a value? Where any
value is right, the shell offers files.
"""

import argparse
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PROGRAM = "tidemill"


@dataclass(frozen=True)
class Option:
    """An option: how it is spelt, what for, and the values that it takes: None for a flag, () for any."""

    spellings: tuple[str, ...]
    meaning: str
    values: tuple[str, ...] | None


@dataclass(frozen=True)
class Command:
    """A command by its words, `gitops check`: its options, the commands below it, and words that it takes as such."""

    words: str
    meaning: str
    options: tuple[Option, ...]
    choices: tuple[str, ...]
    below: tuple["Command", ...]

    @property
    def all(self) -> Iterator["Command"]:
        """Yield this command and all below it."""
        yield self
        for each in self.below:
            yield from each.all


def completion_script(shell: str, parser: argparse.ArgumentParser) -> str:
    """Return the script for a shell of `SHELLS` that completes all commands of `parser`."""
    return "\n".join(SHELLS[shell](list(_read_command(parser, "", "").all))) + "\n"


def _read_command(parser: argparse.ArgumentParser, words: str, meaning: str) -> Command:
    options, choices, below = [], list[str](), list[Command]()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            told = {each.dest: each.help or "" for each in action._choices_actions}
            below = [
                _read_command(each, f"{words} {name}".strip(), told[name]) for name, each in action.choices.items()
            ]
        elif action.option_strings:
            options.append(Option(tuple(action.option_strings), _sentence(action), _values(action)))
        else:
            choices += map(str, action.choices or ())
    return Command(words, meaning, tuple(options), tuple(choices), tuple(below))


def _values(action: argparse.Action) -> tuple[str, ...] | None:
    return None if action.nargs == 0 else tuple(map(str, action.choices or ()))


def _sentence(action: argparse.Action) -> str:
    """Return what an option is for, up to the first semicolon; argparse writes a percent sign twice."""
    return (action.help or "").partition(";")[0].replace("%%", "%")


def _bash(commands: Sequence[Command]) -> Iterator[str]:
    yield f'# bash completion of {PROGRAM}: eval "$({PROGRAM} completion bash)"'
    yield f"_{PROGRAM}() {{"
    yield '    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD - 1]}"'
    yield '    local command="" found="" word'
    yield '    for word in "${COMP_WORDS[@]:1:COMP_CWORD - 1}"; do'
    yield from _walk(commands)
    yield "    done"
    yield '    [[ $previous == "=" ]] && previous="${COMP_WORDS[COMP_CWORD - 2]}"  # bash parts --format=json in three'
    yield '    [[ $current == "=" ]] && previous="${COMP_WORDS[COMP_CWORD - 1]}" current=""'
    yield '    case "$command/$previous" in'
    for pattern, values in _valued(commands):
        yield f"        {pattern}) found={shlex.quote(' '.join(values))} ;;"
    yield '        *) case "$command" in'
    for each in commands:
        words = " ".join([*(below.words.split()[-1] for below in each.below), *each.choices])
        spellings = " ".join(_spellings(each))
        yield f'            "{each.words}") found={shlex.quote(words)}'
        yield f"                [[ $current == -* ]] && found={shlex.quote(spellings)} ;;"
    yield "        esac ;;"
    yield "    esac"
    yield '    COMPREPLY=($(compgen -W "$found" -- "$current"))'
    yield "}"
    yield f"complete -o default -F _{PROGRAM} {PROGRAM}"


def _zsh(commands: Sequence[Command]) -> Iterator[str]:
    yield f"#compdef {PROGRAM}"
    yield f"# zsh completion of {PROGRAM}: put it into a folder of $fpath as _{PROGRAM}, or source it after compinit"
    yield f"_{PROGRAM}() {{"
    yield '    local previous="${words[CURRENT-1]}" command="" word'
    yield "    local -a found"
    yield '    for word in "${(@)words[2,CURRENT-1]}"; do'
    yield from _walk(commands)
    yield "    done"
    yield "    compset -P 1 '--*=' && previous=${IPREFIX%=}"
    yield '    case "$command/$previous" in'
    for pattern, values in _valued(commands):
        yield f"        {pattern}) {shlex.join(['compadd', '--', *values]) if values else '_files'}; return ;;"
    yield "    esac"
    yield '    case "$command" in'
    for each in commands:
        words = [(below.words.split()[-1], below.meaning) for below in each.below] + [(c, "") for c in each.choices]
        options = [(spelling, option.meaning) for option in each.options for spelling in option.spellings]
        otherwise = f"found=({_described(words)}); _describe word found" if words else "_files"
        yield f'        "{each.words}") if [[ $PREFIX == -* ]]'
        yield f"            then found=({_described(options)}); _describe option found"
        yield f"            else {otherwise}; fi ;;"
    yield "    esac"
    yield "}"
    yield f"compdef _{PROGRAM} {PROGRAM}"


def _fish(commands: Sequence[Command]) -> Iterator[str]:
    yield f"# fish completion of {PROGRAM}: {PROGRAM} completion fish > ~/.config/fish/completions/{PROGRAM}.fish"
    yield f"function __{PROGRAM}_command"
    yield '    set -l command ""'
    yield "    for word in (commandline -opc)[2..]"
    yield f'        contains -- "$command/$word" {" ".join(_steps(commands))}'
    yield '        and set command (string trim -- "$command $word")'
    yield "    end"
    yield '    echo "$command"'
    yield "end"
    for each in commands:
        call = f'complete -c {PROGRAM} -n \'test "$(__{PROGRAM}_command)" = "{each.words}"\''
        for below in each.below:
            yield f"{call} -f -a {below.words.split()[-1]} -d {_fish_quote(below.meaning)}"
        if each.choices:
            yield f"{call} -f -a {_fish_quote(' '.join(each.choices))}"
        for option in each.options:
            spelt = " ".join(
                f"-l {word[2:]}" if word.startswith("--") else f"-s {word[1:]}" for word in option.spellings
            )
            takes = "" if option.values is None else f" -x -a {_fish_quote(' '.join(option.values))}"
            takes = " -r -F" if option.values == () else takes
            yield f"{call} {spelt}{takes} -d {_fish_quote(option.meaning)}"


SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}


def _walk(commands: Sequence[Command]) -> Iterator[str]:
    """Yield the lines, for bash and zsh, by which a word leads from one command to one below it."""
    yield '        case "$command/$word" in'
    yield f'            {"|".join(_steps(commands))}) command="${{command:+$command }}$word" ;;'
    yield "        esac"


def _steps(commands: Sequence[Command]) -> list[str]:
    """Return each way from a command to one below it, as a quoted pattern: `""/gitops`, `"gitops"/check`."""
    parts = [each.words.rpartition(" ") for each in commands if each.words]
    return [f'"{above}/{word}"' for above, _, word in parts]


def _valued(commands: Sequence[Command]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each option that takes a value, as a pattern of the command and its spellings, with its values."""
    for each in commands:
        for option in each.options:
            if option.values is not None:
                yield "|".join(f'"{each.words}/{spelling}"' for spelling in option.spellings), option.values


def _spellings(command: Command) -> list[str]:
    return [spelling for option in command.options for spelling in option.spellings]


def _described(words: Sequence[tuple[str, str]]) -> str:
    """Return words with their meanings as zsh's _describe reads them: a colon in a word or meaning has a backslash."""
    return " ".join(shlex.quote(":".join(part.replace(":", "\\:") for part in each if part)) for each in words)


def _fish_quote(text: str) -> str:
    """Return a text in fish's single quotes, in which backslashes and quotes have a backslash."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
