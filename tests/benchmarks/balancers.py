"""What the balancers do to latency and to how even ranks are, side by side on the same requests.

    python -m tests.benchmarks.balancers model    a model of many ranks (`balancers_model.py`), half a minute of CPU
    python -m tests.benchmarks.balancers demo     the demo's model in 4 units of 2 ranks (`balancers_demo.py`)

Exit 1 on a missed goal. Lengths are of 2,000 requests drawn from public traces (`tests/data/traffic`). Load is 80 % of
what prefill does of a backlog under the balanced policy.

A spread is the standard deviation over ranks, over their mean: of KV at many moments, which are averaged, and of the
attention and the tokens that prefill ranks computed in all. `max/mean` is beside it, because a unit waits for its
slowest rank. Goals, at 80 % load: KV under 10 %, attention under 15 %. In the model, p99 is no worse than with the
baselines. In the demo p99 has no goal: its eight ranks share the cores of one machine, so what one of them is spared
another gets. The model has no goals with Mooncake's lengths, which are not divided there: one prompt of 126,000 tokens
forms over twice the pairs that a rank computes in the run on average, it cannot be split, and its unit waits for it.
"""

import csv
import random
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from runtime.gateway.ranks.router import Policy
from tests.benchmarks.balancers_model import Model, Request
from tests.benchmarks.goals import Goals

TRAFFIC = Path(__file__).parents[1] / "data" / "traffic"
LOAD = 0.8
UNIT_RANKS = 32  # of prefill, as DeepSeek's
TPOT_S = 0.05
RANK_REQUESTS, RANK_KV_TOKENS = 88, 88 * 4989  # of decode: what DeepSeek's had on average


@dataclass(frozen=True)
class Figures:
    """What one balancer did. Times in seconds, spreads as fractions of the mean."""

    ttft_s: list
    tpot_s: list
    kv_spread: float
    kv_max: float
    count_spread: float
    attention_spread: float
    attention_max: float
    dispatch_spread: float

    def line(self, policy):
        """One line of the table."""
        return (
            f"{policy.value:15} {quantile(self.ttft_s, 0.5):7.3f} {quantile(self.ttft_s, 0.99):7.3f}"
            f" {quantile(self.tpot_s, 0.5) * 1e3:6.1f} {quantile(self.tpot_s, 0.99) * 1e3:6.1f}"
            f" {self.kv_spread:7.3f} {self.kv_max:8.3f} {self.count_spread:8.3f}"
            f" {self.attention_spread:10.3f} {self.attention_max:8.3f} {self.dispatch_spread:9.3f}"
        )


HEAD = (
    "                   TTFT s          TPOT ms           KV           requests        attention      dispatch\n"
    "                 p50     p99    p50    p99   spread max/mean   spread     spread max/mean    spread"
)


def main(what):
    """Run one part, and hold it against the goals."""
    goals = Goals()
    if what == "model":
        for name, num_units, seconds in (("azure_2023_conv", 1, 60), ("mooncake_conversation", 4, 300)):
            figures = model_figures(lengths(name), num_units, seconds)
            report(name, figures)
            if name.startswith("azure"):
                check_spreads(goals, name, figures[Policy.BALANCED])
                check_times(goals, name, figures)
    else:
        from tests.benchmarks.balancers_demo import demo_figures

        for name in ("azure_2023_conv", "mooncake_conversation"):
            figures = demo_figures(lengths(name))
            report(name, figures)
            check_spreads(goals, name, figures[Policy.BALANCED])
    return goals.report()


def report(name, figures):
    """Print the table."""
    print(f"{name}\n{HEAD}")
    for policy, its in figures.items():
        print(its.line(policy))


def check_spreads(goals, name, balanced):
    """Hold how even ranks are against the goals."""
    goals.check(f"{name}: KV spread", balanced.kv_spread, "<", 0.10)
    goals.check(f"{name}: prefill attention spread", balanced.attention_spread, "<", 0.15)


def check_times(goals, name, figures):
    """Hold the longest times against those of the better baseline."""
    balanced, baselines = figures[Policy.BALANCED], [figures[Policy.LEAST_REQUESTS], figures[Policy.ROUND_ROBIN]]
    for what in ("ttft_s", "tpot_s"):
        best = min(quantile(getattr(each, what), 0.99) for each in baselines)
        ratio = quantile(getattr(balanced, what), 0.99) / best
        goals.check(f"{name}: p99 {what[:4].upper()} over the best baseline's", ratio, "<=", 1.0)


def lengths(name):
    """[(prompt tokens, answer tokens)] of a trace."""
    with (TRAFFIC / f"{name}_lengths.csv").open() as file:
        return [(int(row["prompt_tokens"]), int(row["answer_tokens"])) for row in csv.DictReader(file)]


def arrivals(sizes, per_s, seconds, seed=22):
    """Requests of these sizes at random times."""
    draw, now, requests = random.Random(seed), 0.0, []
    while (now := now + draw.expovariate(per_s)) < seconds:
        requests.append(Request(now, *draw.choice(sizes)))
    return requests


def model_figures(sizes, num_units, seconds):
    """policy -> its figures, by the model of so many prefill units."""
    num_prefill = num_units * UNIT_RANKS
    backlog = [Request(0.0, prompt_tokens, 1) for prompt_tokens, _ in sizes]
    per_s = LOAD * len(backlog) / Model(Policy.BALANCED, num_prefill, 1, UNIT_RANKS).run(backlog)
    num_decode = round(per_s * TPOT_S * max(decode_shares(sizes)))
    print(f"{per_s:.1f} requests/s for {num_prefill} prefill ranks and {num_decode} decode ranks")
    figures = {}
    for policy in Policy:
        model, requests = Model(policy, num_prefill, num_decode, UNIT_RANKS), arrivals(sizes, per_s, seconds)
        model.run(requests)
        looks = [look for look in model.looks if look.at > seconds / 3]
        counted = [request for request in requests if request.came_at > seconds / 3]
        figures[policy] = Figures(
            [request.first_at - request.came_at for request in counted],
            [
                (request.last_at - request.first_at) / (request.answer_tokens - 1)
                for request in counted
                if request.answer_tokens > 1
            ],
            statistics.mean(spread(look.kv_tokens) for look in looks),
            statistics.mean(max(look.kv_tokens) / statistics.mean(look.kv_tokens) for look in looks),
            statistics.mean(spread(look.num_requests) for look in looks),
            spread([rank.num_pairs for rank in model.prefill]),
            max_over_mean([rank.num_pairs for rank in model.prefill]),
            spread([rank.num_tokens for rank in model.prefill]),
        )
    return figures


def decode_shares(sizes):
    """The part of a decode rank that a request takes with each token: of its requests, and of its KV."""
    yield statistics.mean(answer for _, answer in sizes) / RANK_REQUESTS
    yield statistics.mean(answer * (prompt + answer / 2) for prompt, answer in sizes) / RANK_KV_TOKENS


def spread(values):
    """The standard deviation, over the mean."""
    return statistics.pstdev(values) / statistics.mean(values) if any(values) else 0.0


def max_over_mean(values):
    return max(values) / statistics.mean(values) if any(values) else 1.0


def quantile(values, part):
    return sorted(values)[min(int(part * len(values)), len(values) - 1)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "model"))
