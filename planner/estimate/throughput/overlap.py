"""Model how two micro-batches overlap in a layer: a small event model of one rank.

    span      one call in the runtime's trace: attention 1, attention 2, gate, dispatch issue, shared expert,
              dispatch wait, experts, combine issue, combine wait, sum; dense layers have mlp instead of the last eight
    track     compute, where spans follow each other; link, where an exchange lasts from its issue to its last byte
    stage     the spans of a micro-batch between two pauses; micro-batches take turns stage by stage

Micro-batches pause and take turns as in `runtime/expert_parallel/overlap.py`, so that a trace can be compared with a
prediction. The link runs one exchange after another. A wait span ends when its exchange does. Waiting time is called
exposed.

The model runs a few equal layers. `LayerTimeline.seconds` is the time that one more layer adds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from planner.estimate.throughput.dimensions import Seconds
from planner.facts.terms import Overlap

SpanName = str

# In the order in which a layer runs them, named as in the runtime's trace. A wait lasts until its exchange is over.
SPANS = (
    *("attention 1", "attention 2", "gate", "dispatch issue", "shared expert", "dispatch wait", "experts"),
    *("combine issue", "combine wait", "sum"),
)
LINKS = {"dispatch issue": "dispatch", "combine issue": "combine"}  # span that begins an exchange -> its name
WAITS = {"dispatch wait": "dispatch", "combine wait": "combine"}

# Kind of overlap -> the stages of a layer, and how many stages the first micro-batch is ahead of the second.
STAGES: Mapping[Overlap, tuple[tuple[tuple[SpanName, ...], ...], int]] = {
    "none": ((SPANS,), 0),
    "dual_batch": (((*SPANS[8:], *SPANS[:5]), SPANS[5:8]), 0),  # the sum is in one stage with the next layer's start
    "five_stage": ((SPANS[:1], SPANS[1:3], SPANS[3:5], SPANS[5:8], SPANS[8:]), 2),
}
WARM, MEASURED = 3, 3  # numbers of layers: the first ones fill the pipeline, and all later ones take equally long


@dataclass(frozen=True)
class Span:
    """The time of one span of one micro-batch. `begins` counts from the start of the timeline's layer."""

    name: SpanName
    track: str  # compute or link
    micro_batch: int
    begins: Seconds
    lasts: Seconds


@dataclass(frozen=True)
class LayerTimeline:
    """The time of one layer with all its micro-batches, and its spans."""

    seconds: Seconds
    exposed: Seconds  # part of `seconds` spent waiting for exchanges
    spans: tuple[Span, ...]


def one_layer(
    micro_batches: Sequence[Mapping[SpanName, Seconds]], overlap: Overlap, *, with_spans: bool = False
) -> LayerTimeline:
    """Return the timeline of one layer in the middle of a step, when all micro-batches are under way.

    `micro_batches` has, for each micro-batch, the seconds of its compute spans, and of `dispatch` and `combine` on the
    link. Without overlap there is one micro-batch.
    """
    run = _Run(micro_batches, with_spans=with_spans)
    first = STAGES[overlap][0][0]
    marks = {}
    for micro_batch, layer, spans in _stage_order(overlap, len(micro_batches)):
        if micro_batch == 0 and spans is first and layer not in marks:
            marks[layer] = (run.now, run.waited)
        run.run_stage(micro_batch, layer, spans)
    (began, waited), (ended, waited_then) = marks[WARM], marks[WARM + MEASURED]
    shown = tuple(
        Span(each.name, each.track, each.micro_batch, Seconds(each.begins - marks[WARM][0]), each.lasts)
        for layer, each in run.spans
        if layer == WARM
    )
    return LayerTimeline(Seconds((ended - began) / MEASURED), Seconds((waited_then - waited) / MEASURED), shown)


@cache
def _stage_order(overlap: Overlap, num_micro_batches: int) -> tuple[tuple[int, int, tuple[SpanName, ...]], ...]:
    """Return the order in which a rank runs stages, as (micro-batch, layer, spans of the stage).

    Micro-batches take turns, and the first one is some stages ahead.
    """
    stages, lead = STAGES[overlap]
    lead = lead if num_micro_batches > 1 else 0
    flows = [
        [(number, layer, spans) for layer in range(WARM + MEASURED + 1) for spans in stages]
        for number in range(num_micro_batches)
    ]
    order = flows[0][:lead]
    rest = [flows[0][lead:], *flows[1:]]
    for turn in range(len(flows[-1])):
        order += [flow[turn] for flow in rest if turn < len(flow)]
    return tuple(order)


class _Run:
    """The state of a simulated rank: its clock, its link and its exchanges."""

    def __init__(self, micro_batches: Sequence[Mapping[SpanName, Seconds]], *, with_spans: bool) -> None:
        self.now = self.waited = 0.0
        self.spans: list[tuple[int, Span]] = []
        self._times, self._with_spans = micro_batches, with_spans
        self._link_free = 0.0
        self._over: dict[tuple[int, str], float] = {}

    def run_stage(self, micro_batch: int, layer: int, spans: Sequence[SpanName]) -> None:
        """Advance the clock by one stage, and begin the exchanges that its spans issue."""
        times, over, now = (
            self._times[micro_batch],
            self._over,
            self.now,
        )  # locals, because a search runs millions of spans
        for name in spans:
            began = now
            if name in WAITS and (ended := over.get((micro_batch, WAITS[name]), 0.0)) > now:
                self.waited += ended - now
                now = ended
            now += times.get(name, 0.0)
            if self._with_spans:
                self._record(name, "compute", micro_batch, layer, began, now - began)
            if name in LINKS:
                exchange = LINKS[name]
                lasts = times.get(exchange, 0.0)
                begins = max(now, self._link_free)
                self._link_free = over[micro_batch, exchange] = begins + lasts
                if self._with_spans:
                    self._record(exchange, "link", micro_batch, layer, begins, lasts)
        self.now = now

    def _record(self, name: str, track: str, micro_batch: int, layer: int, begins: float, lasts: float) -> None:
        self.spans.append((layer, Span(name, track, micro_batch, Seconds(begins), Seconds(lasts))))
