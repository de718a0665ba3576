"""Draw the stages of an MoE layer as a table and a timeline, for `plan --explain`."""

from collections.abc import Iterator, Sequence

from planner.estimate.performance import PhaseOutlook
from planner.estimate.throughput.overlap import LayerTimeline
from planner.estimate.throughput.predict import Prediction
from planner.estimate.throughput.step import MoeLayers
from planner.facts.quantities import MS_PER_S, US_PER_S
from planner.report.columns import WIDTH, format_table, wrap_note

NAME_WIDTH = 16
MARKS = {"attention 1": "a", "attention 2": "A", "gate": "g", "shared expert": "s", "experts": "E", "sum": "+"}
LINK_MARKS = {"dispatch": "D", "combine": "C"}
WAITING, EXCHANGING = ".", "x"  # marks for waiting for an exchange, and for running its kernels


def explain_layers(outlooks: Sequence[PhaseOutlook]) -> str:
    """Return text on each phase's most frequent kind of MoE layer: the microseconds of its stages, and a timeline."""
    parts = []
    for outlook in outlooks:
        found = outlook.prediction
        if found is not None and found.step.usual is not None:
            parts.append("\n".join(_explain_phase(found, found.step.usual)))
    return "\n\n".join(parts)


def _explain_phase(found: Prediction, usual: MoeLayers) -> Iterator[str]:
    step, timeline = found.step, usual.timeline
    rows = [(f"{found.phase}, us", *(f"micro-batch {index}" for index in range(len(usual.spans))))]
    names = dict.fromkeys(name for spans in usual.spans for name in spans)
    rows += [(name, *(f"{spans.get(name, 0.0) * US_PER_S:,.1f}" for spans in usual.spans)) for name in names]
    yield format_table(rows)
    of_kind = usual.count * timeline.seconds
    others = f"other MoE layers {(step.moe_layers - of_kind) * MS_PER_S:,.2f}, " if len(step.moe_kinds) > 1 else ""
    drafts = f"drafts {step.drafts * MS_PER_S:,.2f}, " if step.drafts else ""
    whole, exposed = timeline.seconds * US_PER_S, timeline.exposed * US_PER_S
    yield from wrap_note(
        f"A layer takes {whole:,.1f} us, {exposed:,.1f} of them waiting for exchanges. In ms, {usual.count} such "
        f"layers take {of_kind * MS_PER_S:,.2f}, {others}dense layers {step.dense_layers * MS_PER_S:,.2f}, head "
        f"{step.head * MS_PER_S:,.2f}, {drafts}host {step.host * MS_PER_S:,.2f}: {step.seconds * MS_PER_S:,.2f} a step."
    )
    yield from _draw_timeline(timeline, len(usual.spans))


def _draw_timeline(timeline: LayerTimeline, num_micro_batches: int) -> Iterator[str]:
    """Yield the lines of a layer's timeline, two per micro-batch (compute and exchanges), and then the legend."""
    width = WIDTH - NAME_WIDTH - 2
    per_column = timeline.seconds / width if timeline.seconds else 1.0
    for index in range(num_micro_batches):
        for track in ("compute", "link"):
            columns = [" "] * width
            for span in timeline.spans:
                if span.micro_batch == index and span.track == track:
                    first = round(span.begins / per_column)
                    for column in range(first, round((span.begins + span.lasts) / per_column)):
                        columns[column % width] = _mark(span.name, track)
            yield f"  {f'{track} {index}':{NAME_WIDTH}}{''.join(columns)}".rstrip()
    marks = ", ".join(f"{mark} {name}" for name, mark in (MARKS | LINK_MARKS).items())
    yield from wrap_note(f"{marks}, {EXCHANGING} kernels of an exchange, {WAITING} waiting for one.")


def _mark(name: str, track: str) -> str:
    if track == "link":
        return LINK_MARKS[name]
    return MARKS.get(name) or (WAITING if name.endswith("wait") else EXCHANGING)
