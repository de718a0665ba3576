"""Conversations against real engines, with and without blocks that they share: `python -m tests.runtime.conversations`.

    python -m tests.runtime.conversations NUMBER [--ep 1|2|4] [--dtype fp32|bf16] [--fast] [--seed SEED]

They have system prompts in common, branches, edits, several choices, stop ids, logprobs, other salts and users who
leave. The ranks are pairs and mixed ones, with a large cache, with one so small that blocks go through host memory all
the time, and with so little host memory that they go through a folder, which all these ranks share.

In deterministic mode every token, logprob and latent must be that of ranks that share nothing, bit for bit. In the fast
mode, which promises no bits, logprobs must be close as long as the tokens are the same, and greedy tokens may part only
where the best two were close: to those of ranks that share nothing, in one of two ways to batch. A batch may change a
token's experts.
"""

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import torch
from msgspec import structs

import runtime.demo
from runtime.expert_parallel.group import SoloGroup
from runtime.launch import Disk
from runtime.model.engine import Engine, EngineConfig
from runtime.protocol.counting import PAGE_TOKENS
from runtime.protocol.messages import Sampling
from runtime.worker.disk import close_disk, open_disk
from tests.ports import free_port
from tests.runtime.joined_groups import joined_groups
from tests.runtime.one_rank import Limits, Rank, Wish

DEMO = Path(runtime.demo.__file__).parent
LIMITS = Limits(max_requests=8, max_request_tokens=320, max_batch_tokens=96, kv_tokens=640)
OTHER_BATCHES = structs.replace(LIMITS, max_batch_tokens=33, max_requests=2)
NUM_HOST_BLOCKS, NUM_BESIDE_DISK = 24, 6
NUM_SYSTEM_PROMPTS, NUM_TURNS = 3, (1, 1, 2, 3)
ABORTED = 1 / 8
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
CLOSE = {"fp32": 1e-3, "bf16": 1.0}  # in a logprob; other batches alone change one of 600 by 8e-6 and 0.33


def demo_engine(dtype=torch.float32, group=None, *, deterministic=True):
    """One rank of the bundled demo model."""
    group = SoloGroup() if group is None else group
    config = json.loads((DEMO / "config.json").read_text())
    layers = config["num_hidden_layers"] - config["first_k_dense_replace"]
    expert_map = [list(range(config["n_routed_experts"]))] * layers
    return Engine(EngineConfig(DEMO, expert_map, dtype, deterministic=deterministic), group)


def through_host_memory(engine, num_blocks=NUM_HOST_BLOCKS, folder=None):
    """Limits whose cache has room for one longest request, so that most of what is found was in host memory.

    With a `folder`, blocks go through this as well.
    """
    num_layers, latent_dim = engine.token_shape
    block_bytes = num_layers * PAGE_TOKENS * latent_dim * engine.backend.unquantized_dtype.itemsize
    disk = None if folder is None else Disk(folder, max_bytes=2**30)
    return structs.replace(LIMITS, kv_tokens=320, host_bytes=num_blocks * block_bytes, disk=disk)


class Recorded(Rank):
    """A rank, or pair, that keeps the latents of each request that is handed over."""

    def __init__(self, engine, kind, limits, **options):
        super().__init__(engine, kind, limits, **options)
        self.latents = {}
        self.disk = open_disk(limits, bytes(32), self.phases[0].cache.host, "rank")
        if self.disk is not None:
            self.phases[0].use(self.disk)

    def cross(self, handover, latents, prefix):
        self.latents[handover.request_id] = torch.cat([self.latents_of(prefix), latents], dim=1)
        super().cross(handover, latents, prefix)

    def latents_of(self, prefix):
        """What the decode half has of a prompt, which does not cross."""
        if prefix.latents is not None:
            return prefix.latents
        cache, table = self.schedulers[1].cache, prefix.table
        return torch.stack([cache.read(layer, table, 0, prefix.num_tokens) for layer in range(len(cache.layers))])


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


def far_differences(rank, asked, reference, asked_there, close):
    """The requests for one prompt whose logprobs differ by more than `close` before their tokens part.

    Or whose greedy tokens part where the best two are further from each other than that.
    """
    return {
        each
        for each in rank.said.keys() & reference.said.keys()
        if asked[each].prompt_ids == asked_there[each].prompt_ids
        and are_far(rank.said[each], reference.said[each], close, greedy=each.endswith(".0"))
    }


def are_far(said, said_there, close, *, greedy):
    for one, other in zip(said, said_there, strict=False):
        if one.token_id != other.token_id:
            (_, best), (_, second) = other.logprobs.best[:2]
            return greedy and best - second > close
        if abs(one.logprobs.chosen - other.logprobs.chosen) > close:
            return True
    return False


def compare(engines, groups, plans, close=None):
    """Return (what was found, the ids that differ) of each kind of rank, over all ranks of a unit.

    Engines that are not deterministic may differ by as much as is `close`.
    """
    share = [plans[rank :: len(groups)] for rank in range(len(groups))]

    def run(kind, limits, **options):
        ranks = [Recorded(engine, kind, limits, deterministic=close is None, **options) for engine in engines]
        with ThreadPoolExecutor(len(ranks)) as threads:
            done = list(zip(ranks, threads.map(converse, ranks, share, groups), strict=True))
        for rank in ranks:
            close_disk(rank.disk)
        return done

    def differ(rank, *references):
        if close is None:
            return differences(rank[0], *(reference for reference, _ in references))
        return set.intersection(*(far_differences(*rank, *reference, close) for reference in references))

    references = [run("pair", LIMITS, block_digest=None)]
    if close is not None:
        references.append(run("mixed", OTHER_BATCHES, block_digest=None))
    with tempfile.TemporaryDirectory() as folder:
        caches = {
            "large cache": LIMITS,
            "host memory": through_host_memory(engines[0]),
            "folder": through_host_memory(engines[0], NUM_BESIDE_DISK, folder),
        }
        for name, kind in product(caches, ("pair", "mixed")):
            ranks = run(kind, caches[name])
            found = sum((rank.schedulers[0].hit_tokens for rank, _ in ranks), start=Counter())
            found["sent before"] = sum(rank.num_skipped for rank, _ in ranks)
            wrong = [each for compared in zip(ranks, *references, strict=True) for each in differ(*compared)]
            yield f"{kind}, {name}", found, wrong


def main():
    """Print what each kind of rank found, and what differs. Return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("number", type=int)
    parser.add_argument("--ep", type=int, choices=(1, 2, 4), default=1)
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="fp32")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dtype, deterministic = DTYPES[arguments.dtype], not arguments.fast
    groups = [SoloGroup()] if arguments.ep == 1 else joined_groups(arguments.ep, free_port())
    with ThreadPoolExecutor(arguments.ep) as threads:
        engines = list(threads.map(lambda group: demo_engine(dtype, group, deterministic=deterministic), groups))
    plans = list(conversations(arguments.number, engines[0].config.vocab_size, arguments.seed))
    num_wrong = 0
    for name, found, wrong in compare(engines, groups, plans, CLOSE[arguments.dtype] if arguments.fast else None):
        num_wrong += len(wrong)
        print(f"{name}: found {dict(found)} tokens, {len(wrong)} answers differ", *wrong[:5], flush=True)
    return int(num_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
