"""Traces, played one by one."""

import re
from dataclasses import replace as changed
from itertools import pairwise
from math import ceil
from pathlib import Path

import numpy as np
import pytest

from planner.compiler import run_passes
from planner.facts.trace import BLOCK_TOKENS, TraceRequest
from planner.problems.errors import CallError
from planner.rules.check import change_spec
from runtime.gateway.ranks.router import Policy
from runtime.serving import fetches
from stacks import cli
from stacks.simulator.flows.fleet import planned_fleet
from stacks.simulator.flows.fluid import play_day
from stacks.simulator.flows.latency import prompt_waits
from stacks.simulator.flows.service import build_service
from stacks.simulator.requests.columns import ReplayColumn
from stacks.simulator.requests.prefix_cache import HASHES_PER_BLOCK, PrefixCache, planned_cache
from stacks.simulator.requests.replay import Replay, replay
from stacks.simulator.requests.trace import read_trace, read_window, select_window
from stacks.simulator.variants import Variant
from tests.runtime.hit_rates import conversations, lru_hits, second_use_hits

AZURE_HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
MINUTES = 4  # of a trace that is compared with flows
DATA = Path(__file__).parent / "data"
AZURE, MOONCAKE = DATA / "azure_conv_60.csv", DATA / "mooncake_conversation_60.jsonl"


def poisson(rate, seconds, prompt, output, seed=0):
    """Requests at random times, all of one prompt's length and of lengths of answers that are exponential."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1 / rate, int(rate * seconds)))
    outputs = np.maximum(rng.exponential(output, len(times)), 1)
    return [TraceRequest(float(at), prompt, ceil(each)) for at, each in zip(times, outputs, strict=True)]


def test_azures_format_is_read():
    """Times count from the first request, and lengths are the columns'."""
    trace = read_trace(AZURE)

    assert len(trace) == 60
    assert trace[0] == TraceRequest(0.0, 374, 44)
    assert trace[1].at == pytest.approx(4.31458, abs=1e-4)
    assert all(one.at <= other.at for one, other in pairwise(trace))


def test_mooncakes_format_is_read():
    """Milliseconds become seconds, and hash ids the blocks of a prompt."""
    trace = read_trace(MOONCAKE)

    assert len(trace) == 60
    assert trace[0].prompt == 6758
    assert trace[0].output == 500
    assert len(trace[0].blocks) == ceil(6758 / 512)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]\n",
        AZURE_HEAD,
        f"{AZURE_HEAD}noon,1,2\n",
        f"{AZURE_HEAD}2023-11-16 18:15:46,²,2\n",
        f"{AZURE_HEAD}2023-11-16 18:15:46,{'9' * 5000},2\n",
        '{"timestamp": 1e999, "input_length": 1, "output_length": 1}\n',
        '{"timestamp": 0, "input_length": 1e999, "output_length": 1}\n',
        '{"timestamp": 0, "input_length": 1, "output_length": 1}\n' * 2 + '{"timestamp": 1e18, "input_length": 1,'
        ' "output_length": 1}\n',
        "[" * 100_000,
    ],
)
def test_what_is_no_trace_is_refused(text, tmp_path):
    """The message names the line, and nothing is a traceback."""
    path = tmp_path / "trace"
    path.write_text(text)

    with pytest.raises(CallError, match="R412"):
        read_trace(path)


def test_a_window_is_a_part_of_the_trace():
    """Its times begin at 0, and a scale brings the same requests in less time."""
    trace = [TraceRequest(float(at), 1, 1) for at in range(10)]

    assert [each.at for each in select_window(trace, *read_window("2-5"))] == [0.0, 1.0, 2.0]
    assert [each.at for each in select_window(trace, 2, 5, scale=2)] == [0.0, 0.5, 1.0]


def test_a_prompt_hits_the_blocks_that_an_earlier_one_had():
    """Only those at its beginning, and never its last token."""
    cache = PrefixCache()

    cache.keep((1, 2, 3))
    cache.keep((1, 2, 4))

    assert [cache.hits(blocks, 1400) for blocks in ((1, 2, 9), (9, 1), (1, 8))] == [1024, 0, 512]
    assert cache.hits((4, 1), 1000) == 999


@pytest.mark.parametrize("size", [40, 200, 1000])
def test_tiers_hit_what_an_lru_of_their_size_hits(size):
    """Memory as many blocks as an LRU; with a disk behind it, as a second one of the blocks that were used twice."""
    chains = list(conversations(2000))
    total = sum(map(len, chains))
    small = 30
    twice, _ = second_use_hits(chains, small, size)

    assert play(PrefixCache(size), chains) == lru_hits(chains, size)
    assert play(PrefixCache(small, size), chains) / total == pytest.approx(twice / total, abs=0.01)
    assert HASHES_PER_BLOCK == fetches.HASHES_PER_BLOCK


def play(cache, chains):
    """Return how many blocks of these prompts are found."""
    hits = 0
    for chain in chains:
        hits += cache.hits(chain, BLOCK_TOKENS * len(chain) + 1) // BLOCK_TOKENS
        cache.keep(chain)
    return hits


@pytest.mark.parametrize(("disk", "found"), [(None, 536), ({"path": "/kv", "size": "40GB"}, 537)])
def test_what_a_plan_keeps_bounds_what_prompts_find(duo, disk, found):
    """Eight ranks' 2,304 MiB hold 537 blocks of 36 MB. One more pushes out the last, which a disk has had twice."""
    kept = {"memory": "2304MiB"} | ({} if disk is None else {"disk": disk})
    cache = planned_cache(run_passes(change_spec(duo.resolved, {"kv_cache": kept})))
    for chain in (range(537), range(537), [537]):
        cache.keep(chain)

    assert cache.hits(range(537), 10**6) == found * BLOCK_TOKENS


def test_a_request_alone_takes_its_steps(duo):
    """Its TTFT is one step of its prompt, and each further token one step of one request."""
    found = replay(duo, [TraceRequest(0.0, 1000, 11)])
    (job,) = found.jobs

    assert found.refused == found.too_long == 0
    assert 0 < job.first_token < job.done
    service = build_service(duo)
    assert (job.done - job.first_token) / 10 < 2 * service.tokens.token_seconds[0]


def test_the_same_trace_gives_the_same_replay(duo):
    """Equal ranks take turns, and nothing is random."""
    trace = read_trace(AZURE)
    one, other = (replay(duo, trace) for _ in range(2))

    assert [(job.at, job.done) for job in one.jobs] == [(job.at, job.done) for job in other.jobs]


@pytest.mark.parametrize("policy", Policy)
def test_all_requests_are_done_or_refused(duo, policy):
    """Whoever chooses the ranks; a request beyond the limits is refused by itself."""
    trace = [*poisson(20, 10, 2000, 100), TraceRequest(30.0, 40_000, 10)]
    found = replay(duo, trace, policy)

    assert len(found.jobs) + found.refused == len(trace) - 1
    assert found.too_long == 1
    assert all(job.at < job.first_token <= job.done for job in found.jobs)
    assert all(rank.load.work.num_requests == 0 for job in found.jobs for rank in (job.prompt_rank, job.token_rank))
    assert all(rank.load.work.kv_tokens == 0 for job in found.jobs for rank in (job.prompt_rank, job.token_rank))
    assert all(rank.load.work.prompt_tokens == 0 for job in found.jobs for rank in (job.prompt_rank, job.token_rank))


def test_the_balancer_keeps_kv_more_even_than_turns_do(duo):
    """Under lengths that differ, the fullest rank has less KV than where ranks take turns."""
    rng = np.random.default_rng(1)
    trace = [changed(each, prompt=int(rng.choice([200, 12_000]))) for each in poisson(6, 60, 1, 300)]
    balanced, turns = (replay(duo, trace, policy) for policy in (Policy.BALANCED, Policy.ROUND_ROBIN))

    assert np.mean([each.kv_most for each in balanced.samples]) < np.mean([each.kv_most for each in turns.samples])


@pytest.mark.parametrize(("found_of", "load"), [("duo", 0.5), ("duo", 2.0), ("mixed", 0.5)])
def test_flows_and_single_requests_agree_on_throughput(request, found_of, load):
    """Where both apply, both make as many tokens a second, within five per cent."""
    plan = request.getfixturevalue(found_of)
    service = build_service(plan)
    mean = service.request
    rate = load * service.requests_per_day / 86_400
    trace = poisson(rate, MINUTES * 60, round(mean.prompt), mean.output)
    found = replay(plan, trace)
    begin, end = MINUTES * 20, MINUTES * 60
    tokens = sum(_made(job, begin, end) for job in found.jobs)
    curves = play_day(service, [load / 1440] * (MINUTES + 10), (planned_fleet(plan), planned_fleet(plan)))

    assert tokens / (end - begin) == pytest.approx(curves.tokens[-1] / 60, rel=0.05)


@pytest.mark.parametrize(("found_of", "load"), [("mixed", 0.5), ("mixed", 1.0), ("drafting", 1.0)])
def test_flows_and_single_requests_agree_on_latencies_of_a_mixed_unit(request, found_of, load):
    """Eight ranks that stop for each other's prompts: means of TTFT and TPOT are within a tenth."""
    mixed = request.getfixturevalue(found_of)
    service = build_service(mixed)
    mean, seconds = service.request, MINUTES * 60
    found = replay(mixed, poisson(load * service.requests_per_day / 86_400, seconds, round(mean.prompt), mean.output))
    jobs = [job for job in found.jobs if seconds / 3 <= job.at < seconds - 30 and job.output > 50]
    curves = play_day(service, [load / 1440] * (MINUTES + 10), (planned_fleet(mixed), planned_fleet(mixed)))

    tpot = np.mean([(job.done - job.first_token) / (job.output - 1) for job in jobs])
    assert tpot == pytest.approx(curves.tpot[-1], rel=0.1)
    assert np.mean([job.first_token - job.at for job in jobs]) == pytest.approx(
        prompt_waits(service, curves).mean[-1], rel=0.1
    )


def _made(job, begin, end):
    """The tokens of a request that were made between two times."""
    inside = min(job.done, end) - max(job.first_token, begin)
    return job.output * max(inside, 0.0) / max(job.done - job.first_token, 1e-9)


def test_the_command_plays_a_trace(small_spec, capsys):
    """A column for each balancer, side by side."""
    words = ["--trace", str(MOONCAKE), "--window", "0-2000", "--balancer", "balanced", "--balancer", "round_robin"]

    assert cli.main(["simulate", str(small_spec), *words]) == 0
    out = capsys.readouterr().out
    assert "a trace of 60 requests" in out
    assert "round_robin" in out


def test_a_call_that_mixes_days_and_traces_is_refused(small_spec, capsys):
    """A window without a trace and a failure with one have no meaning."""
    assert cli.main(["simulate", str(small_spec), "--window", "0-1"]) == 2
    assert cli.main(["simulate", str(small_spec), "--fail", "node-0@12:00", "--trace", str(AZURE)]) == 2
    assert re.findall(r"\[(R\d+)\]", capsys.readouterr().err) == ["R415", "R416"]


def test_a_trace_of_which_nothing_is_answered_keeps_no_promise(pair):
    """Requests that were refused kept none, and those that never came have neither kept nor broken one."""
    refused, nobody = (
        ReplayColumn("", Variant("", {}), pair, Replay(Policy.BALANCED, refused=number)) for number in (3, 0)
    )

    assert [each.share_kept(each.ttft, 6000) for each in (refused, nobody)] == [0.0, None]
