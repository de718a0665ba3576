"""Units that leave a plan with a controller: the controller deletes them, as it does under Git, and Pulumi does not.

It keeps such a unit until all others have changed (`stacks/controller/sweep.py`). It knows the unit by the status of
its TidemillDeployment, which lists the units of each plan that it has looked at, until they are gone. A controller that
has not looked yet knows none, so Pulumi deletes them.

What the controller has not deleted when it goes itself is in no state. So the list of units deletes it, when the list
loses its controller (`occupants.py`).
"""

from collections.abc import Collection, Iterator
from contextlib import suppress

from planner.facts import names
from stacks.kube.api import Api
from stacks.kube.errors import NotServedError, ProviderError
from stacks.kube.manifest import Manifest, Reference, is_ending
from stacks.kube.ownership import owning_plan

__all__ = ["is_left_to_controller", "list_leftovers"]


def is_left_to_controller(api: Api, unit: Manifest) -> bool:
    """Return whether the plan of `unit` has a controller that deletes the unit once it has left the plan."""
    namespace, plan = unit["metadata"].get("namespace") or "", owning_plan(unit)
    try:
        live = api.get(Reference(names.DEPLOYMENT_API_VERSION, names.DEPLOYMENT_KIND, namespace, str(plan)))
    except NotServedError:
        return False
    if live is None or is_ending(live):
        return False
    return unit["metadata"]["name"] in (live.get("status") or {}).get("unitNames", ())


def list_leftovers(api: Api, unit: Manifest, staying: Collection[str]) -> list[list[Manifest]]:
    """Return the objects that the controller of `unit`'s plan would have deleted: [workloads of units, other objects].

    These are the plan's objects that no tool prunes, without the objects of units in `staying`. Kinds that cannot be
    listed are left out.
    """
    workloads = _list_unpruned(api, unit, [names.UNIT_OBJECTS["leaderworkerset"]])
    others = _list_unpruned(api, unit, [*names.COMPANIONS, ("v1", "ConfigMap")])
    return [
        [each for each in found if each["metadata"]["labels"].get(names.UNIT_LABEL) not in staying]
        for found in (workloads, others)
    ]


def _list_unpruned(api: Api, unit: Manifest, kinds: Collection[tuple[str, str]]) -> Iterator[Manifest]:
    """Yield the objects of `kinds` that belong to the plan of `unit` and are annotated so that no tool prunes them."""
    namespace, selector = unit["metadata"].get("namespace") or "", f"{names.PLAN_LABEL}={owning_plan(unit)}"
    for api_version, kind in kinds:
        with suppress(ProviderError):
            for each in api.list_metadata(api_version, kind, namespace, labelSelector=selector):
                if names.UNPRUNED.keys() <= (each["metadata"].get("annotations") or {}).keys():
                    yield each
