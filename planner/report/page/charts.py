"""The page's figures of memory, speed, stages of a layer, money, the KV cache and reasons. Words are the report's."""

from collections.abc import Iterator
from math import fsum

from planner.estimate.throughput.dimensions import Seconds
from planner.estimate.throughput.overlap import LayerTimeline, Span, one_layer
from planner.facts.quantities import US_PER_S
from planner.facts.terms import Phase
from planner.plan.plan import Plan
from planner.report.page.figures import Bar, Bars, Figure, Mark, Segment, Table, by_phase
from planner.report.report import Report, format_microseconds, format_value

MEMORY = {
    "weights_bytes": "weights",
    "activation_bytes": "activations",
    "buffer_bytes": "exchange buffers",
    "reserve_bytes": "reserve: CUDA graphs, libraries",
}
KV = {"kv_bytes": "room for KV"}
SPEEDS = {
    "ttft_ms": ("TTFT, mean", "ms"),
    "ttft_p99_ms": ("TTFT, 99th percentile", "ms"),
    "tpot_ms": ("TPOT, mean", "ms"),
    "tpot_p99_ms": ("TPOT, 99th percentile", "ms"),
    "tokens_per_s_per_gpu": ("rate of a GPU", "tokens/s"),
    "tokens_per_s_per_user": ("rate of a user", "tokens/s"),
}
STAGES = {
    "attention": "attention",
    "gate": "gate and sum",
    "shared": "shared expert",
    "experts": "routed experts",
    "dispatch": "dispatch",
    "combine": "combine",
    "issue": "kernels of an exchange",
    "wait": "waiting for an exchange",
}
MONEY = {
    "prefill": "prefill units",
    "decode": "decode units",
    "mixed": "mixed units",
    "spares": "spares",
    "range": "income from the slowest to the fastest speed",
    "mid": "expected income",
}
OF_A_DAY = {"usd_per_day": "cost", "answered_share": "answered", "revenue_usd_per_day": "income", "margin": "margin"}
OF_A_STATE = {
    "hours": "hours",
    "nodes": "nodes",
    "usd": "cost",
    "usd_per_hour": "cost of an hour",
    "answered_share": "answered",
    "revenue_usd": "income",
    "margin": "margin",
}

LISTS = {
    "decided": "Decided by the planner",
    "assumed": "Assumed: nobody has measured it for this plan",
    "relies_on": "Relied on: only the cluster can show it",
    "defaults": "Left at its default: nobody wrote it",
    "overlay": "Changed by kubernetes.overlay",
}


def show_memory(plan: Plan, report: Report) -> Iterator[Figure]:
    """Yield a figure of what uses the memory of one GPU, with a bar for each phase."""
    bars, rows = [], []
    for phase, each in by_phase(plan.memory):
        section = f"memory.{phase}"
        words = [report.text(section, name) for name in (MEMORY | KV)]
        ends = [0]
        for name in MEMORY:
            ends.append(ends[-1] + getattr(each, name))
        ends.append(each.gpu_bytes)
        segments = [
            Segment(begin, end, kind, f"{title} {size}")
            for begin, end, (kind, title), size in zip(ends, ends[1:], (MEMORY | KV).items(), words, strict=False)
        ]
        tokens, whole = (report.text(section, name) for name in ("kv_tokens", "gpu_bytes"))
        in_use = report.find(f"performance.{phase}", "kv_share_in_use")
        marks = [Mark(ends[-2] + float(in_use.value) * (ends[-1] - ends[-2]), "mid")] if in_use else []
        said = f"; {format_value(in_use)} in use at the operating point" if in_use else ""
        rest = ", ".join(f"{title} {size}" for title, size in zip(MEMORY.values(), words, strict=False))
        line = f"{words[-1]} of {whole} are room for KV: {tokens} tokens{said}. The rest: {rest}"
        bars.append(Bar(phase, line, segments, marks))
        rows.append((phase, *words, whole, tokens))
    if bars:
        table = Table(("phase", *(MEMORY | KV).values(), "usable in all", "KV tokens that fit"), rows)
        mark = {"mid": "KV in use at the operating point"} if any(bar.marks for bar in bars) else {}
        yield Bars("One GPU", bars, table, legend=MEMORY | KV | mark)


def show_speed(plan: Plan, report: Report) -> Iterator[Figure]:
    """Yield a figure for each phase: predicted latencies and rates with their ranges, and what the SLO promises."""
    for phase, each in by_phase(plan.performance):
        if each.not_predicted:
            yield Table(("why its speed is not predicted",), [(each.not_predicted,)], phase)
            continue
        bars = [_range_bar(plan, report, phase, name) for name in SPEEDS if getattr(each, name) is not None]
        legend = {"range": "low to high", "mid": "expected"} | ({"promise": "promised (slo)"} if each.slo else {})
        table = Table(("figure", "expected, and its range"), [(bar.label, bar.words) for bar in bars])
        yield Bars(phase, bars, table, legend=legend, note=each.evidence.why if each.evidence else "", alike=False)


def _range_bar(plan: Plan, report: Report, phase: Phase, name: str) -> Bar:
    each, section = (plan.performance or {})[phase], f"performance.{phase}"
    (title, unit), estimate = SPEEDS[name], getattr(each, name)
    mid, ends = report.value_and_range(section, name)
    words, marks = f"{mid} {unit} {ends}", [Mark(estimate.mid, "mid")]
    if promise := next((promise for promised, promise in (each.slo or {}).items() if promised == name), None):
        marks.append(Mark(promise.promised, "promise"))
        verdict = report.text(section, name.replace("_ms", "_promise"))
        words += f"; {report.text(section, f'slo.{name}.promised')} {unit} is promised: {verdict}"
    return Bar(title, words, [Segment(estimate.low, estimate.high, "range", words)], marks)


def show_stages(plan: Plan, _: Report) -> Iterator[Figure]:
    """Yield a figure for each phase: the timeline of one MoE layer, with two tracks per micro-batch."""
    for phase, each in by_phase(plan.performance):
        if each.stages_us:
            overlap = plan.phases[phase].overlap
            times = {name: Seconds(us / US_PER_S) for name, us in each.stages_us.items()}
            timeline = one_layer((times,) * (1 if overlap == "none" else 2), overlap, with_spans=True)
            yield _timeline(f"{phase}, overlap {overlap}", timeline)


def _timeline(title: str, timeline: LayerTimeline) -> Bars:
    whole, exposed = timeline.seconds * US_PER_S, timeline.exposed * US_PER_S
    spans = [span for span in timeline.spans if span.lasts]
    exchanging = fsum(span.lasts * US_PER_S for span in spans if span.track != "compute")
    tracks: dict[str, list[Segment]] = {}
    for span in sorted(spans, key=lambda each: (each.micro_batch, each.track)):
        track = f"{'compute' if span.track == 'compute' else 'exchange'} {span.micro_batch + 1}"
        tracks.setdefault(track, []).extend(_segments(span, whole))
    rows = [
        (
            span.name,
            f"{span.micro_batch + 1}",
            *(format_microseconds(each * US_PER_S) for each in (span.begins, span.lasts)),
        )
        for span in spans
    ]
    return Bars(
        title,
        [Bar(track, "", segments) for track, segments in tracks.items()],
        Table(("stage", "micro-batch", "begins", "lasts"), rows),
        legend=STAGES,
        note=f"A layer takes {format_microseconds(whole)}, {format_microseconds(exposed)} of them waiting for "
        f"exchanges. The links between GPUs are in use for {exchanging / whole:.1%} of it.",
    )


def _segments(span: Span, whole: float) -> Iterator[Segment]:
    """Yield the segments of a span that recurs in every layer: what is beyond the layer's end wraps to its start."""
    begin, lasts, kind = span.begins * US_PER_S % whole, span.lasts * US_PER_S, _stage_kind(span.name)
    words = f"{span.name} {format_microseconds(lasts)}"
    yield Segment(begin, min(begin + lasts, whole), kind, words)
    if begin + lasts > whole:
        yield Segment(0.0, begin + lasts - whole, kind, words)


def _stage_kind(name: str) -> str:
    """Return the kind (colour) of a stage, such as `attention` for `attention 1` or `wait` for `dispatch wait`."""
    first, last = name.split()[0], name.split()[-1]
    return last if last in ("issue", "wait") else "gate" if first == "sum" else first


def show_cost(plan: Plan, report: Report) -> Iterator[Figure]:
    """Yield figures of a day's cost and income, and a table of both at other speeds, traffic and prices."""
    cost = plan.cost
    if cost is None:
        return
    bars = [Bar("cost", f"{report.text('cost', 'usd_per_day')} a day", _cost_segments(plan, report))]
    income = cost.revenue_usd_per_day
    if income is not None:
        incomes = {case.name: case.revenue_usd_per_day for case in cost.cases}
        slow, fast = (incomes.get(f"the {end} speed") or income for end in ("slowest", "fastest"))
        expected, ends = report.value_and_range("cost", "revenue_usd_per_day")
        words = f"{expected} a day at the expected speed {ends}".strip()
        bars.append(Bar("income", words, [Segment(slow, fast, "range", MONEY["range"])], [Mark(income, "mid")]))
    kinds = {each.kind for bar in bars for each in bar.segments} | {each.kind for bar in bars for each in bar.marks}
    hours, worth = (report.text("cost.freed", name) for name in ("node_hours_per_day", "usd_per_day"))
    states = [
        (
            at,
            *(
                report.text(f"cost.states.{at}", name) or report.text(f"schedule.steps.{at}", name)
                for name in OF_A_STATE
            ),
        )
        for at in (each.at for each in cost.states)
    ]
    yield Bars(
        "A day",
        bars,
        Table(("from", *OF_A_STATE.values()), states),
        legend={kind: words for kind, words in MONEY.items() if kind in kinds},
        note=f"Units that are off leave {hours} node-hours a day to other work, worth {worth}."
        if worth != "$0"
        else "",
    )
    days = {"all as expected": "cost"} | {case.name: f"cost.cases.{case.name}" for case in cost.cases}
    cases = [(day, *(report.text(section, name) or "-" for name in OF_A_DAY)) for day, section in days.items()]
    yield Table(("a day with the same units and", *OF_A_DAY.values()), cases, "What if")


def _cost_segments(plan: Plan, report: Report) -> list[Segment]:
    """Return a segment for each part of a day's cost that is not 0."""
    cost = plan.cost
    assert cost is not None
    parts: list[tuple[str, float, str, str]] = [
        *((phase, each.usd_per_day, f"cost.phases.{phase}", "usd_per_day") for phase, each in by_phase(cost.phases)),
        ("spares", cost.spares_usd_per_day, "cost", "spares_usd_per_day"),
    ]
    segments, begin = [], 0.0
    for kind, usd, section, name in parts:
        if usd:
            segments.append(Segment(begin, begin + usd, kind, f"{MONEY[kind]} {report.text(section, name)}"))
            begin += usd
    return segments


def show_kv_cache(plan: Plan, report: Report) -> Iterator[Figure]:
    """Yield a figure of the hit rate and saved nodes of KV caches of several sizes."""
    bars, rows = [], []
    for size in plan.kv_cache.sizes if plan.kv_cache else ():
        names = ("hit_rate", "bytes_per_node", "saved_nodes", "bytes")
        hits, each, saved, every = (report.text(f"kv_cache.sizes.{size.keep_s:g} s", name) for name in names)
        words = f"{hits} hits, {each} a node, saves {saved} nodes"
        bars.append(Bar(f"kept {size.keep_s:g} s", words, [Segment(0.0, size.hit_rate, "link", words)]))
        rows.append((f"{size.keep_s:g} s", hits, each, every, saved))
    if bars:
        table = Table(("kept after last use", "hit rate", "bytes a node", "bytes in all", "nodes saved"), rows)
        hit_rate = report.text("kv_cache", "hit_rate")
        trace = report.text("kv_cache", "trace")
        reads, writes = (report.text("kv_cache", f"{kind}_bytes_per_s_per_node") for kind in ("read", "write"))
        note = f"Hits are those of {trace}. This spec's traffic.cache_hit_rate is {hit_rate}." + (
            f" In the busiest hour a node then reads {reads} and writes {writes}." if reads and writes else ""
        )
        yield Bars("Hit rate by how long blocks are kept", bars, table, note=note, least_reach=1.0)


def show_reasons(_: Plan, report: Report) -> Iterator[Table]:
    """Yield a table of each kind of value: decided, assumed, relied on, left at its default, and overlaid."""
    for topic, title in LISTS.items():
        found = report.section_rows(topic)
        has_notes = any(row.note for row in found)
        rows = [(row.name, format_value(row), row.note)[: 2 + has_notes] for row in found]
        if rows:
            yield Table(("field", "value", "reason")[: 2 + has_notes], rows, title, is_folded=topic == "defaults")
