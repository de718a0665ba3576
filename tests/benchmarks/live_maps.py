"""Units that switch from map to map while they answer: `python -m tests.benchmarks.live_maps [--switches 200]`.

The bundled model, in units of 2, 4 and 8 ranks, in FP32, BF16 and FP8, with 8 streams that ask again at once. The
switches are shared among the nine. Maps are drawn at random, refined for loads, or made for the loads that these drift
to, near the map before. Every answer must have the ids and logprobs of one rank that never switches. After each switch
every slot must hold its expert byte for byte as in a fresh load, and slots with new experts must compute rows.

Then one unit (`--gaps EP DTYPE`) switches without a pause in a window between two in which it never does. The ratio is
that of the 99th percentiles of the seconds between two tokens of a stream, over the mean of the two others, and its
median over all threes counts. The ratio of the two others says what the machine's noise is.

Exits with 1 when a goal is missed.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import torch

from planner.expert_map import balance
from runtime.expert_parallel.group import SoloGroup
from runtime.model.engine import Engine, EngineConfig
from tests.benchmarks.drifting_loads import drift
from tests.benchmarks.goals import Goals
from tests.ports import free_port
from tests.runtime.identical_ranks import ids_and_logprobs, wishes
from tests.runtime.one_rank import tell_alone
from tests.runtime.rank_processes import run_ranks
from tests.runtime.switching_ranks import Job
from tests.stacks.deployments import CHECKPOINT

SIZES, DTYPES = (2, 4, 8), ("float32", "bfloat16", "float8_e4m3fn")
NUM_LAYERS, NUM_EXPERTS, NUM_SLOTS = 4, 32, 40  # of the bundled model; 8 redundant experts
NUM_STREAMS = 8
ALPHA, RHO = 1.01, 0.8  # of the loads, and how alike they are after a drift
MAX_RATIO = 1.2
PATIENCE_S = 1800
KINDS = ("random", "refined", "drifted")


def make_maps(number: int, size: int, seed: int, num_slots: int = NUM_SLOTS) -> list[list[list[int]]]:
    """Return so many maps of the kinds in turn."""
    draw, found, turn = random.Random(seed), [], 0
    while len(found) < number:
        before, after = drift(ALPHA, RHO, seed + turn, NUM_LAYERS, NUM_EXPERTS)
        refined = balance(before.tolist(), num_slots, size).physical_to_logical
        drifted = balance(after.tolist(), num_slots, size, previous=refined, keep_within=0.02).physical_to_logical
        found += [draw_map(draw, num_slots), list(map(list, refined)), list(map(list, drifted))]
        turn += 1
    return found[:number]


def draw_map(draw: random.Random, num_slots: int = NUM_SLOTS) -> list[list[int]]:
    """Return experts and replicas in any order."""
    layers = []
    for _ in range(NUM_LAYERS):
        slots = [*range(NUM_EXPERTS), *draw.choices(range(NUM_EXPERTS), k=num_slots - NUM_EXPERTS)]
        layers.append(draw.sample(slots, len(slots)))
    return layers


def draw_prompts() -> list[list[int]]:
    """Return a prompt for each stream."""
    draw = random.Random(0)
    return [[draw.randrange(4096) for _ in range(draw.randrange(4, 120))] for _ in range(NUM_STREAMS)]


def answer_alone(dtype: str) -> dict[str, list]:
    """Return prompt number -> the one answer of a rank that holds every expert, as JSON has it."""
    plain = [[*range(NUM_EXPERTS)]] * NUM_LAYERS
    alone = Engine(EngineConfig(CHECKPOINT, plain, getattr(torch, dtype), True), SoloGroup())
    found = {wish.id: [ids_and_logprobs(tell_alone(alone, SoloGroup(), wish))] for wish in wishes(draw_prompts())}
    return json.loads(json.dumps(found))


def run_unit(size: int, dtype: str, maps: list, **more: int) -> list[dict]:
    """Let a unit switch. Return what each rank has found."""
    streams = [[*range(rank, NUM_STREAMS, size)] for rank in range(size)]
    with tempfile.TemporaryDirectory() as name:
        Job(dtype, draw_prompts(), streams, draw_map(random.Random(9)), maps, **more).write(Path(name))
        run_ranks("switching_ranks.py", size, free_port(), CHECKPOINT, name, timeout_s=PATIENCE_S)
        return [json.loads((Path(name) / f"{rank}.json").read_text()) for rank in range(size)]


def num_wrong(ranks: list[dict], expected: dict[str, list]) -> int:
    """Return how many streams had an answer other than the expected one."""
    return sum(answers != expected[number] for rank in ranks for number, answers in rank["answers"].items())


def slowest_gaps(ranks: list[dict]) -> list[list[float]]:
    """Return the 99th percentile of the seconds between tokens in each window, by threes."""
    windows = zip(*(rank["windows"] for rank in ranks), strict=True)
    slowest = [float(np.percentile([gap for _, gaps in parts for gap in gaps], 99)) for parts in windows]
    return [slowest[first : first + 3] for first in range(0, len(slowest), 3)]


def measure_gaps(arguments: argparse.Namespace) -> float:
    """Print the gaps of one unit. Return the median ratio."""
    size, dtype = int(arguments.gaps[0]), arguments.gaps[1]
    more = {"num_triples": arguments.windows, "window_turns": arguments.window_turns}
    ranks = run_unit(size, dtype, make_maps(len(KINDS), size, 7), **more)
    slowest = slowest_gaps(ranks)
    found = sorted(2 * moving / (before + after) for before, moving, after in slowest)
    noise = sorted(max(before, after) / min(before, after) for before, _, after in slowest)
    num_switches, moves = len(ranks[0]["endings"]), sum(rank["totals"]["moves"] for rank in ranks)
    stall_ms = 1e3 * max(rank["stall_s"] for rank in ranks)
    print(f"EP {size} {dtype}: {num_switches} switches, {moves} experts moved, longest stall {stall_ms:.1f} ms")
    print("p99 between tokens with switches over without:", *(f"{each:.2f}" for each in found))
    print("the same of two windows without:", *(f"{each:.2f}" for each in noise), flush=True)
    return median(found)


def main() -> int:
    """Switch, print a table, and hold it against the goals."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--switches", type=int, default=200)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="EP")
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--gaps", nargs=2, default=("2", "float32"), metavar=("EP", "DTYPE"))
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--window-turns", type=int, default=150)
    arguments = parser.parse_args()
    goals, units = Goals(), [(size, dtype) for dtype in arguments.dtypes for size in arguments.sizes]
    ends = [arguments.switches * number // len(units) for number in range(len(units) + 1)]
    shares = [end - begin for begin, end in pairwise(ends)]
    num_ended = wrong = lost = idle = num_answers = 0
    expected = {dtype: answer_alone(dtype) for dtype in arguments.dtypes}
    print("EP dtype          switches  answers  experts moved  fewest rows  longest stall ms  seconds", flush=True)
    torch.set_num_threads(1)
    for number, ((size, dtype), share) in enumerate(zip(units, shares, strict=True)):
        began = time.monotonic()
        ranks = run_unit(size, dtype, make_maps(share, size, 100 * number))
        num_ended += sum("reason" not in ending for ending in ranks[0]["endings"])
        wrong += num_wrong(ranks, expected[dtype])
        lost += sum(rank["num_asked"] - rank["num_answered"] for rank in ranks)
        rows = [sum(each) for each in zip(*(rank["rows"] for rank in ranks), strict=True)]
        idle += sum(each == 0 for each in rows)
        answers, moves = sum(rank["num_answered"] for rank in ranks), sum(rank["totals"]["moves"] for rank in ranks)
        num_answers += answers
        stall_ms, seconds = 1e3 * max(rank["stall_s"] for rank in ranks), time.monotonic() - began
        figures = f"{share:>9}{answers:>9}{moves:>15}{min(rows):>13}{stall_ms:>18.1f}{seconds:>9.0f}"
        print(f"{size:>2} {dtype:<14}{figures}", flush=True)
    goals.check("switches that went through", num_ended, "==", arguments.switches)
    goals.check("streams with another answer", wrong, "==", 0)
    goals.check("answers", num_answers, ">=", arguments.switches)
    goals.check("answers lost", lost, "==", 0)
    goals.check("switches whose moved slots computed no row", idle, "==", 0)
    if arguments.windows:
        goals.check("median ratio of the p99s", measure_gaps(arguments), "<=", MAX_RATIO)
    print(f"load average {os.getloadavg()[0]:.1f}")
    return goals.report()


if __name__ == "__main__":
    sys.exit(main())
