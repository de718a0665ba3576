"""The bars of the page: memory, speed, stages of a layer, links, money and the KV cache. Words come from the report."""

from collections.abc import Iterator

from planner.estimate.throughput.dimensions import Seconds
from planner.estimate.throughput.overlap import LayerTimeline, Span, one_layer
from planner.facts.quantities import US_PER_S
from planner.plan.plan import Plan
from planner.plan.row import Row
from planner.report.page.figures import Bar, Bars, Figure, Mark, Segment, Table, by_phase
from planner.report.report import Report, format_range, format_value

__all__ = ["show_cost", "show_kv_cache", "show_memory", "show_speed", "show_stages"]

MEMORY = {
    "weights_bytes": "weights",
    "activation_bytes": "activations",
    "buffer_bytes": "exchange buffers",
    "reserve_bytes": "reserve: CUDA graphs, libraries",
    "kv_bytes": "KV cache",
}
SPEEDS = {
    "ttft_ms": "TTFT, mean",
    "ttft_p99_ms": "TTFT, 99th percentile",
    "tpot_ms": "TPOT, mean",
    "tpot_p99_ms": "TPOT, 99th percentile",
    "tokens_per_s_per_gpu": "rate of a GPU",
    "tokens_per_s_per_user": "rate of a user",
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
    "idle": "own nodes that are off",
    "range": "income from the slowest to the fastest speed",
    "mid": "expected income",
}


def show_memory(plan: Plan, report: Report) -> Iterator[Figure]:
    """Yield the memory of one GPU, a bar for each phase."""
    bars, rows = [], []
    for phase, _ in by_phase(plan.memory):
        begin, segments, words = 0.0, [], []
        for name, title in MEMORY.items():
            row = report.find(f"memory.{phase}", name)
            if row is not None and not isinstance(row.value, str):
                segments.append(Segment(begin, begin + row.value, name, f"{title} {format_value(row)}"))
                begin += row.value
                words.append(format_value(row))
        if not words:
            continue  # a rendered folder keeps no figures
        tokens = report.text(f"memory.{phase}", "kv_tokens")
        bars.append(Bar(phase, f"{words[-1]} for KV: {tokens} tokens", segments))
        rows.append((phase, *words, report.text(f"memory.{phase}", "gpu_bytes"), tokens))
    if bars:
        table = Table(("phase", *MEMORY.values(), "usable in all", "KV tokens that fit"), rows)
        yield Bars("One GPU", bars, table, legend=MEMORY)


def show_speed(plan: Plan, report: Report) -> Iterator[Figure]:
    """Yield each phase's latencies and rates with their ranges, and what the SLO promises."""
    for phase, each in by_phase(plan.performance):
        section = f"performance.{phase}"
        if each.not_predicted:
            yield Table(("why its speed is not predicted",), [(each.not_predicted,)], phase)
            continue
        bars, rows = [], []
        for name, title in SPEEDS.items():
            row = report.find(section, name)
            if row is not None:
                bars.append(_range_bar(report, section, row, title))
                promised = report.text(section, f"slo.{name}.promised")
                rows.append((title, *_range_words(row), row.unit, promised or "-"))
        table = Table(("", "low", "expected", "high", "unit", "promised"), rows)
        legend = {"range": "low to high", "mid": "expected"} | ({"promise": "promised (slo)"} if each.slo else {})
        yield Bars(phase, bars, table, legend=legend, note=each.evidence.why if each.evidence else "", alike=False)


def _range_bar(report: Report, section: str, row: Row, title: str) -> Bar:
    assert row.low is not None
    assert row.high is not None
    assert not isinstance(row.value, str)
    low, mid, high = _range_words(row)
    words = f"{mid} {row.unit} ({low} to {high})"
    marks = [Mark(row.value, "mid")]
    promised = report.find(section, f"slo.{row.name}.promised")
    if promised is not None and not isinstance(promised.value, str):
        marks.append(Mark(promised.value, "promise"))
        verdict = report.text(section, row.name.replace("_ms", "_promise"))
        words += f"; {format_value(promised)} {row.unit} is promised: {verdict}"
    return Bar(title, words, [Segment(row.low, row.high, "range", words)], marks)


def _range_words(row: Row) -> tuple[str, str, str]:
    low, high = format_range(row)
    return low, format_value(row), high


def show_stages(plan: Plan) -> Iterator[Figure]:
    """Yield the timeline of one MoE layer, with its micro-batches on their two tracks."""
    for phase, each in by_phase(plan.performance):
        if each.stages_us:
            overlap = plan.phases[phase].overlap
            times = {name: Seconds(us / US_PER_S) for name, us in each.stages_us.items()}
            timeline = one_layer((times,) * (1 if overlap == "none" else 2), overlap, with_spans=True)
            yield _timeline(f"{phase}, overlap {overlap}", timeline)


def _timeline(title: str, timeline: LayerTimeline) -> Bars:
    whole = timeline.seconds * US_PER_S
    tracks = dict.fromkeys((span.micro_batch, span.track) for span in timeline.spans)
    bars = [
        Bar(
            f"{'compute' if track == 'compute' else 'exchange'} {number + 1}",
            "",
            [
                part
                for span in timeline.spans
                if (span.micro_batch, span.track) == (number, track)
                for part in _segments(span, whole)
            ],
        )
        for number, track in sorted(tracks)
    ]
    rows = [
        (span.name, f"{span.micro_batch + 1}", f"{span.begins * US_PER_S:,.1f}", f"{span.lasts * US_PER_S:,.1f}")
        for span in timeline.spans
        if span.lasts
    ]
    exposed = timeline.exposed * US_PER_S
    note = f"A layer takes {whole:,.1f} µs, {exposed:,.1f} µs of them waiting for exchanges."
    table = Table(("stage", "micro-batch", "begins µs", "lasts µs"), rows)
    return Bars(title, bars, table, legend=STAGES, note=note)


def _segments(span: Span, whole: float) -> Iterator[Segment]:
    """Yield a span as it recurs in every layer: what passes the end of one goes on at the start of the next."""
    begin, lasts = span.begins * US_PER_S % whole, span.lasts * US_PER_S
    words = f"{span.name} {lasts:,.1f} µs"
    if lasts:
        yield Segment(begin, min(begin + lasts, whole), _stage_kind(span.name), words)
        if begin + lasts > whole:
            yield Segment(0.0, begin + lasts - whole, _stage_kind(span.name), words)


def _stage_kind(name: str) -> str:
    if name in ("dispatch", "combine", "experts"):
        return name
    last = name.split()[-1]
    return last if last in ("issue", "wait") else {"shared expert": "shared", "sum": "gate"}.get(name, name.split()[0])


def show_cost(plan: Plan, report: Report) -> Iterator[Figure]:
    """Yield a day's cost and income, and how they change with speed, traffic and prices."""
    if plan.cost is None:
        return
    bars = [Bar("cost", f"{report.text('cost', 'usd_per_day')} a day", _cost_segments(plan, report))]
    cases = {case.name: f"cost.cases.{case.name}" for case in plan.cost.cases}
    incomes = {case.name: case.revenue_usd_per_day or 0.0 for case in plan.cost.cases}
    if plan.cost.revenue_usd_per_day is not None:
        slow, fast = (incomes.get(f"the {end} speed", plan.cost.revenue_usd_per_day) for end in ("slowest", "fastest"))
        words = f"{report.text('cost', 'revenue_usd_per_day')} a day at the expected speed"
        segment = Segment(slow, fast, "range", "from the slowest to the fastest speed")
        bars.append(Bar("income", words, [segment], [Mark(plan.cost.revenue_usd_per_day, "mid")]))
    names = ("usd_per_day", "answered_share", "revenue_usd_per_day", "margin")
    days = {"all as expected": "cost"} | cases
    rows = [(day, *(report.text(section, name) or "-" for name in names)) for day, section in days.items()]
    kinds = {each.kind for bar in bars for each in bar.segments}
    legend = {kind: words for kind, words in MONEY.items() if kind in kinds}
    yield Bars("A day", bars, _states_table(plan, report), legend=legend, note=_freed(report))
    yield Table(("a day with the same units and", "cost", "answered", "income", "margin"), rows, "What if")


def _cost_segments(plan: Plan, report: Report) -> list[Segment]:
    assert plan.cost is not None
    parts = [(f"{phase}", f"cost.phases.{phase}", "usd_per_day") for phase, _ in by_phase(plan.phases)]
    parts += [("spares", "cost", "spares_usd_per_day"), ("idle", "cost", "idle_usd_per_day")]
    segments, begin = [], 0.0
    for kind, section, name in parts:
        row = report.find(section, name)
        if row is not None and not isinstance(row.value, str) and row.value:
            segments.append(Segment(begin, begin + row.value, kind, f"{kind} {format_value(row)}"))
            begin += row.value
    return segments


def _states_table(plan: Plan, report: Report) -> Table:
    names = ("nodes", "hours", "usd", "usd_per_hour", "answered_share", "revenue_usd", "margin")
    rows = [
        (
            each.at,
            *(
                report.text(f"cost.states.{each.at}", name) or report.text(f"schedule.steps.{each.at}", name) or "-"
                for name in names
            ),
        )
        for each in (plan.cost.states if plan.cost else ())
    ]
    return Table(("from", "nodes", "hours", "cost", "an hour", "answered", "income", "margin"), rows)


def _freed(report: Report) -> str:
    hours = report.find("cost.freed", "node_hours_per_day")
    if hours is None or not hours.value:
        return "All nodes are on all day."
    worth = report.text("cost.freed", "usd_per_day")
    return f"{format_value(hours)} node-hours a day are free for other work, worth {worth}."


def show_kv_cache(plan: Plan, report: Report) -> Iterator[Figure]:
    """Yield what caches of several sizes would hit and save."""
    if plan.kv_cache is None or not plan.kv_cache.sizes:
        return
    bars, rows = [], []
    for key in (key for (key,) in report.keys("kv_cache.sizes.*")):
        section = f"kv_cache.sizes.{key}"
        hits = report.find(section, "hit_rate")
        if hits is None or isinstance(hits.value, str):
            continue
        each, every, saved = (report.text(section, name) for name in ("bytes_per_node", "bytes", "saved_nodes"))
        words = f"{format_value(hits)} hits, {each} a node, saves {saved} nodes"
        bars.append(Bar(f"kept {key}", words, [Segment(0.0, hits.value, "link", words)]))
        rows.append((key, format_value(hits), each, every, saved))
    table = Table(("kept after last use", "hit rate", "bytes a node", "bytes in all", "nodes saved"), rows)
    hit_rate = report.text("kv_cache", "hit_rate")
    note = f"Hits are those of Mooncake's conversations. This spec's traffic.cache_hit_rate is {hit_rate}."
    yield Bars("Hit rate by how long blocks are kept", bars, table, note=note)
