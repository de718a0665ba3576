"""What makes a right spec infeasible: memory, slots, nodes, starts. The passes compute, and these rules ask.

A refusal rests on those before it: whether nodes suffice means nothing for units that no GPU holds. So the first rule
that finds something ends the check.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol

from planner.estimate.coverage import (
    FailureDomains,
    failure_domains,
    racks_are_open,
    too_little_coverage,
    uncovered_maps,
)
from planner.estimate.points import points_without_room
from planner.expert_map import Domains, ExpertMap
from planner.facts.terms import Phase
from planner.layout.layout import PhaseLayout
from planner.layout.memory import misfits
from planner.placement.enough import missing_nodes
from planner.problems.finding import Finding, Unknown
from planner.rules.rule import Candidate, Rule
from planner.rules.starts import unready_start
from planner.schedule.starts import StartTimes

__all__ = ["RULES", "LaidOut"]


class LaidOut(Candidate, Protocol):
    """A candidate with the results of its passes, as far as it may be thought through."""

    @property
    def layouts(self) -> tuple[PhaseLayout, ...]:
        """The shape of each phase."""

    @property
    def start_times(self) -> StartTimes | None:
        """How long units take to start, where that is known."""

    @property
    def places(self) -> Mapping[Phase, FailureDomains]:
        """The failure domains in which ranks stand; Unknown before units are placed."""

    @property
    def maps(self) -> Mapping[Phase, ExpertMap]:
        """The expert map of each phase; Unknown before there is one."""

    def mean_balance(self, layout: PhaseLayout, slots_per_gpu: int, domains: Domains) -> float | None:
        """Max/mean of a map of `layout` with other slots and failure domains; None before there are maps."""


def memory_holds_a_request(c: LaidOut) -> Iterator[Finding]:
    """Each GPU has room for the KV of one request of full length."""
    yield from misfits(c.resolved, c.memory)


def units_are_ready_in_time(c: LaidOut) -> Iterator[Finding]:
    """No start takes longer than the warm-up."""
    schedule, times = c.resolved.written.schedule, c.start_times
    if schedule is not None and times is not None:
        yield from unready_start(schedule, times, is_auto="schedule.warm_up" in c.resolved.document.autos)


def experts_survive(c: LaidOut) -> Iterator[Finding]:
    """Slots and places suffice for `coverage`, in the racks where units stand, or wherever they may stand."""
    spec = c.resolved
    try:
        places = c.places if spec.written.coverage == "rack" else failure_domains(spec, c.layouts)
    except Unknown:
        places = failure_domains(spec, c.layouts)
    yield from too_little_coverage(spec, c.layouts, places, c.mean_balance)


def points_have_room(c: LaidOut) -> Iterator[Finding]:
    """KV has room for what each operating point asks for."""
    yield from points_without_room(c.resolved, c.memory)


def nodes_suffice(c: LaidOut) -> Iterator[Finding]:
    """There are as many usable nodes as all units take."""
    yield from missing_nodes(c.resolved, c.layouts)


def racks_are_known(c: LaidOut) -> Iterator[Finding]:
    """Coverage of racks is decided by the racks in which units stand."""
    if c.resolved.written.coverage == "rack":
        try:
            _ = c.places
        except Unknown:
            yield racks_are_open()


def maps_cover(c: LaidOut) -> Iterator[Finding]:
    """One expert map survives a loss in all the ways in which units stand."""
    if c.resolved.written.coverage != "none":
        yield from uncovered_maps(c.maps)


RULES = (
    Rule("S707", "laid out", memory_holds_a_request),
    Rule("S763 S764", "laid out", units_are_ready_in_time),
    Rule("S720 S721", "laid out", experts_survive),
    Rule("S711", "laid out", points_have_room),
    Rule("S701", "placed", nodes_suffice),
    Rule("S723", "placed", racks_are_known),
    Rule("S722", "mapped", maps_cover),
)
