"""The first lines of a plan's text: what its readers came for, a sentence a topic. Every figure is a row's."""

from collections.abc import Sequence

from planner.plan.row import Row
from planner.report.report import Report, written

__all__ = ["summary"]

ALL = "100.0%"
DOMAINS = {"gpu": "GPU", "node": "node", "rack": "rack", "power": "power feed"}
NAMES = {"expert_load": "expert loads", "request_lengths": "request lengths"}


def summary(report: Report) -> dict[str, str]:
    """Return a sentence for each topic that the plan has something to say about."""
    lines = {
        "units": _units(report),
        "day": _day(report),
        "cost": _cost(report),
        "load": _load(report),
        "speed": _speed(report),
        "TTFT": _latency(report, "ttft"),
        "TPOT": _latency(report, "tpot"),
        "failure": _failure(report),
        "assumed": _assumed(report),
        "blockers": _blockers(report),
    }
    return {topic: sentence for topic, sentence in lines.items() if sentence}


def _keys(report: Report, pattern: str) -> list[str]:
    """Return what stands for the star of `pattern`: mostly phases."""
    return [key for (key,) in report.keys(pattern)]


def _units(report: Report) -> str:
    units = [
        f"{_counted(report, f'phases.{phase}', 'units', f'{phase} unit')} of "
        f"{_counted(report, f'phases.{phase}', 'nodes_per_unit', 'node')}{_own_gpu(report, phase)}"
        for phase in _keys(report, "phases.*")
    ]
    used, nodes, gpus = (report.text("cluster", name) for name in ("nodes_used", "nodes", "gpus_per_node"))
    return f"{', '.join(units)}: {used} of {nodes} nodes ({gpus} {report.text('cluster', 'gpu')} each)"


def _counted(report: Report, section: str, name: str, thing: str) -> str:
    """Return a count and what it counts, with an s except for one."""
    number = report.text(section, name)
    return f"{number} {thing}" if number == "1" else f"{number} {thing}s"


def _own_gpu(report: Report, phase: str) -> str:
    """Name the GPU of a phase that has another than the cluster's."""
    gpu = report.text(f"phases.{phase}", "gpu")
    return "" if gpu == report.text("cluster", "gpu") else f" with {gpu}"


def _day(report: Report) -> str:
    """Return when most and fewest units are on."""
    if report.find("schedule", "most_nodes") is None:
        return "all units are on all day"
    states = []
    for which, bound in (("most", "at most"), ("fewest", "at least")):
        at = report.text("schedule", f"{which}_nodes_at")
        section = f"schedule.steps.{at}"
        units = " and ".join(f"{report.text(section, f'{each}_units')} {each}" for each in _keys(report, "phases.*"))
        states.append(f"{report.text('schedule', f'{which}_nodes')} nodes {bound}, from {at} ({units} units)")
    if report.text("schedule", "most_nodes") == report.text("schedule", "fewest_nodes"):
        states = [f"{report.text('schedule', 'most_nodes')} nodes all day"]
    others = [report.text(f"schedule.other_days.{each}", "days") for each in _keys(report, "schedule.other_days.*")]
    parts = [
        *states,
        f"{report.text('schedule', 'mean_nodes')} on average",
        *(f"other days: {each}" for each in others),
    ]
    return "; ".join(filter(None, [*parts, report.text("schedule", "remark")]))


def _cost(report: Report) -> str:
    """Return the day's bill, over its tokens as services compare themselves, and what it leaves of the income."""
    if report.find("cost", "usd_per_day") is None:
        return "unknown: the spec has no cost section"
    rates = {kind: report.text("cost", f"usd_per_million_{kind}_tokens") for kind in ("output", "input")}
    parts = [f"{report.text('cost', 'usd_per_day')} a day"]
    parts += [f"{rate} per million {kind} tokens" for kind, rate in rates.items() if rate]
    income, margin = report.text("cost", "revenue_usd_per_day"), report.text("cost", "margin")
    return f"{', or '.join(parts)}{f'; income {income} a day, margin {margin}' if income else ''}"


def _load(report: Report) -> str:
    """Return how full the traffic makes the units at worst, and what becomes of requests beyond that."""
    phases, answered = _keys(report, "demand.*"), report.text("cost", "answered_share")
    if not phases:
        return "" if answered else "unknown: the spec has no traffic"
    parts = []
    for phase in phases:
        most, at = (report.text(f"demand.{phase}", name) for name in ("highest_load_of_most", "at"))
        parts.append(f"{most} of what {phase} can make ({at})" if most else f"some {phase} at {at}, when no unit is on")
    share = f"; {answered} of tokens are answered{'' if answered == ALL else ', the rest is refused'}"
    return f"traffic asks for at most {' and '.join(parts)}{share if answered else ''}"


def _speed(report: Report) -> str:
    """Return the rate of each phase with its range, or why it is not known."""
    rates = []
    for phase in _keys(report, "performance.*"):
        section = f"performance.{phase}"
        if why := report.text(section, "not_predicted"):
            return f"not predicted: {why}"
        rates.append(f"{phase} {' '.join(report.ranged(section, 'tokens_per_s_per_gpu'))}")
    return f"tokens/s per GPU: {', '.join(rates)}" if rates else ""


def _latency(report: Report, name: str) -> str:
    """Return a mean latency with its range beside what the spec promises, and what is known of the chance."""
    for phase in _keys(report, "performance.*"):
        section = f"performance.{phase}"
        if report.find(section, f"{name}_ms") is None:
            continue
        mean, ends = report.ranged(section, f"{name}_ms")
        line = f"mean {mean} ms {ends}{_conditions(report, phase, name)}"
        if (verdict := report.find(section, f"{name}_promise")) is None:
            return f"{line}; slo.{name}_ms is not set"
        chance = f"; {verdict.note}" if verdict.note else ""
        return (
            f"{line}; slo.{name}_ms of {report.text(section, f'slo.{name}_ms.promised')} is {written(verdict)}{chance}"
        )
    return ""


def _conditions(report: Report, phase: str, name: str) -> str:
    """Return what a mean latency leaves out, and when the phase is fuller than where it is predicted."""
    leaves_out = report.text(f"performance.{phase}", "ttft_leaves_out") if name == "ttft" else ""
    load, at = report.find(f"demand.{phase}", "highest_load"), report.text(f"demand.{phase}", "at")
    is_fuller = load is not None and isinstance(load.value, float) and load.value > 1
    fuller = f", longer at {at}, when the load is {written(load)} of the operating point" if load and is_fuller else ""
    return f"{fuller}{f', {leaves_out}' if leaves_out else ''}"


def _failure(report: Report) -> str:
    """Return the worst that one failure does, and until when."""
    names = ("domain", "phase", "place", "at", "units", "units_on", "share")
    domain, phase, place, at, stopped, on, share = (report.text("failure", name) for name in names)
    if not domain:
        return ""
    when = f" on at {at}" if at else ""
    one, some = f"the only {phase} unit{when}, and so the service,", f"{stopped} of {on} {phase} units{when} ({share})"
    kind = "rank" if (domain, report.text("cluster", "gpu")) == ("gpu", "cpu") else DOMAINS[domain]
    line = f"losing one {kind} ({place}) stops {one if on == '1' else some}"
    if minutes := report.text("failure", "recovery_minutes"):
        return f"{line} for {minutes} min: then it serves on a spare"
    return f"{line} until it is mended: {report.text('failure', 'offered_spare') or 'no node is left as a spare'}"


def _assumed(report: Report) -> str:
    """Name what nobody has read anywhere or measured; defaults by their section."""
    rows = report.of("assumed")
    named = [
        f"{NAMES[row.name]} ({row.value})" if row.name in NAMES else row.name for row in rows if not _is_default(row)
    ]
    sections = dict.fromkeys(row.name.rpartition(".")[0] for row in rows if _is_default(row))
    named += [f"defaults of {' and '.join(sections)}"] if sections else []
    families = [report.text(f"performance.{each}", "evidence.family") for each in _keys(report, "performance.*")]
    if "none" in families:
        named.append(f"the speed of {report.text('plan', 'engine')}, which nobody has measured")
    return "; ".join(named) or "nothing"


def _is_default(row: Row) -> bool:
    return row.provenance == "default"


def _blockers(report: Report) -> str:
    """Name what keeps the plan from running, and what to look at before it does."""
    refused, warnings = report.of("refusals"), report.of("warnings")
    untried = report.text("plan", "untried")
    line = f"{report.text('plan', 'engine')} cannot run it: {_ids(refused)}" if refused else "none known"
    line += f", but {untried}: try one unit first" if untried else ""
    return f"{line}; warnings: {_ids(warnings)}" if warnings else line


def _ids(problems: Sequence[Row]) -> str:
    """Return the ids of the rules that were broken."""
    return " ".join(dict.fromkeys(f"[{row.name.split()[0]}]" for row in problems))
