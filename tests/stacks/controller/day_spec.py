"""The demo's day with a controller, as a spec in a file."""

import yaml

from planner.compiler import compile_plan
from planner.rules.check import check_spec
from tests.stacks.deployments import REPOSITORY

__all__ = ["day_plan", "write_day"]

DAY = REPOSITORY / "stacks" / "specs" / "demo-day.yaml"


def write_day(folder, *, cluster=None, schedule=None, phases=None, loads=None, **kubernetes):
    """The path of the spec, in `folder`, with more fields of `cluster`, `schedule`, both phases and `kubernetes`.

    `loads` are the expert loads of another day.
    """
    document = yaml.safe_load(DAY.read_text().replace("../../", f"{REPOSITORY}/"))
    document["kubernetes"] |= {"controller": {}} | kubernetes
    document["cluster"] |= cluster or {}
    document["schedule"] |= schedule or {}
    document["prefill"] |= phases or {}
    document["decode"] |= phases or {}
    document |= {"expert_load": loads} if loads else {}
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def day_plan(folder, **changes):
    """Its plan."""
    return compile_plan(check_spec(write_day(folder, **changes)))
