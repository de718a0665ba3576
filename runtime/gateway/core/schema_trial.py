"""Tries whether an answer can follow a JSON schema, in a process of its own.

    python -m runtime.gateway.core.schema_trial TOKENIZER VOCAB_SIZE [END]

    a line in     a schema, as a JSON string
    a line out    why no answer can follow it, as a JSON string, or null

The first line out is a null that says that the vocabulary is read.

The text of a schema does not show what it costs, and only the end of its process stops a grammar that is being built.
So each schema gets a fork of this process, which has read the vocabulary. The fork has little CPU time and memory. It
does what a rank would do: it builds the grammar, and masks for the first tokens of an answer, which it draws at random.
A schema that fails here would fail on the rank, while the whole unit waits.
The process ends when its stdin is closed.
"""

import os
import random
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runtime.protocol.json_grammar import explain_schema_refusal, json_matcher, read_vocabulary

if TYPE_CHECKING:
    import llguidance

__all__ = ["MAX_CPU_S", "TOO_COSTLY", "main", "try_schema"]

MAX_CPU_S = 0.2  # assumed: a unit's ranks may wait so long for one request; 60 fields take 0.02 s
MAX_MEMORY_BYTES = 256 * 2**20  # assumed: beyond what the process has already; 60 fields take 15 MiB
NUM_MASKS = 8  # assumed: most schemas that fail do so within the first lexemes
MAX_REASON_BYTES = 500  # assumed: enough for a caller
TOO_COSTLY = f"its schema takes over {MAX_CPU_S:g} s or {MAX_MEMORY_BYTES // 2**20} MiB to be made a grammar of"


def main(arguments: list[str]) -> None:
    """Try each schema from stdin until stdin ends."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end quietly when the gateway is gone
    file, vocab_size, *end_of_text = arguments
    tokenizer = read_vocabulary(Path(file), int(vocab_size), int(end_of_text[0]) if end_of_text else None)
    _write_reason(None)
    for line in sys.stdin.buffer:
        _write_reason(try_schema(msgspec.json.decode(line, type=str), tokenizer))


def try_schema(schema: str, tokenizer: "llguidance.LLTokenizer") -> str | None:
    """Return the reason why no answer can follow the schema; None if one can.

    A fork of this process tries it. If the fork ends early, by its limits of time and memory, the schema is too costly.
    """
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
    return TOO_COSTLY if status else reason or None


def _write_reason(reason: str | None) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(reason) + b"\n")
    sys.stdout.buffer.flush()


def _limit_process() -> None:
    """Limit this process's CPU time, after which the kernel ends it, and its memory, beyond which allocations fail."""
    num_pages = int(Path("/proc/self/statm").read_text().split()[0])
    max_bytes = num_pages * resource.getpagesize() + MAX_MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # hides what the library prints as it dies
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)


def _find_fault(schema: str, tokenizer: "llguidance.LLTokenizer") -> str | None:
    reason = explain_schema_refusal(schema)
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
    """Return the id of a random token that `mask`, one bit for each token, allows.

    The token is a random one of the first byte with allowed tokens, searched from a random byte of the mask on and, if
    there is none up to the mask's end, from its start.
    """
    place = draws.randrange(len(mask))
    tail = mask[place:].lstrip(b"\0") or mask.lstrip(b"\0")
    bits = [bit for bit in range(8) if tail[0] >> bit & 1]
    return 8 * (len(mask) - len(tail)) + draws.choice(bits)


if __name__ == "__main__":
    main(sys.argv[1:])
