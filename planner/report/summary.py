"""Write the summary at the top of a plan's text: one sentence per topic. Every figure comes from a report row."""

import textwrap
from collections.abc import Sequence

from planner.plan.row import Row
from planner.report.report import Report, format_value

NAMES = {"expert_load": "expert loads", "request_lengths": "request lengths"}
MAX_TIMES = 130  # most characters of the list of hours with too little capacity
FEW = 2  # most defaults of a section that are shown with their values


def summary(report: Report) -> dict[str, str]:
    """Return topic -> sentence, for the topics on which the plan has figures."""
    lines = {
        "units": _units_sentence(report),
        "day": _day_sentence(report),
        "cost": _cost_sentence(report),
        "load": _load_sentence(report),
        "speed": _speed_sentence(report),
        "KV kept": _kept_kv_sentence(report),
        "TTFT": _latency_sentence(report, "ttft"),
        "TPOT": _latency_sentence(report, "tpot"),
        "failure": _failure_sentence(report),
        "assumed": _assumed_sentence(report),
        "blockers": _blockers_sentence(report),
    }
    return {topic: sentence for topic, sentence in lines.items() if sentence}


def _star_parts(report: Report, pattern: str) -> list[str]:
    """Return what the only star of `pattern` stands for in names of sections: [prefill, decode] for `phases.*`."""
    return [key for (key,) in report.keys(pattern)]


def _units_sentence(report: Report) -> str:
    units = [
        f"{_format_count(report, f'phases.{phase}', 'units', f'{phase} unit')} of "
        f"{_format_count(report, f'phases.{phase}', 'nodes_per_unit', 'node')}{_gpu_suffix(report, phase)}"
        for phase in _star_parts(report, "phases.*")
    ]
    used, gpu = report.text("cluster", "nodes_used"), report.text("cluster", "gpu")
    nodes = _format_count(report, "cluster", "nodes", "node")
    each = _format_count(report, "cluster", "gpus_per_node", "CPU rank" if gpu == "cpu" else f"{gpu} GPU")
    return f"{', '.join(units)}: {used} of {nodes} ({each} each)"


def _format_count(report: Report, section: str, name: str, thing: str) -> str:
    """Return the count in a row with its noun: `1 node`, `2 nodes`."""
    number = report.text(section, name)
    return f"{number} {thing}" if number == "1" else f"{number} {thing}s"


def _gpu_suffix(report: Report, phase: str) -> str:
    """Return ` with GPU` if the phase's GPU type differs from the cluster's, else an empty text."""
    gpu = report.text(f"phases.{phase}", "gpu")
    return "" if gpu == report.text("cluster", "gpu") else f" with {gpu}"


def _day_sentence(report: Report) -> str:
    """Return the sentence on when most and fewest units are on, or on why all of them stay on."""
    if report.find("schedule", "most_nodes") is not None:
        line = describe_day(report)
        return f"{line}; the controller switches units" if report.text("schedule", "controller") else line
    if not (line := report.text("with_controller", "day")):
        return "all units are on all day"
    nodes = _format_count(report, "cluster", "nodes_used", "node")
    return f"all units stay on ({nodes}): without kubernetes.controller nobody switches them; with it {line}"


def describe_day(report: Report) -> str:
    """Return words on the schedule: when most and fewest nodes are on, with which units, and on other days.

    The mean counts nodes as the bill does: those of units that warm up or drain are taken too.
    """
    line = _state_in_words(report, "most")
    if report.text("schedule", "most_nodes") != report.text("schedule", "fewest_nodes"):
        mean = report.text("schedule", "mean_nodes_taken")
        line = f"most {line}, fewest {_state_in_words(report, 'fewest')}, {mean} taken on average"
    others = [
        report.text(f"schedule.other_days.{each}", "days") for each in _star_parts(report, "schedule.other_days.*")
    ]
    return "; ".join([line, *(f"other days: {each}" for each in others)])


def _state_in_words(report: Report, which: str) -> str:
    """Return words for the state of the day with the `most` or `fewest` nodes: its nodes, times, and units."""
    section = f"schedule.steps.{report.text('schedule', f'{which}_nodes_at')}"
    units = ", ".join(f"{report.text(section, f'{each}_units')} {each}" for each in _star_parts(report, "phases.*"))
    nodes = _format_count(report, "schedule", f"{which}_nodes", "node")
    return f"{nodes} {report.text('schedule', f'{which}_nodes_times')} ({units})"


def _cost_sentence(report: Report) -> str:
    """Return the sentence on what a day costs, what a million tokens cost, and the margin."""
    if report.find("cost", "usd_per_day") is None:
        return "unknown: the spec has no cost section"
    names = {kind: f"usd_per_million_{kind}_tokens" for kind in ("output", "input")}
    rates = {kind: " ".join(report.value_and_range("cost", name)).strip() for kind, name in names.items()}
    over = " or ".join(f"{rate} per million {kind}" for kind, rate in rates.items() if rate)
    (income, ends), margin = (report.value_and_range("cost", name) for name in ("revenue_usd_per_day", "margin"))
    earned = f"income {f'{income} {ends}'.strip()}, margin {' '.join(margin).strip()}"
    line = f"{report.text('cost', 'usd_per_day')} a day{_bill_details(report)}"
    parts = [line, f"{over} tokens, if these bear it all" if over else "", earned if income else ""]
    return "; ".join(filter(None, parts))


def _bill_details(report: Report) -> str:
    """Return words on the bill: the GPU price, and the cost with a controller if there is none."""
    price, switched = report.text("cost", "usd_per_gpu_hour"), report.text("with_controller", "usd_per_day")
    line = f" at {price} per GPU-hour" if price else ""
    return f"{line}, {switched} with kubernetes.controller" if switched else line


def _load_sentence(report: Report) -> str:
    """Return the sentence on whether units can serve the traffic, their peak load, and the answered share."""
    phases, answered = _star_parts(report, "demand.*"), report.text("cost", "answered_share")
    if not phases:
        unknown = (report.find(f"performance.{each}", "not_predicted") for each in _star_parts(report, "performance.*"))
        return "unknown: no speed is predicted" if all(unknown) else "unknown: the spec has no traffic"
    short, peaks, slowest = [], [], []
    for phase in phases:
        names = ("hours_beyond", "times_beyond", "highest_load_of_most", "highest_load_of_most_at_slowest")
        at = report.text(f"demand.{phase}", "highest_load_times") or report.text(f"demand.{phase}", "at")
        hours, times, load, low = (report.text(f"demand.{phase}", name) for name in names)
        if times:
            short.append(f"{phase} is short for {hours} h ({textwrap.shorten(times, MAX_TIMES, placeholder=' ...')})")
        peaks.append(f"{phase} {load or 'without a unit'} ({at})")
        slowest += [f"{phase} {low}"] if low else []
    fits = ", ".join(short) or "it fits in every hour at the expected speed"
    parts = [fits, f"peak load, % of capacity: {', '.join(peaks)}"]
    parts += [f"slowest speed: {', '.join(slowest)}"] if slowest else []
    parts += [f"{answered} answered"] if answered else []
    return "; ".join(parts)


def _speed_sentence(report: Report) -> str:
    """Return the sentence on each phase's speed and its range or, if no speed is predicted, on why not."""
    rates = []
    for phase in _star_parts(report, "performance.*"):
        section = f"performance.{phase}"
        if why := report.text(section, "not_predicted"):
            return f"not predicted: {why}"
        rates.append(f"{phase} {' '.join(report.value_and_range(section, 'tokens_per_s_per_gpu'))}")
    return f"tokens/s per GPU: {', '.join(rates)}" if rates else ""


def _kept_kv_sentence(report: Report) -> str:
    """Return the sentence on how long memory and disk keep KV, the cache hits, and their savings; empty without any."""
    kept = "kv_cache.kept"
    if report.find(kept, "hit_rate") is None:
        return ""
    tiers = {"in memory": "memory_minutes", "on the disk": "disk_minutes"}
    stays = " and ".join(
        f"{report.text(kept, name)} min {tier}" for tier, name in tiers.items() if report.find(kept, name)
    )
    saved = f"save {report.text(kept, 'saved_nodes')} nodes"
    if usd := report.text(kept, "saved_usd_per_day"):
        saved += f" and {usd} a day"
    hits = f"{report.text(kept, 'hit_rate')} hits in {report.text('kv_cache', 'trace')} {saved}"
    if alone := report.text(kept, "memory_hit_rate"):
        hits += f" (memory alone {alone} and {report.text(kept, 'memory_saved_nodes')})"
    said = f"traffic.cache_hit_rate is {report.text('kv_cache', 'hit_rate')}"
    writes = report.text(kept, "drive_writes_per_day")
    takes = f"; each pod takes {report.text(kept, 'pod_memory_bytes')} of memory"
    worn = f" and makes up to {writes} drive writes a day" if writes else ""
    usd = report.text(kept, "disk_usd_per_day")
    costs = f"; the disks cost {usd} a day" if usd else ""
    return f"a block stays {stays} in the busiest hour: {hits}; {said}{takes}{worn}{costs}"


def _latency_sentence(report: Report, name: str) -> str:
    """Return the sentence on the mean and p99 of a latency, `ttft` or `tpot`, and on whether its SLO is met."""
    for phase in _star_parts(report, "performance.*"):
        section = f"performance.{phase}"
        if report.find(section, f"{name}_ms") is None:
            continue
        (mean, ends), (p99, p99_ends) = (report.value_and_range(section, f"{name}_{each}") for each in ("ms", "p99_ms"))
        line = f"mean {mean} ms {ends}, p99 {p99} ms {p99_ends}{_latency_caveats(report, phase, name)}"
        if (verdict := report.find(section, f"{name}_promise")) is None:
            return f"{line}; no slo.{name}_ms"
        chance = f"; {verdict.note}" if verdict.note else ""
        promised = report.text(section, f"slo.{name}_ms.promised")
        return f"{line}; slo.{name}_ms of {promised} is {format_value(verdict)}{chance}"
    return "not predicted"


def _latency_caveats(report: Report, phase: str, name: str) -> str:
    """Return words on what a mean latency leaves out, and on when load above the predicted one makes it longer."""
    leaves_out = report.text(f"performance.{phase}", "ttft_leaves_out") if name == "ttft" else ""
    load = report.find(f"demand.{phase}", "highest_load")
    is_fuller = load is not None and isinstance(load.value, float) and load.value > 1
    peak = report.text(f"performance.{phase}", f"peak_{name}_ms")
    longer = f"mean {peak} ms" if peak else "longer"
    fuller = f"; {longer} at the peak, with {format_value(load)} of this load" if load and is_fuller else ""
    return f"{fuller}{f', {leaves_out}' if leaves_out else ''}"


def _failure_sentence(report: Report) -> str:
    """Return the sentence on the worst single failure, with fewest and all units on, and on how long it stops them.

    It is empty if no failure was estimated.
    """
    whens = [when for when in ("fewest", "most") if report.find(f"failure.{when}", "domain")]
    if not whens:
        return ""
    losses = [_loss_in_words(report, when) for when in whens]
    line = f"losing {losses[0][0]} stops {losses[0][1]}"
    for lost, stops in losses[1:]:
        line += f"; {f'losing {lost} stops ' if lost != losses[0][0] else ''}{stops}"
    line += f"; out {_outage_duration(report, f'failure.{whens[0]}')}"
    if report.text("failure", "gateways") != "1":
        return f"worst: {line}"
    if report.text(f"failure.{whens[0]}", "units_on") == "1":
        return f"worst: {line}; losing the only gateway stops all"
    return f"worst: losing the only gateway stops all; next: {line}"


def _loss_in_words(report: Report, when: str) -> tuple[str, str]:
    """Return two phrases on the worst failure: (what is lost, which units that stops)."""
    names = ("domains", "phase", "place", "at", "units", "units_on", "share")
    domains, phase, place, at, stopped, on, share = (report.text(f"failure.{when}", name) for name in names)
    stops = f"the only {phase} unit, and so the service" if on == "1" else f"{stopped} of {on} {phase} units ({share})"
    time = f" at {at}, with fewest on" if at else "" if on == "1" else " with all on"
    if (usd := report.text(f"failure.{when}", "unserved_usd_per_hour")) not in ("", "$0"):
        time += f", and up to {usd} of an hour's income"
    gpu = "rank" if report.text("cluster", "gpu") == "cpu" else "GPU"
    return f"one {domains.replace('gpu', gpu)} ({place})", f"{stops}{time}"


def _outage_duration(report: Report, section: str) -> str:
    """Return words on how long a unit is out after a failure, and on why no spare takes over if none does."""
    if minutes := report.text(section, "recovery_minutes"):
        return f"for {minutes} min, until it serves on a spare"
    off = report.text(section, "nodes_off")
    kept = f" (the {off} off are other units')" if off else ""
    return f"until repaired: {report.text(section, 'offered_spare') or f'no node is a spare{kept}'}"


def _assumed_sentence(report: Report) -> str:
    """Return the names of figures that nobody has published or measured.

    If many of one section are assumed, the section is named instead.
    """
    named, sections = [], dict[str, list[str]]()
    for row in report.section_rows("assumed"):
        section, _, name = row.name.rpartition(".")
        if row.provenance == "default":
            sections.setdefault(section, []).append(f"{name} {format_value(row)}")
        elif row.unit == "bytes":
            named.append(f"{name.replace('_', ' ')} of {section} ({format_value(row)})")
        else:
            named.append(row.name if section else f"{NAMES.get(name, name)} ({format_value(row)})")
    named += [f"{each} ({', '.join(those) if len(those) <= FEW else 'defaults'})" for each, those in sections.items()]
    return "; ".join(named) or "nothing"


def _blockers_sentence(report: Report) -> str:
    """Return the sentence on what keeps the plan from running, and on what to check first."""
    refused, warnings = report.section_rows("refusals"), report.section_rows("warnings")
    untried, needs = report.text("plan", "untried"), report.section_rows("relies_on")
    sentences = [
        f"{report.text('plan', 'engine')} cannot run it: {_rule_ids(refused)}" if refused else "none known",
        f"untested: {untried}, so try one unit first" if untried else "",
        f"check {', '.join(f'{row.name} ({format_value(row)})' for row in needs)}" if needs else "",
        f"warnings: {_rule_ids(warnings)}" if warnings else "",
    ]
    return "; ".join(filter(None, sentences))


def _rule_ids(problems: Sequence[Row]) -> str:
    """Return the rule ids of refusals or warnings as text, such as `[S401] [S733]`; each id once."""
    return " ".join(dict.fromkeys(f"[{row.name.split()[0]}]" for row in problems))
