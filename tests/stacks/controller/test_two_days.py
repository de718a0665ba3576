"""Two days of the published system at its own pace: 38 units, a controller that is killed, units that fail."""

import random
from collections import Counter
from dataclasses import replace
from functools import cache

from planner.compiler import compile_plan
from planner.rules.check import check_spec
from stacks.controller.decide import decide
from stacks.controller.situation import LiveUnit, Orders, Situation
from stacks.day.clock import state_at, units_at
from tests.stacks.deployments import REPOSITORY

BEGIN, END = 1_764_000_000, 1_764_000_000 + 2 * 86_400  # from 00:00 in Shanghai on 25 November 2025 on
LOOK_S = 300  # longer than real ones, for speed
START_S = 300  # of ten minutes that are planned: a controller that was killed is late by a look
AWAY_S = 20 * 60  # a unit that lost a node, until it is ready on a spare
NUM_KILLS, NUM_FAILURES = 20, 6


@cache
def published():
    """Its timetable, and its units as they are before anybody follows the day: all on."""
    plan = compile_plan(check_spec(REPOSITORY / "stacks" / "specs" / "deepseek-h800.yaml"))
    units = [LiveUnit(unit.name, unit.phase, 1, is_ready=True, num_nodes=len(unit.nodes)) for unit in plan.units]
    return plan.timetable, tuple(units)


class Cluster:
    """Units that take their time to start, and some of which fail for a while."""

    def __init__(self):
        self.timetable, self.units = published()
        self.ready_at = {}  # unit -> when it is ready next
        self.failed = set()

    def at(self, now):
        """The units at a time."""
        self.failed -= {unit for unit in self.failed if self.ready_at[unit] <= now}
        self.units = tuple(
            replace(unit, is_ready=bool(unit.replicas) and self.ready_at.get(unit.name, 0) <= now)
            for unit in self.units
        )
        return Situation(self.timetable, self.units, Orders())

    def take(self, scale, now):
        """One change."""
        self.units = tuple(
            replace(unit, replicas=int(scale.is_on)) if unit.name == scale.unit else unit for unit in self.units
        )
        if scale.is_on:
            self.ready_at[scale.unit] = now + START_S
        self.failed.discard(scale.unit)

    def fail(self, draw, now):
        """A unit that serves loses a node."""
        unit = draw.choice([unit.name for unit in self.units if unit.replicas and unit.is_ready])
        self.ready_at[unit] = now + AWAY_S
        self.failed.add(unit)

    def count(self, units):
        """Return it by phase."""
        phases = {unit.name: unit.phase for unit in self.units}
        return Counter(phases[unit] for unit in units)


def test_two_days_go_as_planned():
    """Only failed units are ever missed, and in every state exactly the plan's nodes are taken.

    The controller is killed between the changes of 20 looks.
    """
    draw, cluster = random.Random(0), Cluster()
    looks = range(BEGIN, END, LOOK_S)
    failures, kills = set(draw.sample(looks, NUM_FAILURES)), [BEGIN]
    seen, exact = set(), set()
    for now in looks:
        if now in failures:
            cluster.fail(draw, now)
        scales = decide(cluster.at(now), now).scales
        if scales and len(kills) <= NUM_KILLS and kills[-1] < now - LOOK_S:
            kills.append(now)
            scales = scales[: draw.randrange(len(scales))]
        for each in scales:
            cluster.take(each, now)
        live, wanted = cluster.at(now).units, units_at(cluster.timetable, now)
        served = cluster.count({unit.name for unit in live if unit.replicas and unit.is_ready} | cluster.failed)
        assert served >= cluster.count(wanted), now

        step = state_at(cluster.timetable, now)
        ahead = {*wanted, *units_at(cluster.timetable, now + round(cluster.timetable.warm_up_s))}
        seen.add(step.at)
        if {unit.name for unit in live if unit.replicas} == ahead and {*wanted} == ahead:
            assert sum(unit.num_nodes for unit in live if unit.replicas) == step.num_nodes
            exact.add(step.at)

    assert seen == exact == {step.at for step in cluster.timetable.steps}
    assert len(kills) == NUM_KILLS + 1
