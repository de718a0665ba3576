"""Failures to expect, as text: how often, what each costs, and the spares for them."""

from planner.plan.columns import filled, table
from planner.plan.estimated import Estimated

__all__ = ["uptime_text"]


def uptime_text(plan: Estimated) -> str:
    """Return the section; empty where the spec does not ask."""
    uptime = plan.uptime
    if uptime is None:
        return ""
    rows = [("uptime", "failures/day", "node-hours lost/day", "down at once", "unit is up")]
    rows += [
        (
            phase,
            f"{each.failures_per_day:.3f}",
            f"{each.node_hours_lost_per_day:.3f}",
            f"{each.capacity_at_once:.1%}",
            f"{each.availability:.4%}",
        )
        for phase, each in uptime.phases.items()
    ]
    have = f"the spec has {uptime.spares}" if uptime.spares else "the spec has none"
    note = (
        f"On average {uptime.failures_per_day:.2f} units fail a day and {uptime.nodes_in_repair:.2f} nodes are being"
        f" repaired. Spares needed for {uptime.availability:g} of the time: {uptime.spares_needed}; {have}. Software"
        " failures are not counted."
    )
    return "\n".join([table(rows), *filled(note)])
