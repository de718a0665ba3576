"""The process in which JSON schemas are tried.

    python -m runtime.gateway.core.schema_trial TOKENIZER VOCAB_SIZE [END]

    a line in     a schema, as a JSON string; the first line out is null, when the vocabulary is read
    a line out    why no answer can be held to it, as a JSON string; or null

What a schema costs cannot be told from its text, and nothing stops a grammar that is being made but the end of its
process. So each schema gets a fork of this process, which has read the vocabulary, and the fork has little CPU time and
memory. It does what a rank would do: make the grammar, and masks for the beginning of an answer, whose tokens are drawn
blindly. A schema that breaks there would break on the rank, whose whole unit waits meanwhile.
It ends when nobody can write to it any more.
"""

import os
import random
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runtime.protocol.json_grammar import json_matcher, read_vocabulary, why_no_grammar

if TYPE_CHECKING:
    import llguidance

__all__ = ["MAX_CPU_S", "TOO_DEAR", "main", "try_schema"]

MAX_CPU_S = 0.2  # assumed: what a unit's ranks may wait for one request; 60 fields take 0.02 s
MAX_MEMORY_BYTES = 256 * 2**20  # assumed: over what the process has before; 60 fields take 15 MiB
NUM_MASKS = 8  # assumed: most schemas that break break with the first lexemes
MAX_REASON_BYTES = 500  # assumed: what a caller is shown
TOO_DEAR = f"its schema takes over {MAX_CPU_S:g} s or {MAX_MEMORY_BYTES // 2**20} MiB to be made a grammar of"


def main(arguments: list[str]) -> None:
    """Try the schemas that come on stdin, until it ends."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # whoever asked is gone
    file, vocab_size, *end_of_text = arguments
    tokenizer = read_vocabulary(Path(file), int(vocab_size), int(end_of_text[0]) if end_of_text else None)
    _write_reason(None)
    for line in sys.stdin.buffer:
        _write_reason(try_schema(msgspec.json.decode(line, type=str), tokenizer))


def try_schema(schema: str, tokenizer: "llguidance.LLTokenizer") -> str | None:
    """Return why no answer can be held to the schema, or None, from a fork of this process."""
    reader, writer = os.pipe()
    fork = os.fork()
    if fork == 0:
        _limit_process()
        os.write(writer, (_find_fault(schema, tokenizer) or "").encode()[:MAX_REASON_BYTES])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        reason = pipe.read().decode(errors="replace")
    _, status = os.waitpid(fork, 0)
    return TOO_DEAR if status else reason or None


def _write_reason(reason: str | None) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(reason) + b"\n")
    sys.stdout.buffer.flush()


def _limit_process() -> None:
    """Let the kernel end this process when it has used up its CPU time. Beyond its memory, allocations fail."""
    num_pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = num_pages * resource.getpagesize() + MAX_MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # the library's last words
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)


def _find_fault(schema: str, tokenizer: "llguidance.LLTokenizer") -> str | None:
    reason = why_no_grammar(schema)
    if reason is not None:
        return reason
    matcher, draws = json_matcher(tokenizer, schema), random.Random(0)  # noqa: S311  # the same each time
    for _ in range(NUM_MASKS):
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            return " ".join(matcher.get_error().partition("\n")[0].split())
        if matcher.is_stopped():
            break
        matcher.consume_token(_draw_token(mask, draws))
    return None


def _draw_token(mask: bytes, draws: random.Random) -> int:
    """Return one of the tokens that the mask allows: the next from anywhere in the vocabulary."""
    place = draws.randrange(len(mask))
    tail = mask[place:].lstrip(b"\0") or mask.lstrip(b"\0")
    bits = [bit for bit in range(8) if tail[0] >> bit & 1]
    return 8 * (len(mask) - len(tail)) + draws.choice(bits)


if __name__ == "__main__":
    main(sys.argv[1:])
