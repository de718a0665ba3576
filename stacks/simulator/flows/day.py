"""One simulated day of a plan, at each level of its predicted speed: slowest, expected, fastest."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.compiler import Compiled
from planner.facts.terms import Phase
from planner.problems.finding import Finding
from planner.spec.resolved import ResolvedSpec
from stacks.simulator.flows.curves import Curves
from stacks.simulator.flows.failures import Failure, find_outages
from stacks.simulator.flows.fleet import Outage, planned_fleet
from stacks.simulator.flows.fluid import play_day
from stacks.simulator.flows.live_maps import PlayedMaps, play_maps
from stacks.simulator.flows.outcome import Outcome, compute_outcome, demand_by_minute
from stacks.simulator.flows.service import Service, build_service
from stacks.simulator.speed import LEVELS, Level
from stacks.simulator.variants import Variant, check_variants, part_progress, plan_variant, require_traffic

__all__ = ["DayColumn", "PlayedDay", "play_days", "simulate_day"]


@dataclass(frozen=True)
class PlayedDay:
    """A simulated day of `plan`, with `scale` times the planned traffic."""

    plan: Compiled
    date: str | None  # or a weekday; None: a usual day
    scale: float
    outages: tuple[Outage, ...]
    idle_failures: tuple[Failure, ...]  # failures of nodes that no unit runs on
    services: Mapping[Level, Service]
    curves: Mapping[Level, Curves]
    outcomes: Mapping[Level, Outcome]
    maps: Mapping[Phase, Mapping[Level, PlayedMaps]]  # of phases whose units change their maps in service


@dataclass(frozen=True)
class DayColumn:
    """One variant of the spec and its simulated day."""

    variant: Variant
    day: PlayedDay


def play_days(
    spec: ResolvedSpec,
    variants: Sequence[Variant],
    failures: Sequence[Failure],
    on_progress: Callable[[str, float], None] = lambda _, __: None,
    date: str | None = None,
) -> tuple[tuple[DayColumn, ...], tuple[Finding, ...]]:
    """Return (days, errors): a simulated day of each of `variants`, and the errors of variants that cannot be planned.

    A variant changes `spec`. `on_progress` is called with a variant's title and the fraction done. Without a `date`
    the day is a typical one.

    Raises SpecError if a variant is wrong or has no traffic, and InfeasibleError if the spec as written cannot be
    simulated.
    """
    found, failed, specs = list[DayColumn](), list[Finding](), check_variants(spec, variants, require_traffic)
    for number, (variant, changed) in enumerate(zip(variants, specs, strict=True)):
        progress = part_progress(on_progress, variant.title, number, len(variants))
        plan = plan_variant(changed, variant, progress, failed)
        if plan is not None:
            found.append(DayColumn(variant, simulate_day(plan, variant.scale, failures, progress, date)))
    return tuple(found), tuple(failed)


def simulate_day(
    plan: Compiled,
    scale: float = 1.0,
    failures: Sequence[Failure] = (),
    on_progress: Callable[[float], None] = lambda _: None,
    date: str | None = None,
) -> PlayedDay:
    """Return a simulated day of `plan`, with results at each level of its predicted speed.

    `date` is a date or a weekday; without it the day is a typical one. `on_progress` is called with the fraction
    done.

    Raises CallError if a failing node is not one of the plan's.
    """
    services = {level: build_service(plan, level) for level in LEVELS}
    outages, demand = find_outages(plan, failures), demand_by_minute(plan, scale, date)
    fleet, curves = planned_fleet(plan, outages, date), dict[Level, Curves]()
    for number, level in enumerate(LEVELS):
        fleets = replace(fleet, outages=()), replace(fleet)
        curves[level] = play_day(services[level], demand, fleets, _part_progress(on_progress, number))
    outcomes = {level: compute_outcome(plan, services[level], each) for level, each in curves.items()}
    hosts = {node for unit in plan.units for node in unit.nodes}
    idle = tuple(each for each in failures if each.node not in hosts)
    maps = play_maps(plan, services, curves, date, _part_progress(on_progress, len(LEVELS)))
    return PlayedDay(plan, date, scale, outages, idle, services, curves, outcomes, maps)


def _part_progress(on_progress: Callable[[float], None], part: int) -> Callable[[float], None]:
    """Return a callback for the progress of a part of the day: a level of its flows, or its maps."""
    return lambda done: on_progress((part + done) / (len(LEVELS) + 1))
