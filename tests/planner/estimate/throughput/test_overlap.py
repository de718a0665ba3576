"""The event model of overlap: what hides, what is exposed, and that the spans are the runtime's."""

import re
from pathlib import Path

import pytest

from planner.estimate.throughput.overlap import LINKS, SPANS, STAGES, one_layer

ROOT = Path(__file__).parents[4]
COMPUTE = [name for name in SPANS if "wait" not in name and "issue" not in name]
EVEN = dict.fromkeys(COMPUTE, 10.0)


def micro_batches(overlap, times):
    return [times] * (1 if overlap == "none" else 2)


def test_spans_are_those_of_the_runtimes_trace():
    """A trace and a prediction lay over each other: each name is a span of the runtime's model."""
    sources = "".join(path.read_text() for path in (ROOT / "runtime" / "model").glob("*.py"))

    assert set(SPANS) == set(re.findall(r'self\.span\("([\w ]+)"\)', sources)) - {"mlp"}


def test_stages_are_the_runtimes():
    """As many pauses count in a layer as there, and the first micro-batch is ahead by as many stages."""
    source = (ROOT / "runtime" / "expert_parallel" / "overlap.py").read_text()

    assert "Overlap(2, frozenset({Pause.DISPATCHING, Pause.COMBINING}))" in source
    assert "Overlap(2, frozenset(Pause), lead=2)" in source
    assert {overlap: (len(stages), lead) for overlap, (stages, lead) in STAGES.items()} == {
        "none": (1, 0),
        "dual_batch": (2, 0),
        "five_stage": (5, 2),
    }


@pytest.mark.parametrize("overlap", STAGES)
@pytest.mark.parametrize("name", [*COMPUTE, *LINKS.values()])
def test_a_layer_with_one_stage_takes_that_stage(overlap, name):
    """Every other stage is 0: compute adds up, and what is only on the link is all exposed."""
    parts = micro_batches(overlap, {name: 10.0})
    layer = one_layer(parts, overlap)

    assert layer.seconds == pytest.approx(10.0 * len(parts))
    assert layer.exposed == pytest.approx(layer.seconds if name in LINKS.values() else 0.0)


def test_without_overlap_only_the_shared_expert_hides_dispatch():
    """One micro-batch waits for its own exchanges."""
    layer = one_layer([EVEN | {"dispatch": 25.0, "combine": 25.0}], "none")

    assert layer.exposed == pytest.approx(25.0 - 10.0 + 25.0)


def test_five_stages_hide_each_exchange_behind_its_window():
    """Dispatch has the shared expert and the other's first half of attention; combine has its second half, and gate."""
    hidden = one_layer(micro_batches("five_stage", EVEN | {"dispatch": 20.0, "combine": 20.0}), "five_stage")
    late_dispatch = one_layer(micro_batches("five_stage", EVEN | {"dispatch": 23.0, "combine": 20.0}), "five_stage")
    late_combine = one_layer(micro_batches("five_stage", EVEN | {"dispatch": 20.0, "combine": 24.0}), "five_stage")

    assert hidden.exposed == pytest.approx(0.0)
    assert late_dispatch.exposed == pytest.approx(2 * 3.0)
    assert late_combine.exposed == pytest.approx(2 * 4.0)


def test_two_batches_hide_what_the_other_computes():
    """The second dispatch has least: its shared expert, and the other's experts. The link takes one after the other."""
    times = EVEN | {"dispatch": 20.0, "combine": 10.0}
    fits = one_layer(micro_batches("dual_batch", times), "dual_batch")
    full = one_layer(micro_batches("dual_batch", EVEN | {"dispatch": 80.0, "combine": 80.0}), "dual_batch")

    assert fits.exposed == pytest.approx(0.0)
    assert full.seconds == pytest.approx(2 * 160.0)  # the link binds


def test_the_timeline_shows_one_layer():
    """Its compute spans follow each other without gaps but waits, and each exchange begins where it is issued."""
    layer = one_layer(micro_batches("five_stage", EVEN | {"dispatch": 30.0}), "five_stage", with_spans=True)
    issued = [each for each in layer.spans if each.name == "dispatch issue"]
    sent = [each for each in layer.spans if each.name == "dispatch"]

    assert {each.name for each in layer.spans if each.track == "compute"} == set(SPANS)
    assert [each.begins for each in sent] == [pytest.approx(each.begins + each.lasts) for each in issued]
