"""Conversations against real engines, with and without blocks that they share: `python -m tests.runtime.conversations`.

    python -m tests.runtime.conversations NUMBER [--ep 1|2|4] [--dtype fp32|bf16]

They have system prompts in common, branches, edits, several choices, stop ids, logprobs, other salts and users who
leave. In deterministic mode every token, logprob and latent must be that of ranks that share nothing, bit for bit. The
ranks are pairs and mixed ones, with a large cache and with one so small that blocks go through host memory all the
time.
"""

import argparse
import json
import random
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch
from msgspec import structs

import runtime.demo
from runtime.expert_parallel.group import SoloGroup
from runtime.model.engine import Engine, EngineConfig
from runtime.protocol.counting import PAGE_TOKENS
from runtime.protocol.messages import Sampling
from tests.runtime.joined_groups import joined_groups
from tests.runtime.one_rank import Limits, Rank, Wish

DEMO = Path(runtime.demo.__file__).parent
LIMITS = Limits(max_requests=8, max_request_tokens=320, max_batch_tokens=96, kv_tokens=640)
NUM_HOST_BLOCKS = 24
NUM_SYSTEM_PROMPTS, NUM_TURNS = 3, (1, 1, 2, 3)
ABORTED = 1 / 8
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PORT = 29655


def demo_engine(dtype=torch.float32, group=None):
    """One rank of the bundled demo model in deterministic mode."""
    group = SoloGroup() if group is None else group
    config = json.loads((DEMO / "config.json").read_text())
    layers = config["num_hidden_layers"] - config["first_k_dense_replace"]
    expert_map = [list(range(config["n_routed_experts"]))] * layers
    return Engine(EngineConfig(DEMO, expert_map, dtype, deterministic=True), group)


def through_host_memory(engine):
    """Limits whose cache has room for one longest request, so that most of what is found was in host memory."""
    num_layers, latent_dim = engine.token_shape
    block_bytes = num_layers * PAGE_TOKENS * latent_dim * engine.backend.unquantized_dtype.itemsize
    return Limits(**{**structs.asdict(LIMITS), "kv_tokens": 320, "host_bytes": NUM_HOST_BLOCKS * block_bytes})


class Recorded(Rank):
    """A rank, or pair, that keeps the latents of each request that is handed over."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.latents = {}

    def cross(self, handover, latents):
        self.latents[handover.request_id] = latents.clone()
        super().cross(handover, latents)


@dataclass(frozen=True)
class Turn:
    """What a user says, `choices` times at once; it continues `turn`, one before the last where he edits."""

    id: str
    words: list[int]
    num_choices: int
    salt: str
    aborted_after: int | None
    parent: "Turn | None" = field(repr=False, default=None)

    def wishes(self, said):
        """The requests, when the parent's first answer is in `said`."""
        prompt = self.prompt(said)
        for choice in range(self.num_choices):
            sampling = Sampling(5, float(choice > 0), 1.0, choice, [7], num_logprobs=2)
            yield Wish(f"{self.id}.{choice}", prompt, sampling, cache_salt=self.salt)

    def prompt(self, said):
        if self.parent is None:
            return self.words
        answer = [token.token_id for token in said[f"{self.parent.id}.0"]]
        return self.parent.prompt(said) + answer + self.words


def conversations(number, vocab_size, seed=0):
    """Turns of conversations that have system prompts in common; some continue an earlier turn than the last."""
    draw = random.Random(seed)

    def words(least, most):
        return [draw.randrange(8, vocab_size) for _ in range(draw.randint(least, most))]

    systems = [words(60, 110) for _ in range(NUM_SYSTEM_PROMPTS)]
    for conversation in range(number):
        turns, salt = [], draw.choice(["", "", "other"])
        for turn in range(draw.choice(NUM_TURNS)):
            parent = draw.choice(turns[-2:]) if turns else None
            said = words(1, 40) if parent else draw.choice(systems) + words(1, 20)
            aborted_after = draw.randint(0, 6) if draw.random() < ABORTED else None
            turns.append(
                Turn(f"{conversation}-{turn}", said, draw.choice((1, 1, 1, 1, 1, 3)), salt, aborted_after, parent)
            )
        yield turns


def converse(rank, plans, group=None, seed=0):
    """Let the users of all conversations speak, each after the answer that it continues; until all are answered.

    The ranks of `group` step together, each with conversations of its own.
    """
    group = SoloGroup() if group is None else group
    draw = random.Random(seed)
    due = [turn for turns in plans for turn in turns]
    asked, aborts = {}, {}
    while group.any(bool(due) or rank.has_work()):
        for turn in [turn for turn in due[:12] if turn.parent is None or f"{turn.parent.id}.0" in rank.done]:
            if draw.random() < 0.5:
                due.remove(turn)
                for wish in turn.wishes(rank.said):
                    asked[wish.id] = wish
                    rank.ask(wish)
                    if turn.aborted_after is not None and not wish.id.endswith(".0"):
                        aborts[wish.id] = turn.aborted_after
        for request_id in [each for each, steps in aborts.items() if steps == 0]:
            rank.abort(request_id)
        aborts = {request_id: steps - 1 for request_id, steps in aborts.items() if steps}
        rank.step()
    return asked


def differences(rank, reference):
    """The requests whose tokens or logprobs, as far as both said them, or whose latents differ."""
    common = rank.said.keys() & reference.said.keys()
    length = {each: min(len(rank.said[each]), len(reference.said[each])) for each in common}
    said = {each for each in common if rank.said[each][: length[each]] != reference.said[each][: length[each]]}
    handed = rank.latents.keys() & reference.latents.keys()
    return said | {each for each in handed if not torch.equal(rank.latents[each], reference.latents[each])}


def compare(engines, groups, plans):
    """Return (what was found, the ids that differ) of each kind of rank, over all ranks of a unit."""
    share = [plans[rank :: len(groups)] for rank in range(len(groups))]

    def run(kind, limits, **options):
        ranks = [Recorded(engine, kind, limits, **options) for engine in engines]
        with ThreadPoolExecutor(len(ranks)) as threads:
            list(threads.map(converse, ranks, share, groups))
        return ranks

    reference = run("pair", LIMITS, block_digest=None)
    for kind in ("pair", "mixed"):
        for limits in (LIMITS, through_host_memory(engines[0])):
            ranks = run(kind, limits)
            found = sum((rank.schedulers[0].hit_tokens for rank in ranks), start=Counter())
            wrong = [each for pair in zip(ranks, reference, strict=True) for each in differences(*pair)]
            yield f"{kind}, {limits.kv_tokens} tokens of cache", found, wrong


def main():
    """Print what each kind of rank found, and what differs. Return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("number", type=int)
    parser.add_argument("--ep", type=int, choices=(1, 2, 4), default=1)
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="fp32")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    groups = [SoloGroup()] if arguments.ep == 1 else joined_groups(arguments.ep, PORT)
    with ThreadPoolExecutor(arguments.ep) as threads:
        engines = list(threads.map(lambda group: demo_engine(DTYPES[arguments.dtype], group), groups))
    plans = list(conversations(arguments.number, engines[0].config.vocab_size))
    num_wrong = 0
    for name, found, wrong in compare(engines, groups, plans):
        num_wrong += len(wrong)
        print(f"{name}: found {dict(found)} tokens, {len(wrong)} answers differ", *wrong[:5], flush=True)
    return int(num_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
