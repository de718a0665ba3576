"""Rules by which a valid spec is infeasible: too little memory, too few slots or nodes, too short a warm-up.

The planner's passes compute layouts, placement and maps; these rules judge them. The first rule that finds something
ends the check, because later ones assume the earlier ones: counting nodes is pointless for units that fit into no GPU.
"""

from collections.abc import Iterator

from planner.estimate.coverage import (
    check_coverage,
    check_map_coverage,
    failure_domains,
    undecided_racks,
)
from planner.estimate.points import check_points_fit
from planner.layout.memory import find_misfits
from planner.placement.enough import find_missing_nodes
from planner.problems.finding import Finding, Unknown
from planner.rules.rule import Candidate, Rule
from planner.rules.starts import find_late_starts


def memory_holds_a_request(c: Candidate) -> Iterator[Finding]:
    """Reject GPUs whose memory cannot hold the weights and one request of full length."""
    yield from find_misfits(c.resolved, c.memory)


def units_are_ready_in_time(c: Candidate) -> Iterator[Finding]:
    """Reject a `warm_up` that is shorter than the longest start of units in the schedule."""
    if (schedule := c.resolved.written.schedule) is not None:
        yield from find_late_starts(schedule, c.start_times)


def experts_survive_failures(c: Candidate) -> Iterator[Finding]:
    """Reject units with too few slots or failure domains for `coverage`.

    Racks are counted only once units are placed.
    """
    spec = c.resolved
    try:
        places = c.places if spec.written.coverage == "rack" else failure_domains(spec, c.layouts)
    except Unknown:
        places = failure_domains(spec, c.layouts)
    yield from check_coverage(spec, c.layouts, places, c.mean_balance)


def operating_points_fit_kv(c: Candidate) -> Iterator[Finding]:
    """Reject operating points whose requests need more KV memory than a GPU has."""
    yield from check_points_fit(c.resolved, c.memory)


def nodes_suffice(c: Candidate) -> Iterator[Finding]:
    """Reject specs whose units need more nodes than are usable."""
    yield from find_missing_nodes(c.resolved, c.layouts)


def rack_coverage_is_decided(c: Candidate) -> Iterator[Finding]:
    """Report that `coverage: rack` cannot be checked before units are placed."""
    if c.resolved.written.coverage == "rack":
        try:
            _ = c.places
        except Unknown:
            yield undecided_racks()


def maps_cover(c: Candidate) -> Iterator[Finding]:
    """Reject expert maps in which one failure domain of a unit holds all replicas of an expert."""
    if c.resolved.written.coverage != "none":
        yield from check_map_coverage(c.maps)


RULES = (
    Rule("S707", "laid out", memory_holds_a_request),
    Rule("S763", "laid out", units_are_ready_in_time),
    Rule("S720 S721", "laid out", experts_survive_failures),
    Rule("S711", "laid out", operating_points_fit_kv),
    Rule("S701", "placed", nodes_suffice),
    Rule("S723", "placed", rack_coverage_is_decided),
    Rule("S722", "mapped", maps_cover),
)
