"""The ranks of the test of identical tokens: `identical_ranks.py SIZE PORT CHECKPOINT FOLDER`.

Each serves, under every layout in turn, its share of the prompts in `FOLDER/prompts.json`, shuffled by the layout, and
writes `FOLDER/RANK.json`: layout -> {"tokens": {prompt number: greedy token ids with their logprobs},
"preemptions": how many}.
"""

import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from runtime.expert_parallel.dispatcher import AllToAllDispatcher
from runtime.expert_parallel.factory import new_group
from runtime.expert_parallel.hierarchical import NodeDispatcher
from runtime.expert_parallel.overlap import OVERLAPS
from runtime.expert_parallel.rendezvous import MeetingPoint
from runtime.expert_parallel.shared_memory.dispatcher import SharedDispatcher
from runtime.model.engine import Engine, EngineConfig
from runtime.protocol.messages import Sampling
from tests.runtime.one_rank import Limits, Rank, Wish
from tests.runtime.rank_processes import fork_ranks

ADDRESS = "127.0.0.1"
MAX_TOKENS = 8
MAX_REQUEST_TOKENS = 192
NUM_MOE_LAYERS, NUM_EXPERTS = 2, 16


@dataclass(frozen=True)
class Layout:
    """One way to serve. `kv_tokens` MAX_REQUEST_TOKENS leaves room for one request of full length, and preempts.

    On one node rows lie in common memory, on several they go by node, on a node each to ranks. FP8 is emulated, and
    slow, so that its layout has fewer prompts.
    """

    kind: str
    dtype: torch.dtype
    redundant: int
    split: str
    overlap: str
    max_batch_tokens: int
    kv_tokens: int
    num_nodes: int = 1
    num_prompts: int = 16

    def nodes(self, size):
        """Return the node of each rank."""
        return tuple(rank * self.num_nodes // size for rank in range(size))


WHOLE, TIGHT, ROOMY = 4096, MAX_REQUEST_TOKENS, 4096
MAX_REQUESTS = 4
NODE_EACH = 8  # ranks at most
LAYOUTS = {
    "whole prompts": Layout("pair", torch.float32, 0, "equal", "none", WHOLE, ROOMY, 2),
    "chunks, preemption": Layout("mixed", torch.float32, 8, "equal", "none", 50, TIGHT, NODE_EACH),
    "chunks, preemption, handover": Layout("pair", torch.float32, 16, "local_first", "five_stage", 31, TIGHT),
    "chunks in two micro-batches": Layout("mixed", torch.float32, 8, "equal", "dual_batch", 100, ROOMY),
    "BF16, chunks, preemption": Layout("mixed", torch.bfloat16, 16, "local_first", "five_stage", 33, TIGHT, 2),
    "FP8, chunks, preemption": Layout(
        *("mixed", torch.float8_e4m3fn, 8, "equal", "dual_batch", 70, TIGHT), 2, num_prompts=10
    ),
}


def expert_map(redundant, seed):
    """Return experts and `redundant` replicas in any order, other ones in each layer."""
    draw = random.Random(seed)
    layers = []
    for _ in range(NUM_MOE_LAYERS):
        slots = [*range(NUM_EXPERTS), *draw.sample(range(NUM_EXPERTS), redundant)]
        layers.append(draw.sample(slots, len(slots)))
    return layers


def wishes(prompts):
    """Return a greedy request for each prompt."""
    sampling = Sampling(MAX_TOKENS, temperature=0.0, top_p=1.0, seed=0, stop_ids=[], num_logprobs=0)
    return [Wish(str(number), prompt, sampling) for number, prompt in enumerate(prompts)]


def ids_and_logprobs(said):
    """Return each token's id and logprob, which shows changed bits long before another token wins."""
    return [[token.token_id, token.logprobs.chosen] for token in said]


def main(rank, size, port, checkpoint, folder):
    group = new_group(rank, size)
    group.join(MeetingPoint(ADDRESS, port, rank == 0, ADDRESS))
    asked = wishes(json.loads((folder / "prompts.json").read_text()))
    results, forms = {}, set()
    for number, (name, layout) in enumerate(LAYOUTS.items()):
        slots = expert_map(layout.redundant, seed=10 * size + number)
        group.nodes = layout.nodes(size)
        nodes = list(map(str, group.nodes)) if layout.split == "local_first" else None
        config = EngineConfig(checkpoint, slots, layout.dtype, True, layout.overlap, nodes)
        engine = Engine(config, group)
        forms.add(type(engine.model.dispatcher))
        limits = Limits(MAX_REQUESTS, MAX_REQUEST_TOKENS, layout.max_batch_tokens, layout.kv_tokens)
        served = Rank(engine, layout.kind, limits)
        own = asked[: layout.num_prompts]
        for wish in random.Random(10 * size + number).sample(own, len(own))[rank::size]:
            served.ask(wish)
        served.serve(group)
        preemptions = sum(scheduler.num_preemptions for scheduler in served.schedulers)
        answers = {number: ids_and_logprobs(said) for number, said in served.said.items()}
        results[name] = {"tokens": answers, "preemptions": preemptions}
    assert size < 4 or forms == {SharedDispatcher, NodeDispatcher, AllToAllDispatcher}
    (folder / f"{rank}.json").write_text(json.dumps(results))
    group.any(False)  # nobody leaves while a peer still exchanges


assert {layout.overlap for layout in LAYOUTS.values()} == set(OVERLAPS)
assert {layout.split for layout in LAYOUTS.values()} == {"equal", "local_first"}

if __name__ == "__main__":
    fork_ranks(main, *map(int, sys.argv[1:3]), *map(Path, sys.argv[3:5]))
