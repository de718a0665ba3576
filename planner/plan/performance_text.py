"""What phases do, as text: tables of rates and latencies, and sentences about what they rest on.

`explained` adds the stages of a layer, as a table and as a timeline.
"""

from collections.abc import Iterator
from dataclasses import fields

from planner.cost.demand import PhaseLoad
from planner.estimate.performance import PhaseOutlook
from planner.estimate.throughput.intervals import Estimate
from planner.estimate.throughput.kernels import Kernels
from planner.estimate.throughput.overlap import LayerTimeline
from planner.estimate.throughput.predict import Prediction
from planner.estimate.throughput.step import MoeLayers
from planner.estimate.utilisation import follows_from_promise
from planner.facts.counted import counted
from planner.facts.seconds import MS_PER_S, US_PER_S
from planner.plan.columns import WIDTH, filled, table
from planner.plan.estimated import Estimated
from planner.spec.request_lengths import request_lengths

__all__ = ["explained", "performance_text"]

GIGA, BITS_PER_BYTE = 1e9, 8
NAME_WIDTH = 16
MARKS = {"attention 1": "a", "attention 2": "A", "gate": "g", "shared expert": "s", "experts": "E", "sum": "+"}
LINK_MARKS = {"dispatch": "D", "combine": "C"}
WAITING, EXCHANGING = ".", "x"  # a wait, and the kernels of an exchange


def performance_text(plan: Estimated) -> str:
    """The rates and latencies of each phase, with the range that their evidence gives them."""
    rates: list[tuple[str, ...]] = [("tokens/s", "per GPU", "GPU low", "GPU high", "per node", "node low", "node high")]
    latencies: list[tuple[str, ...]] = [("latency, ms", "", "mean", "low", "high")]
    notes: list[str] = []
    kv_rooms = {each.phase: each.kv_tokens for each in plan.memory}
    for outlook in plan.outlooks:
        if outlook.prediction is None:
            notes += filled(f"{outlook.phase.capitalize()} is not predicted: {outlook.why_not}.")
            continue
        rates.append(_rates(outlook, outlook.prediction))
        latencies += _latencies(outlook.prediction)
        notes += _notes(plan, outlook, outlook.prediction, kv_rooms.get(outlook.phase))
        notes += _promises(plan, outlook.prediction)
    for load in plan.demand:
        notes += _load(load)
    if len(rates) == 1:
        return "\n".join(notes)
    note = (
        "At the slowest speed that the evidence allows, rates are low and latencies high; at the fastest, the reverse."
    )
    return "\n".join([table(rates), "", table(latencies), *filled(note), *notes])


def explained(plan: Estimated) -> str:
    """The stages of the most frequent MoE layer of each phase: microseconds, and when they run."""
    parts = []
    for outlook in plan.outlooks:
        found = outlook.prediction
        if found is not None and found.step.usual is not None:
            parts.append("\n".join(_explained(found, found.step.usual)))
    return "\n\n".join(parts)


def _rates(outlook: PhaseOutlook, found: Prediction) -> tuple[str, ...]:
    rate, node = found.tokens_per_s_per_gpu, found.tokens_per_s_per_gpu.times(outlook.gpus_per_node)
    return found.phase, *(f"{each:,.0f}" for one in (rate, node) for each in (one.mid, one.low, one.high))


def _latencies(found: Prediction) -> Iterator[tuple[str, ...]]:
    """Return a row for each latency that the phase has: mixed units have both."""
    means = {"TPOT": found.tpot_seconds, "TTFT": found.ttft_seconds}
    for name, mean in means.items():
        if mean is not None:
            yield found.phase, name, _ms(mean.mid), _ms(mean.low), _ms(mean.high)


def _ms(seconds: float) -> str:
    return f"{seconds * MS_PER_S:,.0f}" if seconds >= 1 else f"{seconds * MS_PER_S:,.1f}"


def _notes(plan: Estimated, outlook: PhaseOutlook, found: Prediction, kv_room: int | None) -> Iterator[str]:
    point = found.point
    at = {
        "decode": f"{point.requests:,} requests per rank or group, each with {point.kv_tokens:,} tokens of KV",
        "prefill": f"steps of {point.step_tokens:,} tokens per rank or group and prompts of {point.prompt_tokens:,}",
        "mixed": f"{point.requests:,} requests per rank or group, prompts of {point.prompt_tokens:,} tokens and "
        f"answers of {point.output_tokens:,.0f}",
    }[found.phase]
    origin = _origin(plan, found) if point.is_derived else ""
    used = ""
    if point.utilisation < 1:
        used_rate = found.tokens_per_s_per_gpu.mid
        rates = f"{used_rate:,.0f} per GPU; at full use {used_rate / point.utilisation:,.0f}"
        used = f" at utilisation {point.utilisation:.3g} ({rates})"
    users = f" and {1 / found.tpot_seconds.mid:,.1f} per user" if found.tpot_seconds else ""
    unit = f"{found.tokens_per_s_per_gpu.mid * found.num_gpus:,.0f} tokens/s per unit"
    made = "computes" if found.phase == "prefill" else "makes"
    yield from filled(f"{found.phase.capitalize()} on {found.engine} {made} {unit}{users}{used}, with {at}.{origin}")
    if (hits := found.tokens_per_s_with_hits) is not None and point.cache_hit_rate:
        counted = hits.times(outlook.gpus_per_node).mid
        yield from filled(
            f"Counting cache hits, {point.cache_hit_rate * 100:g}% of prompt tokens, a node takes {counted:,.0f} "
            "tokens/s."
        )
    yield from _read(found)
    yield from _drafted(found)
    yield from _rarely(found)
    if found.phase != "prefill":
        share = "" if kv_room is None else f", {outlook.kv_tokens_in_use / kv_room * 100:.0f}% of what fits"
        yield from filled(f"KV in use is {outlook.kv_tokens_in_use:,} tokens per rank or group{share}.")
    binding = found.binding
    worth = f"Improving {binding.resource} by 10% would bring {binding.gain * 100:.1f}% more tokens/s"
    fullest = (
        f"In one step, drift and luck included, the fullest GPU has {found.imbalance.gpus:.2f} times the mean load"
    )
    yield from filled(f"{fullest}. {worth}.")
    if (changed := outlook.correction) is not None:
        yield from filled(
            f"{changed.file} changes it by {changed.factor - 1:+.1%}: the mean error on its measurements was "
            f"{changed.error_before:.1%} and is now {changed.error_after:.1%}."
        )
    yield from filled(f"The range is this wide because {_reason(found)}.")


def _origin(plan: Estimated, found: Prediction) -> str:
    """Say where a point comes from that nobody wrote."""
    if request_lengths(plan.spec, found.phase).are_assumed:
        return " The spec has no operating_point, so these are the phase's limits."
    return " The spec has no operating_point: lengths follow from traffic.requests, and the rest are limits."


def _read(found: Prediction) -> Iterator[str]:
    point, reads = found.point, found.cache_read_bytes_per_s
    if reads:
        yield from filled(
            f"A node reads {reads / GIGA:,.2f} GB/s of cached KV; its storage gives "
            f"{point.cache_read_gbps / BITS_PER_BYTE:,.1f} GB/s. Reading one prompt's KV takes "
            f"{_ms(found.cache_read_seconds)} ms."
        )


def _drafted(found: Prediction) -> Iterator[str]:
    point = found.point
    if found.phase == "prefill" or not point.draft_tokens:
        return
    drafts = counted(point.draft_tokens, "draft")
    yield from filled(
        f"A step of {found.step.seconds * MS_PER_S:,.1f} ms verifies {drafts} per request. A draft whose predecessors "
        f"are right is right {point.acceptance_rate * 100:g}% of the time, so a step yields "
        f"{point.accepted_tokens:.2f} tokens."
    )


def _rarely(found: Prediction) -> Iterator[str]:
    """Say the latencies that one in a hundred exceeds."""
    if found.ttft_99_seconds is not None:
        yield from filled(
            f"One prompt in a hundred takes {_ms(found.ttft_99_seconds.mid)} ms or more.{_unwaited(found)}"
        )
    if found.tpot_99_seconds is not None:
        yield from filled(f"One step in a hundred takes {_ms(found.tpot_99_seconds.mid)} ms per token or more.")


def _unwaited(found: Prediction) -> str:
    if not found.waits_without_end:
        return ""
    return " TTFT does not count the wait for a turn: at utilisation 1 prompts wait longer and longer."


def _reason(found: Prediction) -> str:
    evidence = found.evidence
    scaled = ""
    if evidence.scaled:
        part = "all" if len(evidence.scaled) == len(fields(Kernels)) else "some"
        scaled = f"; {part} of its GPU's constants are scaled from another's"
    return f"{evidence.why}{scaled}"


def _promises(plan: Estimated, found: Prediction) -> Iterator[str]:
    slo, phase = plan.spec.slo, found.phase.capitalize()
    if any(load.phase == found.phase and load.is_over for load in plan.fullest):
        phase = f"At its operating point {found.phase}"
    for name, promised, each in (
        ("TTFT", slo.ttft_ms, found.ttft_seconds),
        ("TPOT", slo.tpot_ms, found.tpot_seconds),
    ):
        if promised is not None and each is not None:
            yield from filled(f"{phase} {_kept(found, each, f'the mean {name} of {promised:g} ms', promised)}.")
            if name == "TTFT":
                yield from _wait(plan, found, is_kept=found.keeps(each, promised))


def _kept(found: Prediction, mean: Estimate, what: str, promised: float) -> str:
    """Say at which speeds of the range a promise is kept, and how likely these are as far as anybody knows."""
    fastest, expected, slowest = (f"{_ms(each)} ms" for each in (mean.low, mean.mid, mean.high))
    what += " that slo promises"
    if mean is found.ttft_seconds and found.waits_without_end:
        return f"misses {what}: at utilisation 1 prompts wait longer and longer"
    if found.keeps_at(mean, mean.high, promised):
        return f"keeps {what}, even at the slowest speed of its range ({slowest})"
    if found.keeps(mean, promised):
        misses = f"it misses it at the slowest speed of its range ({slowest})"
        return f"is expected to keep {what} ({expected}); {misses}, and {found.evidence.chance}"
    if found.keeps_at(mean, mean.low, promised):
        keeps = f"it keeps it only near the fastest speed of its range ({fastest})"
        return f"is expected to miss {what} ({expected}); {keeps}, and {found.evidence.chance}"
    return f"misses {what}, even at the fastest speed of its range ({fastest})"


def _wait(plan: Estimated, found: Prediction, *, is_kept: bool) -> Iterator[str]:
    """Say what a TTFT has of waiting."""
    if follows_from_promise(plan.spec, found.phase):
        waited = f"prompts wait {found.point.queued_steps:.2g} steps for their turn on average"
        full = "as full as the TTFT leaves time for" if is_kept else "half full, and no less"
        yield from filled(f"It counts on units that are kept {full}: {waited}.")


def _load(load: PhaseLoad) -> Iterator[str]:
    asked = f"At {load.at} the traffic needs {load.asked_per_s:,.0f} tokens/s of {load.phase}"
    if not load.served_per_s:
        yield from filled(f"{asked}, and no such unit is on.")
        return
    full = ""
    if load.most_per_s > load.served_per_s:
        full = f", and {load.share_of_most:.0%} of the most that they can make"
    is_flat = f"{load.lowest:.0%}" == f"{load.load:.0%}"
    other = (
        "At any other time it is the same."
        if is_flat
        else f"In the quietest hour it is {load.lowest:.0%} of that point."
    )
    on = "of what the units that are on make at their operating point"
    yield from filled(f"{asked}: {load.load:.0%} {on}{full}. {other}")


def _explained(found: Prediction, usual: MoeLayers) -> Iterator[str]:
    step, timeline = found.step, usual.timeline
    rows = [(f"{found.phase}, us", *(f"micro-batch {index}" for index in range(len(usual.spans))))]
    names = dict.fromkeys(name for spans in usual.spans for name in spans)
    rows += [(name, *(f"{spans.get(name, 0.0) * US_PER_S:,.1f}" for spans in usual.spans)) for name in names]
    yield table(rows)
    of_kind = usual.count * timeline.seconds
    others = f"other MoE layers {(step.moe_layers - of_kind) * MS_PER_S:,.2f}, " if len(step.moe_kinds) > 1 else ""
    drafts = f"drafts {step.drafts * MS_PER_S:,.2f}, " if step.drafts else ""
    whole, exposed = timeline.seconds * US_PER_S, timeline.exposed * US_PER_S
    yield from filled(
        f"A layer takes {whole:,.1f} us, {exposed:,.1f} of them waiting for exchanges. In ms, {usual.count} such "
        f"layers take {of_kind * MS_PER_S:,.2f}, {others}dense layers {step.dense_layers * MS_PER_S:,.2f}, head "
        f"{step.head * MS_PER_S:,.2f}, {drafts}host {step.host * MS_PER_S:,.2f}: {step.seconds * MS_PER_S:,.2f} a step."
    )
    yield from _drawn(timeline, len(usual.spans))


def _drawn(timeline: LayerTimeline, num_micro_batches: int) -> Iterator[str]:
    """A line for each micro-batch's compute and for its exchanges, all of one layer long."""
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
    yield from filled(f"{marks}, {EXCHANGING} kernels of an exchange, {WAITING} waiting for one.")


def _mark(name: str, track: str) -> str:
    if track == "link":
        return LINK_MARKS[name]
    return MARKS.get(name) or (WAITING if name.endswith("wait") else EXCHANGING)
