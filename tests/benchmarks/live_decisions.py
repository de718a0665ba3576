"""Maps that follow drifting loads, by four rules beside each other: `python -m tests.benchmarks.live_decisions`.

    static     the plan's map, made for the first window
    live       `find_better_map` decides after every second window, within `--min-gain` and `--max-bytes`
    EPLB       the published EPLB makes a new map after every second window, as engines do
    anew       our own search does so

The decode units of `deepseek-h800.yaml`, or smaller ones: windows of drawn loads, one after the other, of which each is
like the one before by a Gaussian copula. A map never sees a window before that is over.

    max/mean   of windows, as a mean over layers; the first three windows, which are the same for all, do not count
    tokens/s   of a GPU by the planner's prediction for such a window, as a share of static; only for EP144
    moved      slots whose expert changes in a switch, of all slots
    GB         that a switch moves, at DeepSeek-V3's 44 MB of an expert in FP8
    least      share of slots that change at least on any way to maps as even as live's: a proven bound
               (`fewest_moves.py`), for two slots a GPU, of the layers that changed

No times are compared. Exits with 1 when a goal is missed.
"""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np

from planner.compiler import compile_or_load
from planner.estimate.throughput.imbalance import imbalance_of
from planner.estimate.throughput.predict import saturated_rate
from planner.expert_map import balance
from planner.facts.gate import Gate
from planner.facts.quantities import read_bytes
from planner.plan.sections import LiveMap
from stacks.measured.better_map import find_better_map
from stacks.measured.limits import Limits
from tests.benchmarks.drifting_loads import count_moves, max_over_mean
from tests.benchmarks.fewest_moves import fewest_moves
from tests.benchmarks.goals import Goals
from tests.planner.expert_map.drifting_windows import draw_windows
from tests.planner.expert_map.eplb_reference import rebalance_experts

SPEC = Path(__file__).parents[2] / "stacks" / "specs" / "deepseek-h800.yaml"
EXPERT_BYTES = 44_054_784  # of DeepSeek-V3 in FP8: three matrices of 7,168 x 2,048, and their scales
NUM_EXPERTS, NUM_SLOTS, ALPHA, EVERY = 256, 288, 1.01, 2
WARM_UP = 1 + EVERY  # windows in which all have the plan's map
NEAR = 1.1  # times the proven least


class Rule:
    """A rule: `decide(windows, map)` returns the next map after `EVERY` windows. It keeps what its maps did."""

    def __init__(self, name, decide, first):
        self.name, self.decide, self.rows = name, decide, np.array(first)
        self.balances, self.rates, self.moved = [], [], []

    def judge(self, window, num_gpus, rate_of):
        """Note what the present map makes of a window."""
        ratios = max_over_mean(np.array(window), self.rows, num_gpus)
        self.balances.append(ratios.mean())
        self.rates.append(rate_of(self.rows, ratios, window))

    def switch(self, windows, num_gpus):
        """Take the next map, and return the one before."""
        before, self.rows = self.rows, np.array(self.decide(windows, self.rows))
        shape = (len(before), num_gpus, -1)
        self.moved.append(count_moves(self.rows.reshape(shape), before.reshape(shape)) / before.size)
        return before


def add_up(windows):
    """Return the sum of windows."""
    return np.sum([np.array(each) for each in windows], axis=0)


def live_rule(num_gpus, limits):
    """Return the decision about a better map, from the earlier and the later window."""
    rules = LiveMap(
        expert_bytes=EXPERT_BYTES, num_nodes=1, num_groups=1, gate=Gate(), domains=(), split="equal", device="cuda"
    )

    def decide(windows, rows):
        found = find_better_map(*windows, rows.tolist(), num_gpus, rules, limits)
        return rows if found.why_not else found.physical_to_logical

    return decide


def predictor(num_gpus):
    """Return a function that predicts a GPU's tokens/s in a window; None for other sizes than the spec's."""
    compiled = compile_or_load(SPEC)
    (outlook,) = (each for each in compiled.speed if each.phase == "decode")
    if outlook.case.unit.num_gpus != num_gpus:
        return lambda *_: 0.0
    case, known = outlook.case, compiled.maps["decode"]

    def rate_of(rows, ratios, window):
        expert_map = replace(known, physical_to_logical=tuple(map(tuple, rows.tolist())), max_over_mean=tuple(ratios))
        nodes = case.unit.num_nodes
        found = imbalance_of(expert_map, window, num_gpus, nodes, case.pairs_per_gpu, num_nodes=nodes, drift_share=0.0)
        return saturated_rate(replace(case, imbalance=found))

    return rate_of


def least_and_moved(before, after, loads_of_map, num_gpus):
    """Return the least number of slots that change until each changed layer is as even as it is now, and theirs."""
    least = moved = 0
    for loads, old, new in zip(loads_of_map.astype(float), before, after, strict=True):
        if (old == new).all():
            continue
        fullest = max_over_mean(loads[None], new[None], num_gpus)[0] * loads.sum() / num_gpus * (1 + 1e-6)
        least += fewest_moves(loads, old.reshape(-1, 2), fullest)
        moved += count_moves(new.reshape(1, num_gpus, -1), old.reshape(1, num_gpus, -1))
    return least, moved


def follow(arguments, correlation, seed):
    """Let all rules follow one row of windows. Return them, and [least, moved] of live's switches."""
    num_gpus, limits = arguments.ep, Limits(3600.0, arguments.min_gain, read_bytes(arguments.max_bytes))
    windows = draw_windows(ALPHA, seed, arguments.layers, NUM_EXPERTS, 8, arguments.windows, correlation)
    first = balance(windows[0], NUM_SLOTS, num_gpus).physical_to_logical
    sizes, bounds, rate_of = (NUM_SLOTS, 1, 1, num_gpus), np.zeros(2), predictor(num_gpus)
    rules = [
        Rule("static", lambda _, rows: rows, first),
        Rule("live", live_rule(num_gpus, limits), first),
        Rule("EPLB", lambda pair, _: rebalance_experts(add_up(pair), *sizes), first),
        Rule("anew", lambda pair, _: balance(add_up(pair).tolist(), NUM_SLOTS, num_gpus).physical_to_logical, first),
    ]
    for number in range(WARM_UP, len(windows)):
        if (number - WARM_UP) % EVERY == 0:
            pair = windows[number - EVERY : number]
            for rule in rules:
                before = rule.switch(pair, num_gpus)
                if rule.name == "live" and 2 * num_gpus == NUM_SLOTS:
                    bounds += least_and_moved(before, rule.rows, add_up(pair), num_gpus)
        for rule in rules:
            rule.judge(windows[number], num_gpus, rate_of)
    return rules, bounds


def show(rules, bounds):
    """Print a row for each rule."""
    static = rules[0]
    for rule in rules:
        rate = f"{fmean(rule.rates) / fmean(static.rates):10.4f}" if any(static.rates) else " " * 10
        switches = [each for each in rule.moved if each]
        moved, most = (fmean(switches), max(switches)) if switches else (0.0, 0.0)
        size = NUM_SLOTS * len(rule.rows) * EXPERT_BYTES / 1e9
        least = f"{bounds[0] / bounds[1]:8.3f}" if rule.name == "live" and bounds[1] else ""
        print(
            f"{rule.name:<8}{fmean(rule.balances):9.4f}{max(rule.balances):9.4f}{rate}{len(switches):6}/{len(rule.moved)}"
            f"{moved:9.4f}{moved * size:9.1f}{most * size:9.1f}{least}",
            flush=True,
        )


def main():
    """Print a table for each drift, and hold it against the goals."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ep", type=int, default=144)
    parser.add_argument("--layers", type=int, default=58)
    parser.add_argument("--windows", type=int, default=23)
    parser.add_argument("--correlations", type=float, nargs="+", default=(0.9957, 0.95))
    parser.add_argument("--seeds", type=int, nargs="+", default=(1,))
    parser.add_argument("--min-gain", type=float, default=0.02)
    parser.add_argument("--max-bytes", default="100GB")
    arguments, goals = parser.parse_args(), Goals()
    limits = f"min_gain {arguments.min_gain:g}, max_bytes {arguments.max_bytes}"
    print(f"EP {arguments.ep}, {arguments.layers} layers, {limits}")
    for correlation in arguments.correlations:
        for seed in arguments.seeds:
            rules, bounds = follow(arguments, correlation, seed)
            print(f"correlation of windows {correlation:g}, seed {seed}")
            print("          max/mean  highest  tokens/s switches    moved       GB  most GB   least/moved")
            show(rules, bounds)
            static, live, eplb, _ = rules
            case = f"correlation {correlation:g}, seed {seed}"
            size = NUM_SLOTS * arguments.layers * EXPERT_BYTES / read_bytes(arguments.max_bytes)
            goals.check(f"{case}: most bytes of a switch, of max_bytes", max(live.moved) * size, "<=", 1)
            goals.check(f"{case}: max/mean over static's", fmean(live.balances) / fmean(static.balances), "<=", 1)
            goals.check(f"{case}: slots moved, over EPLB's", sum(live.moved) / sum(eplb.moved), "<=", 1)
            if bounds[0]:
                goals.check(f"{case}: slots moved, over the proven least", bounds[1] / bounds[0], "<=", NEAR)
    print(f"load average {os.getloadavg()[0]:.1f}")
    return goals.report()


if __name__ == "__main__":
    sys.exit(main())
