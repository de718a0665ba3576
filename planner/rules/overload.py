"""Warn if a day's traffic exceeds what the units serve at their operating point.

Latencies are predicted at the operating point. With more traffic, decode units work on more requests at a time, so
steps take longer, and prefill units are busy more of the time, so prompts wait longer. Traffic beyond the units'
highest rate waits or is refused, whatever `slo` promises. It stays a warning, since the profile may be a wish.
"""

from collections.abc import Iterator, Sequence
from math import ceil

from planner.cost.demand import PhaseLoad
from planner.estimate.throughput.predict import Prediction
from planner.facts.quantities import MS_PER_S
from planner.facts.terms import Phase
from planner.layout.layout import lay_out
from planner.problems.finding import Finding
from planner.rules.rule import Candidate, Rule
from planner.spec.resolved import ResolvedSpec

PROMISES: dict[Phase, tuple[str, ...]] = {"prefill": ("ttft",), "decode": ("tpot",), "mixed": ("ttft", "tpot")}
MANY = 10  # from this ratio on, say "12 times" instead of "1200%"
SEE_SIMULATE = " (tidemill simulate shows how long requests wait)"


def units_meet_demand(c: Candidate) -> Iterator[Finding]:
    """Warn of each phase that refuses requests at its peak load, or misses a promised latency at loads that it serves.

    Each is about its fullest hour. A night with too few units hides no promise that is missed by day.
    """
    for phase in dict.fromkeys(load.phase for load, _ in c.busy_hours):
        hours = [each for each in c.busy_hours if each[0].phase == phase]
        refusing = [load for load, served in hours if served is None]
        serving = [(load, served) for load, served in hours if served is not None]
        if refusing:
            load = max(refusing, key=lambda load: load.load)
            yield _report_excess(c.resolved, load, _fix(c.resolved, load, refusing))
        if serving:
            load, served = max(serving, key=lambda each: each[0].load)
            yield from _report_slow_units(c.resolved, load, served, _fix(c.resolved, load, refusing))


def _report_excess(spec: ResolvedSpec, load: PhaseLoad, fix: str) -> Finding:
    """Return the warning about a peak load above the highest rate of the units that are on."""
    units = f"{load.phase} units"
    if load.most_per_s:
        share = f"{load.share_of_most:.0%} of" if load.share_of_most < MANY else f"{load.share_of_most:,.0f} times"
        asked = f"asks for {share} the most tokens that the {units} can make at {_time_in_words(load)}"
        over = f", and for more than they can make during {load.hours_beyond:.3g} h of that day"
        reason = f"requests beyond that wait or are refused{_income_in_words(spec, load)}"
    else:
        asked = f"asks for tokens at {_time_in_words(load)}, when no {load.phase} unit is on"
        over = (
            f", and for more than the {units} that are on can make during {load.hours_beyond:.3g} h of that day in all"
        )
        reason = f"requests are refused while no unit is on{_income_in_words(spec, load)}"
    asked += over if load.hours_beyond else ""
    broken = " and ".join(_promises(spec, load.phase))
    reason += f", and {broken} {'are' if ' and ' in broken else 'is'} not kept" if broken else ""
    return Finding("traffic", None, f"W138 {asked}", reason, fix)


def _income_in_words(spec: ResolvedSpec, load: PhaseLoad) -> str:
    """Return a clause that says that the estimated income excludes refused requests.

    Return an empty text if that day has no estimate of income.
    """
    cost = spec.written.cost
    return ", and income does not count them" if cost and cost.prices is not None and load.day is None else ""


def _report_slow_units(spec: ResolvedSpec, load: PhaseLoad, served: Prediction, fix: str) -> Iterator[Finding]:
    """Yield a warning for each promised latency that the units miss when they serve all of the peak load."""
    means = {"slo.ttft_ms": served.ttft_seconds, "slo.tpot_ms": served.tpot_seconds}
    over = f", and for more than that during {load.hours_over:.3g} h of that day" if load.hours_over else ""
    for path, promised in _promises(spec, load.phase).items():
        mean = means[path]
        assert mean is not None
        if not served.meets(mean, promised):
            where = _within_ttft_in_words(spec, load) or " at their operating point"
            rule = (
                f"W115 is not kept, because traffic asks for {load.load:.0%} of the tokens that the {load.phase} units "
                f"serve{where} at {_time_in_words(load)}{over}"
            )
            name = path.removeprefix("slo.").removesuffix("_ms").upper()
            reason = f"{_load_in_words(served)}, with which {name} is predicted at {mean.mid * MS_PER_S:,.1f} ms"
            yield Finding(path, promised, rule, reason, fix)


def _within_ttft_in_words(spec: ResolvedSpec, load: PhaseLoad) -> str:
    """Return the words " in time" for prefill with a promised TTFT, else an empty text."""
    return " in time" if load.phase == "prefill" and spec.written.slo.ttft_ms is not None else ""


def _load_in_words(served: Prediction) -> str:
    """Return a clause on how busy the units are when they serve all of the peak load."""
    if served.phase == "prefill":
        return f"these then compute {served.point.utilisation:.1%} of the time"
    return f"each rank or group then works on {served.point.requests:,.0f} requests at a time"


def _promises(spec: ResolvedSpec, phase: Phase) -> dict[str, float]:
    """Return path -> the latency in ms that the spec promises, for latencies of `phase`."""
    promised = {f"slo.{name}_ms": getattr(spec.written.slo, f"{name}_ms") for name in PROMISES[phase]}
    return {path: each for path, each in promised.items() if each is not None}


def _time_in_words(load: PhaseLoad) -> str:
    return f"{load.at}{f' on {load.day}' if load.day else ''}"


def _fix(spec: ResolvedSpec, load: PhaseLoad, refusing: Sequence[PhaseLoad]) -> str:
    """Return words for how to have more units on at the peak, and at `refusing` hours of that day at which all are."""
    return f"{_offer_units(spec, load, [each for each in refusing if each.day == load.day])}{SEE_SIMULATE}"


def _offer_units(spec: ResolvedSpec, load: PhaseLoad, refusing: Sequence[PhaseLoad]) -> str:
    units = f"{load.phase}.units"
    if spec.has_windows_of_traffic and units not in spec.document.autos:
        return f"write {units}: auto, for as many as the traffic asks for"
    if load.are_all_on:
        return f"all {load.phase} units are on then: plan {_say_enough(spec, load)}"
    fix = f"turn on more {load.phase} units at that time"
    full = [each for each in refusing if each.are_all_on]
    if not full or not load.all_on_beyond:
        return fix
    fullest = max(full, key=lambda each: each.load)
    return f"{fix}; for {load.all_on_beyond}, when all are on, plan {_say_enough(spec, fullest)}"


def _say_enough(spec: ResolvedSpec, load: PhaseLoad) -> str:
    """Say how many units serve a load at which all are on, and what they take."""
    layout = lay_out(spec, load.phase)
    num_units = ceil(load.load * layout.num_units)
    nodes = num_units * layout.nodes_per_unit
    return f"{num_units:,} of them, which take {nodes:,} nodes, and more cluster.nodes unless enough are free"


RULES = (Rule("W115 W138", "predicted", units_meet_demand),)
