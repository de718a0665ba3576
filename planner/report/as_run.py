"""The plan as it runs: without `kubernetes.controller` nothing switches units, so all of them stay on.

PLAN.json has the schedule as it was asked for, and load and cost of the day as it runs. Text, page and pictures show
the day as it runs, and then what a controller would change.
"""

from planner.plan.plan import Plan


def as_run(plan: Plan) -> Plan:
    """Return `plan` if its schedule is carried out; else a copy without it."""
    if not plan.switches_units or plan.kubernetes.controller:
        return plan
    return plan.with_sections(written=plan.written | {"schedule": None}, schedule=None)
