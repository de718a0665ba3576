"""The recorded history of a plan's updates in a cluster: `tidemill status SPEC --changes --context NAME`.

The controller records them in the deployment's status, beside what was promised (`stacks/controller/changes.py`), and
the last change of each unit's expert map. This file reads and words that record, and judges nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from planner.facts import names
from planner.facts.day import MINUTE_S
from planner.facts.quantities import counted
from planner.plan.plan import Plan
from stacks.kube.api import connect
from stacks.kube.errors import ProviderError
from stacks.kube.manifest import Reference, parse_instant
from stacks.live.status import ClusterError

__all__ = ["change_lines", "describe_course", "map_lines", "read_record"]

Written = Mapping[str, Any]  # a change as the status has it


def read_record(plan: Plan, context: str) -> Written | None:
    """Return the status that the controller has written, with `changes` of units, newest last, and `expertMaps`.

    None if the plan is not there. Raises ClusterError if the cluster cannot be asked.
    """
    deployment = Reference(names.DEPLOYMENT_API_VERSION, names.DEPLOYMENT_KIND, plan.kubernetes.namespace, plan.name)
    try:
        live = connect(context).get(deployment)
    except ProviderError as error:
        raise ClusterError(error) from None
    return None if live is None else live.get("status") or {}


def map_lines(plan: str, maps: Sequence[Written]) -> Iterator[str]:
    """Yield a line about each unit that has changed its expert map while it serves."""
    for each in maps:
        if "adopted" in each:
            yield f"{names.short_name(each['unit'], plan)} is in epoch {each['epoch']}: {each['adopted']}"


def change_lines(plan: str, change: Written) -> Iterator[str]:
    """Yield lines about a change: how long it took, the order in which units changed, what served and what failed."""
    yield f"{change['began']}  {describe_course(change)}"
    for fate, units in groupby(change["units"], key=lambda each: each["change"]):
        yield f"  {fate} {_list_units(plan, list(units))}"
    if change["left"]:
        yield f"  {'not changed' if 'ended' in change else 'to change'}: {_list_units(plan, change['left'])}"
    served = [_describe_share(phase, least, change["promised"]) for phase, least in change["least"].items()]
    yield f"  served at least: {', '.join(served)}"
    if "failed" in change:
        yield f"  failed: {_describe_failures(change['failed'], change['promised']['least'])}"


def describe_course(change: Written) -> str:
    """Return how long a change took, or that it still goes on, and the minutes that the plan promised for it."""
    promised = f", {change['promised']['minutes']} min promised" if "minutes" in change["promised"] else ""
    if "ended" not in change:
        return f"goes on{promised}"
    course = "replaced by another change after" if change.get("outcome") == "Replaced" else "carried out in"
    began, ended = parse_instant(change["began"]), parse_instant(change["ended"])
    if began is None or ended is None:
        return f"{course} an unknown time{promised}"
    return f"{course} {(ended - began) / MINUTE_S:.1f} min{promised}"


def _describe_share(phase: str, least: Mapping[str, int], promised: Written) -> str:
    said = promised["least"].get(phase)
    promise = f"{said['units']} of {said['ofUnits']} promised" if said else "nothing promised"
    as_promised = "as promised" if said == least else promise
    return f"{least['units']} of {counted(least['ofUnits'], f'{phase} unit')} ({as_promised})"


def _describe_failures(number: int, least: Mapping[str, Mapping[str, int]]) -> str:
    """Return words for the `number` of requests that failed, beside what the plan promised.

    `least` is phase -> the fewest units that serve. The plan promises 0 if each phase keeps a unit that serves.
    Otherwise it promises nothing.
    """
    if not all(each["units"] for each in least.values()):
        return f"{counted(number, 'request')} (nothing promised)"
    return f"{counted(number, 'request')} ({'0 promised' if number else 'as promised'})"


def _list_units(plan: str, units: Sequence[Mapping[str, str]]) -> str:
    return ", ".join(names.short_name(each["name"], plan) for each in units)
