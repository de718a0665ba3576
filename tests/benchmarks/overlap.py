"""The planner's event model of overlap, laid over the trace of two real ranks on a link slowed on purpose.

    python -m tests.benchmarks.overlap

Per phase, with and without overlap, and per rank: the time exposed in one MoE layer, as the event model makes it of the
layer's spans, over what the layer waited in the trace. The nearest of the steps counts, since a busy machine delays
threads and never hurries them. Exits with 1 when a goal is missed. Half a minute.
"""

import json
import sys
import tempfile
from pathlib import Path

from planner.estimate.throughput.overlap import one_layer
from tests.benchmarks.goals import Goals
from tests.runtime.random_checkpoints import V3, write_checkpoint
from tests.runtime.rank_processes import run_ranks
from tests.runtime.slow_link_ranks import OVERLAP

SIZE, PORT = 2, 29620
CONFIG = V3 | {"num_hidden_layers": 4}
LAYER = CONFIG["num_hidden_layers"] - 2  # the last one has no next one behind which to hide
COMPUTE_TRACK, LINK_TRACK = 0, 1


def main():
    """Run the ranks once, and hold every trace against the model."""
    goals = Goals()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        checkpoint = write_checkpoint(folder / "checkpoint", CONFIG)
        run_ranks("slow_link_ranks.py", SIZE, PORT, checkpoint, folder)
        for phase, overlap in OVERLAP.items():
            for name, told in (("none", "none"), ("late", overlap)):
                for rank in range(SIZE):
                    error = nearest_error(folder / f"{phase}-{name}-{rank}.json", told)
                    goals.check(f"{phase}, link {name}, rank {rank}: |predicted / found - 1|", abs(error), "<=", 0.1)
    sys.exit(goals.report())


def nearest_error(trace, overlap):
    """Predicted over found, less one, of the step where that is least."""
    spans = sorted((event for event in json.loads(trace.read_text()) if event["ph"] == "X"), key=lambda e: e["ts"])
    computed, exchanges = ([e for e in spans if e["tid"] == track] for track in (COMPUTE_TRACK, LINK_TRACK))
    pairs = [predicted_and_found_us(step, exchanges, overlap) for step in steps(computed)]
    return min((predicted / found - 1 for predicted, found in pairs), key=abs)


def steps(spans):
    """The layers' spans of each step: the first micro-batch begins anew."""
    found = []
    for span in spans:
        if span["name"] == "attention 1" and span["args"] == {"layer": 0, "micro_batch": 0}:
            found.append([])
        found[-1].append(span)
    return found


def predicted_and_found_us(step, exchanges, overlap):
    """What the planner's event model makes of a layer's spans in a step, and how long the layer waited there.

    An exchange lasts from its issue, or from when the link was free: on a busy machine its thread begins late.
    """
    began, ended = step[0]["ts"], end_of(step[-1])
    exchanges = sorted((span for span in exchanges if began <= span["ts"] <= ended), key=end_of)
    free = dict(zip((span["ts"] for span in exchanges[1:]), map(end_of, exchanges), strict=False))
    waited, micro_batches = 0, []
    for number in range(1 if overlap == "none" else 2):
        about = {"layer": LAYER, "micro_batch": number}
        own = {span["name"]: span for span in step if span["args"] == about}
        times = {name: span["dur"] for name, span in own.items() if not name.endswith(" wait")}
        for span in exchanges:
            if span["args"] == about:
                issued = end_of(own[f"{span['name']} issue"])
                times[span["name"]] = end_of(span) - max(issued, free.get(span["ts"], 0))
        waited += sum(span["dur"] for name, span in own.items() if name.endswith(" wait"))
        micro_batches.append(times)
    return one_layer(micro_batches, overlap).exposed, waited


def end_of(span):
    """When a span ended, in microseconds."""
    return span["ts"] + span["dur"]


if __name__ == "__main__":
    main()
