"""One simulated day of one plan: all three levels of its prediction, from the spec to outcomes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.plan.estimated import Estimated
from stacks.simulator.curves import Curves
from stacks.simulator.failures import Failure, outages_of
from stacks.simulator.fleet import Outage, planned_fleet
from stacks.simulator.fluid import play_day
from stacks.simulator.outcome import Outcome, demand_of, outcome_of
from stacks.simulator.service import LEVELS, Level, Service, service_of

__all__ = ["PlayedDay", "simulate_day"]


@dataclass(frozen=True)
class PlayedDay:
    """A day of `plan`, whose traffic is `scale` times what the plan knows."""

    plan: Estimated
    date: str | None  # or a weekday; None: a day like most
    scale: float
    outages: tuple[Outage, ...]
    idle_failures: tuple[Failure, ...]  # of nodes on which no unit stands
    services: Mapping[Level, Service]
    curves: Mapping[Level, Curves]
    outcomes: Mapping[Level, Outcome]


def simulate_day(
    plan: Estimated,
    scale: float = 1.0,
    failures: Sequence[Failure] = (),
    tell: Callable[[float], None] = lambda _: None,
    date: str | None = None,
) -> PlayedDay:
    """Return a day of `plan` at each level of its prediction; `tell` hears the share that is done.

    Without a `date` or a weekday it is a day like most.

    Raises CallError for a failing node that is none of the plan's.
    """
    services = {level: service_of(plan, level) for level in LEVELS}
    outages, demand = outages_of(plan, failures), demand_of(plan, scale, date)
    fleet, curves = planned_fleet(plan, outages, date), dict[Level, Curves]()
    for number, level in enumerate(LEVELS):
        fleets = replace(fleet, outages=()), replace(fleet)
        curves[level] = play_day(services[level], demand, fleets, _part_of(tell, number))
    outcomes = {level: outcome_of(plan, services[level], each) for level, each in curves.items()}
    hosts = {node for unit in plan.units for node in unit.nodes}
    idle = tuple(each for each in failures if each.node not in hosts)
    return PlayedDay(plan, date, scale, outages, idle, services, curves, outcomes)


def _part_of(tell: Callable[[float], None], level: int) -> Callable[[float], None]:
    return lambda done: tell((level + done) / len(LEVELS))
