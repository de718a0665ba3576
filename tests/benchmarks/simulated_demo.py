"""The simulation of single requests beside the running demo: does it say what a client sees?

    python -m tests.benchmarks.simulated_demo [--runs 5] [--load 0.6]

One mixed unit of the bundled model runs on this machine, a rank a core. First its speed is measured: the time between
tokens with one to sixteen streams of short and of long contexts, and how long two streams wait for prompts of four
lengths, beside a short one and in pairs. These are the speeds that the simulation gets instead of a prediction. It
knows of steps only, so the rest of a first token's time, measured without streams, is added to its TTFT: HTTP, JSON,
the gateway. Then a trace is asked of the demo and played by the simulation: the sixty requests of Azure's that the
tests have, with lengths and times divided so that they fit the demo and ask for a share of what it can do.

It exits with 1 unless mean TTFT, mean TPOT and throughput of the simulation are within 15 % of the medians of the runs.
It needs two idle cores: ranks, gateway and client share them, and whatever else runs is seen in every figure.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
from itertools import chain, pairwise
from pathlib import Path

from planner.compiler import run_passes
from planner.facts.trace import TraceRequest
from planner.rules.check import check_spec
from stacks.simulator.requests.replay import replay
from stacks.simulator.requests.step_times import PhaseSpeed, StepTable
from stacks.simulator.requests.trace import read_trace
from tests.benchmarks.balancers_demo import Asked, ask_all
from tests.benchmarks.goals import Goals
from tests.stacks.deployments import REPOSITORY, Tidemill

SPEC = Path(__file__).with_name("simulated_demo.yaml")
TRACE = REPOSITORY / "tests" / "stacks" / "simulator" / "data" / "azure_conv_60.csv"
HOST = "127.90.6.1"
RANKS = 2
STREAMS = (2, 4, 8, 16)  # together, so that both ranks have as many
CONTEXTS = (32, 1024)  # tokens of a stream's prompt
PROMPTS = (16, 128, 512, 1536)  # tokens
STREAMED, TIMES = 48, 5
APART_S = 0.4  # between prompts that streams wait for: longer than the longest of them takes
LONGEST_PROMPT, MEAN_ANSWER = 1536, 48
WITHIN = 0.15


def main():
    """Measure, ask, play and compare; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--load", type=float, default=0.6, help="share of what the demo can do")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tidemill = Tidemill(HOST, Path(folder) / "state")
        up = tidemill.up(SPEC)
        assert up.returncode == 0, up.stderr
        try:
            speed, outside = measured_speed()
            trace = scaled(read_trace(TRACE), speed, arguments.load)
            runs = [asked(trace) for _ in range(arguments.runs)]
        finally:
            tidemill.run("down")
    return compared(runs, simulated(trace, speed, outside))


def measured_speed():
    """Return what steps take, as clients see them, and the seconds of a first token outside of all steps."""
    asyncio.run(ask_all([Asked(64, 8), Asked(64, 8)], HOST))  # whatever the first request prepares
    alone = [token_seconds(1, context) for context in CONTEXTS]
    even = [[token_seconds(streams, context) for context in CONTEXTS] for streams in STREAMS]
    tokens = [(one * each / first, each) for row in even for one, each, first in zip(alone, row, even[0], strict=True)]
    show("streams", (1, *STREAMS), [alone, *even], "ms between tokens with contexts of 32 and 1,024")
    both = [[(each, PROMPTS[0]), (each, each)] for each in PROMPTS]
    waits = [[waited_seconds(*lengths) for lengths in row] for row in both]
    firsts = [[prompt_seconds(*lengths) for lengths in row] for row in both]
    outside = statistics.median(a - b for row in zip(firsts, waits, strict=True) for a, b in zip(*row, strict=True))
    show("prompt", PROMPTS, waits, "ms that streams wait for it, beside a short prompt and in pairs")
    show("prompt", PROMPTS, firsts, f"ms to its first token without streams, of which {1e3 * outside:.1f} outside")
    loads = tuple(streams / RANKS for streams in STREAMS)
    computed = [seconds for row in waits for _ in (0, 1) for seconds in row]
    speed = PhaseSpeed(
        prompts=StepTable(tuple(map(float, PROMPTS)), (0.0, 2048.0), (1 / RANKS, 1.0), tuple(computed)),
        tokens=StepTable(loads, tuple(map(float, CONTEXTS)), (1 / RANKS, 1.0), tuple(sum(tokens, ()))),
        step_tokens=2048,
    )
    return speed, outside


def token_seconds(streams, context):
    """Return the median seconds between two tokens while so many streams run, half a context and more each."""
    found = []
    for _ in range(2):
        calls = [Asked(context, STREAMED) for _ in range(streams)]
        asyncio.run(ask_all(calls, HOST))
        begin, end = max(each.token_times[0] for each in calls), min(each.token_times[-1] for each in calls)
        for each in calls:
            inside = [at for at in each.token_times if begin <= at <= end]
            if len(inside) > 1:
                found.append((inside[-1] - inside[0]) / (len(inside) - 1))
    return statistics.median(found)


def waited_seconds(*lengths):
    """Return the median seconds that a stream on each rank waits for prompts of these lengths, which come at once."""
    assert len(lengths) == RANKS
    streams = [Asked(PROMPTS[0], 8 * STREAMED) for _ in range(RANKS)]
    turns = [[Asked(tokens, 1, APART_S * (turn + 1)) for tokens in lengths] for turn in range(TIMES)]
    asyncio.run(ask_all([*streams, *chain.from_iterable(turns)], HOST))
    found = []
    for each in streams:
        gaps = [later - sooner for sooner, later in pairwise(each.token_times)]
        undisturbed = statistics.median(gaps)
        for turn in turns:
            begin, end = turn[0].came_at, max(prompt.token_times[0] for prompt in turn)
            inside = [gap for gap, at in zip(gaps, each.token_times, strict=False) if begin <= at < end]
            found.append(sum(inside) - undisturbed * len(inside))
    return statistics.median(found)


def prompt_seconds(*lengths):
    """Return the median seconds to the first tokens of prompts that come at once, one for each rank.

    A rank without one would sleep for a moment yet: an idle unit looks for requests 50 times a second only. Requests
    that follow one another at once would meet each of them the whole of that moment.
    """
    assert len(lengths) == RANKS
    found = []
    for _ in range(TIMES):
        calls = [Asked(tokens, 2) for tokens in lengths]
        asyncio.run(ask_all(calls, HOST))
        found.append(max(each.token_times[0] for each in calls) - calls[0].came_at)
    return statistics.median(found)


def scaled(trace, speed, load):
    """Return the trace with lengths that fit the demo, as often as takes that share of its time."""
    longest = max(each.prompt for each in trace)
    by = statistics.mean(each.output for each in trace) / MEAN_ANSWER
    sizes = [
        (max(16, each.prompt * LONGEST_PROMPT // longest), min(max(2, round(each.output / by)), 400)) for each in trace
    ]
    streams = STREAMS[1]
    work = sum(
        speed.prompts.seconds_at(prompt, 0.0, 1 / RANKS)
        + answer * speed.tokens.seconds_at(streams / RANKS, prompt, 1.0) / streams
        for prompt, answer in sizes
    )
    pace = work / load / trace[-1].at
    return [TraceRequest(each.at * pace, *size) for each, size in zip(trace, sizes, strict=True)]


def asked(trace):
    """Return (mean TTFT, mean TPOT, tokens a second) of the trace asked of the demo."""
    calls = [Asked(each.prompt, each.output, each.at) for each in trace]
    asyncio.run(ask_all(calls, HOST))
    assert all(each.status == 200 for each in calls), "the demo refused a request"
    began = min(each.came_at for each in calls)
    seconds = max(each.token_times[-1] for each in calls) - began
    return (
        statistics.mean(each.token_times[0] - each.came_at for each in calls),
        statistics.mean((each.token_times[-1] - each.token_times[0]) / (each.answer_tokens - 1) for each in calls),
        sum(each.answer_tokens for each in calls) / seconds,
    )


def simulated(trace, speed, outside):
    """Return the same of the simulation, with the seconds of a first token that are outside of its steps."""
    found = replay(run_passes(check_spec(SPEC)), trace, speeds={"mixed": speed})
    assert not found.refused
    assert not found.too_long
    return (
        statistics.mean(job.first_token - job.at for job in found.jobs) + outside,
        statistics.mean((job.done - job.first_token) / (job.output - 1) for job in found.jobs),
        sum(job.output for job in found.jobs) / found.seconds,
    )


def compared(runs, simulation):
    """Print both and check that they agree."""
    goals = Goals()
    names = {"mean TTFT, ms": 1e3, "mean TPOT, ms": 1e3, "tokens/s": 1.0}
    for place, (name, factor) in enumerate(names.items()):
        values = [run[place] for run in runs]
        median = statistics.median(values)
        print(
            f"{name}: simulated {simulation[place] * factor:.1f}, runs "
            + ", ".join(f"{value * factor:.1f}" for value in sorted(values))
        )
        goals.check(f"{name}, simulated over the median of the runs", abs(simulation[place] / median - 1), "<=", WITHIN)
    return goals.report()


def show(what, heads, rows, unit):
    """Print a table of seconds in milliseconds."""
    print(f"{what}: {unit}")
    for head, row in zip(heads, rows, strict=True):
        print(f"{head:>8}" + "".join(f"{1e3 * each:>10.2f}" for each in row), flush=True)


if __name__ == "__main__":
    sys.exit(main())
