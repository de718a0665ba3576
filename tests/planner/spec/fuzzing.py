"""Specs with something wrong in them, from a seed: `python -m tests.planner.spec.fuzzing 10000` looks for a traceback.

A mutation is one that a hurried user, a broken generator or an attacker makes: a value of another type, a huge number,
a key twice, a line gone, deep nesting, an alias bomb, bytes of another encoding. What comes out does not matter, as
long as it is an exit status of the contract, soon.
"""

import contextlib
import io
import random
import sys
import tempfile
import time
from pathlib import Path

from planner.cli import main

__all__ = ["mutated_specs", "outcome"]

SPECS = Path(__file__).parents[3] / "stacks" / "specs"
MAX_SECONDS = 2.0  # of CPU time: what else the machine does is not the spec's doing

VALUES = (
    *("1", "2", "8", "16", "64", "72", "100000", "auto", "bf16", "none", "five_stage"),
    *("", "null", "~", "true", "no", "-1", "0", "1.5", ".inf", ".nan", "1e400", "9" * 400, "0x10", "1:30", "80GiB"),
    *("auto", "[]", "{}", "[1, 2]", "{a: 1}", '"quoted"', "'", '"', "*alias", "&anchor x", "!!python/name:os.system x"),
    *("deepseek-v3", "h800", "10_000", "2024-01-01", "- 1", "|", ">", "%", "@", "\u2028", "\u0000", "é" * 300),
)
KEYS = ("nodes", "ep_size", "<<", "?", "mixed", "schedule", "__class__", "model_config", "\ufeff", "a.b", "0", "")
BOMB = "".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9) if i else '1'}]\n" for i in range(12))


def mutated_specs(seed, count):
    """`count` specs as bytes, the same for the same seed."""
    source = random.Random(seed)
    runtime = str(SPECS.parents[1] / "runtime")  # the demo names files there
    texts = [path.read_text().replace("../../runtime", runtime) for path in sorted(SPECS.glob("*.yaml"))]
    texts += [text.replace("  nodes: 22 ", "  nodes: 8 ") for text in texts if "  nodes: 22 " in text]  # too few
    for _ in range(count):
        lines = source.choice(texts).splitlines()
        for _ in range(source.choice([1, 1, 1, 2, 4])):
            lines = source.choice(MUTATIONS)(source, lines)
        yield source.choice(ENCODINGS)(source, "\n".join(lines) + "\n")


def other_value(source, lines):
    """A value of another kind."""
    index = source.randrange(len(lines))
    key, colon, _ = lines[index].partition(":")
    return _with(lines, index, f"{key}{colon} {source.choice(VALUES)}")


def other_key(source, lines):
    """A key that is misspelt, unknown or strange."""
    index = source.randrange(len(lines))
    key, colon, value = lines[index].partition(":")
    name = key.strip()
    wrong = source.choice([*KEYS, name[:-1], name + name[-1:], name.upper(), name[::-1]])
    return _with(lines, index, f"{key[: len(key) - len(name)]}{wrong}{colon}{value}")


def without_a_line(source, lines):
    """A line gone."""
    index = source.randrange(len(lines))
    return [*lines[:index], *lines[index + 1 :]] or [""]


def with_a_line_twice(source, lines):
    """A line, or a whole section, again somewhere."""
    index, count = source.randrange(len(lines)), source.choice([1, 1, 5])
    where = source.randrange(len(lines) + 1)
    return [*lines[:where], *lines[index : index + count], *lines[where:]]


def other_indent(source, lines):
    """A line that belongs elsewhere by its indent."""
    index = source.randrange(len(lines))
    return _with(lines, index, " " * source.choice([0, 1, 2, 3, 8]) + lines[index].lstrip())


def deep_nesting(source, lines):
    """Far deeper than any spec."""
    depth = source.choice([10, 40, 2000, 20_000])
    index = source.randrange(len(lines))
    key = lines[index].partition(":")[0]
    return _with(lines, index, f"{key}: " + source.choice(["[", "{a: ", "- "]) * depth)


def long_list(source, lines):
    """A list where one value belongs, of many."""
    index = source.randrange(len(lines))
    key = lines[index].partition(":")[0]
    return _with(lines, index, f"{key}: [{', '.join(['{name: n}'] * source.choice([1, 100, 3000]))}]")


def alias_bomb(source, lines):
    """Nine to the twelfth, if anybody expanded it."""
    return [*BOMB.splitlines(), *lines]


MUTATIONS = (
    *(other_value, other_value, other_value, other_key, without_a_line, with_a_line_twice),
    *(other_indent, deep_nesting, long_list, alias_bomb),
)


def _with(lines, index, text):
    return [*lines[:index], text, *lines[index + 1 :]]


def _utf8(_, text):
    return text.encode("utf-8", "surrogatepass")


def _cut(source, text):
    content = _utf8(source, text)
    return content[: source.randrange(len(content) + 1)]


def _noisy(source, text):
    content = bytearray(_utf8(source, text))
    for _ in range(source.randint(1, 5)):
        content[source.randrange(len(content))] = source.randrange(256)
    return bytes(content)


ENCODINGS = (
    *(_utf8, _utf8, _utf8, _utf8, _cut, _noisy),
    lambda _, text: text.encode("utf-16"),
    lambda _, text: b"\xef\xbb\xbf" + text.encode(),
    lambda _, text: text.replace("\n", "\r\n").encode(),
    lambda _, text: text.encode("utf-32"),
)


def outcome(content, folder):
    """The exit status of `plan` for a spec, and the CPU seconds that it took; raises what would be a traceback."""
    path = folder / "fuzzed.yaml"
    path.write_bytes(content)
    began = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        status = main(["plan", str(path), "--format", "json"])
    return status, time.process_time() - began


def _search(count):
    folder, statuses, slowest = Path(tempfile.mkdtemp()), {}, 0.0
    for number, content in enumerate(mutated_specs(1, count)):
        try:
            status, seconds = outcome(content, folder)
        except BaseException:
            print(f"number {number} of seed 1: {folder / 'fuzzed.yaml'}", file=sys.stderr)
            raise
        statuses[status] = statuses.get(status, 0) + 1
        slowest = max(slowest, seconds)
    print(f"{count} specs, exit statuses {dict(sorted(statuses.items()))}, slowest {slowest:.2f} s of CPU time")
    return int(slowest > MAX_SECONDS or not statuses.keys() <= {0, 2, 3})


if __name__ == "__main__":
    sys.exit(_search(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
