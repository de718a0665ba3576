"""On a link slowed on purpose, the trace shows that communication hides behind the other micro-batch's compute."""

import json
from collections import defaultdict
from itertools import product

import pytest

from tests.runtime.random_checkpoints import V3, write_checkpoint
from tests.runtime.rank_processes import run_ranks
from tests.runtime.slow_link_ranks import OVERLAP, STEPS

SIZE = 2
CONFIG = V3 | {"num_hidden_layers": 4}
COMPUTE = {"attention 1", "attention 2", "gate", "shared expert", "experts", "sum", "head"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, free_port):
    """Return the files of real ranks that computed the same steps with and without overlap."""
    folder = tmp_path_factory.mktemp("slow-link")
    checkpoint = write_checkpoint(folder / "checkpoint", CONFIG)
    run_ranks("slow_link_ranks.py", SIZE, free_port(), checkpoint, folder)
    return folder


@pytest.fixture(scope="module")
def traces(folder):
    """Return (phase, overlap, rank) -> spans of the compute track."""
    return {
        (phase, overlap, rank): [
            event
            for event in json.loads((folder / f"{phase}-{overlap}-{rank}.json").read_text())
            if event["ph"] == "X" and event["tid"] == 0
        ]
        for phase, overlapped in OVERLAP.items()
        for overlap in ("none", overlapped)
        for rank in range(SIZE)
    }


@pytest.fixture(scope="module")
def busy_times(folder):
    """Return the times when each rank's link was busy."""
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(SIZE)]


def steps(spans):
    """Split the layers' spans into steps: each begins with the first micro-batch in the first layer."""
    found = []
    for span in sorted(spans, key=lambda span: span["ts"]):
        if span["name"] == "attention 1" and span["args"] == {"layer": 0, "micro_batch": 0}:
            found.append([])
        found[-1].append(span)
    assert len(found) == STEPS
    return found


def moe_layers():
    return range(CONFIG["first_k_dense_replace"], CONFIG["num_hidden_layers"])


def has_other_compute_in_flight(step, layer, micro_batch, exchange):
    """Return whether the other micro-batch computes between this exchange's issue and its wait."""
    own = {span["name"]: span for span in step if span["args"] == {"layer": layer, "micro_batch": micro_batch}}
    issued = own[f"{exchange} issue"]["ts"] + own[f"{exchange} issue"]["dur"]
    waited = own[f"{exchange} wait"]["ts"]
    return any(
        issued <= span["ts"] and span["ts"] + span["dur"] <= waited
        for span in step
        if span["name"] in COMPUTE and span["args"]["micro_batch"] != micro_batch
    )


def exposed_us(spans, busy_times, of_steps):
    """Return layer -> waiting time while the link is busy, the min or max over steps.

    Waits for a late peer do not count.
    """
    by_layer = defaultdict(list)
    for step in steps(spans):
        for layer in moe_layers():
            waits = [span for span in step if span["args"].get("layer") == layer and span["name"].endswith(" wait")]
            by_layer[layer].append(sum(overlapping_us(wait, busy_times) for wait in waits))
    return {layer: of_steps(exposed) for layer, exposed in by_layer.items()}


def overlapping_us(span, intervals):
    start, end = span["ts"], span["ts"] + span["dur"]
    return sum(max(0, min(end, until) - max(start, since)) for since, until in intervals)


def hides_every_exchange(spans):
    """Return whether every exchange of a step is hidden, except the last, which has nothing left behind it."""
    micro_batches = {span["args"]["micro_batch"] for span in spans}
    last = (moe_layers()[-1], max(micro_batches), "combine")
    exchanges = set(product(moe_layers(), micro_batches, ("dispatch", "combine"))) - {last}
    return all(has_other_compute_in_flight(step, *exchange) for step in steps(spans) for exchange in exchanges)


def halves_exposure(spans, plain, busy_times):
    """Return whether overlap halves the exposed time in every MoE layer.

    The step that a busy machine has disturbed least counts for each kind. A busy machine delays threads: one that would
    have hidden an exchange exposes it, and one that would have waited comes when the link is done, which is never
    sooner than it takes.
    """
    exposed, of_plain = exposed_us(spans, busy_times, min), exposed_us(plain, busy_times, max)
    return all(exposed[layer] <= of_plain[layer] / 2 for layer in moe_layers())


@pytest.mark.whole
@pytest.mark.parametrize("phase", OVERLAP)
def test_the_other_computes_between_issue_and_wait(traces, phase):
    """In each MoE layer of each step, the other micro-batch computes during each dispatch and combine."""
    for rank in range(SIZE):
        assert hides_every_exchange(traces[phase, OVERLAP[phase], rank])


@pytest.mark.parametrize("phase", OVERLAP)
def test_at_most_half_stays_exposed(traces, busy_times, phase):
    """With overlap, at most half of the waiting without overlap is left in every MoE layer."""
    for rank in range(SIZE):
        plain = traces[phase, "none", rank]
        assert min(exposed_us(plain, busy_times[rank], max).values()) > 0
        assert halves_exposure(traces[phase, OVERLAP[phase], rank], plain, busy_times[rank])


@pytest.mark.parametrize("phase", OVERLAP)
def test_without_overlap_both_fail(traces, busy_times, phase):
    """Without overlap both checks above fail."""
    for rank in range(SIZE):
        plain = traces[phase, "none", rank]
        assert not hides_every_exchange(plain)
        assert not halves_exposure(plain, plain, busy_times[rank])
