"""A small day for the controller: two prefill and two decode units, both by day and one of each by night."""

from planner.schedule.schedule import Step, Timetable
from stacks.controller.situation import LiveUnit, Orders, Situation

UNITS = {"p0": "prefill", "p1": "prefill", "d0": "decode", "d1": "decode"}
DAY, NIGHT = ("p0", "p1", "d0", "d1"), ("p0", "d0")
WARM_UP_S, DRAIN_S = 1800, 900
HOUR = 3600
MIDNIGHT = 1_764_028_800  # 2025-11-25 00:00 UTC; days are equal
TIMETABLE = Timetable(
    "UTC",
    (
        Step("06:00", 16 * 60, {"prefill": 2, "decode": 2}, DAY, 4, None),
        Step("22:00", 8 * 60, {"prefill": 1, "decode": 1}, NIGHT, 2, None),
    ),
    WARM_UP_S,
    DRAIN_S,
)
OFF, STARTING, READY, ABSENT = (0, False), (1, False), (1, True), (None, False)


def situation(states, orders=None):
    """One look, with each unit's replicas and readiness in the order of `UNITS`."""
    units = tuple(
        LiveUnit(name, phase, replicas, is_ready=is_ready)
        for (name, phase), (replicas, is_ready) in zip(UNITS.items(), states, strict=True)
    )
    return Situation(TIMETABLE, units, orders or Orders())
