"""A whole plan as a Pulumi component: what all pods share, then the gateway and the units side by side.

    Provider -> Deployment -> namespace, account -> gateway
                                                 -> Occupants -> unit, unit, ... -> Arrivals -> controller

Gateway and units wait for each other inside the cluster (ranks register, then the gateway is ready), so Pulumi must
bring them up together and may order only what comes before both. Units that only the plan before had end before new
ones start, which may need their nodes. New units are awaited together (`provider/occupants.py`).

Gateway and units are one resource each, of several objects: Pulumi writes its whole state at each step of a resource.
"""

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pulumi

from planner.facts import names
from planner.plan.plan import Plan
from stacks.program.plan_objects import PlanObject, PlanObjects, plan_objects
from stacks.provider.resource import Arrivals, Object, Objects, Occupants, Provider

__all__ = ["Deployment", "deploy"]


def deploy(plan: Plan, context: str | None) -> "Deployment":
    """Declare the stack of `plan` on the cluster of kubeconfig `context` (None: the current one).

    Raises InfeasibleError, before anything is created, when the bundled runtime cannot run the plan.
    """
    objects = plan_objects(plan)
    with _omit_stack_traces():
        provider = Provider("cluster", context=context, kinds=objects.kinds())
        return Deployment(plan, objects, pulumi.ResourceOptions(providers=[provider]))


@contextlib.contextmanager
def _omit_stack_traces() -> Iterator[None]:
    """Declare resources without the program's stack, which the SDK would put into the state with each of them.

    For the published system that is a quarter of a state, which Pulumi writes anew at each step; and it is the paths of
    this machine.
    """
    before = getattr(sys, "tracebacklimit", None)
    sys.tracebacklimit = 1
    try:
        yield
    finally:
        if before is None:
            del sys.tracebacklimit
        else:
            sys.tracebacklimit = before


class Deployment(pulumi.ComponentResource):
    """All resources of a plan; `endpoint` is the gateway's address for clients inside the cluster."""

    def __init__(self, plan: Plan, objects: PlanObjects, options: pulumi.ResourceOptions) -> None:
        super().__init__("tidemill:stacks:Deployment", plan.name, opts=options)
        timeout = plan.kubernetes.ready_timeout
        shared = _create(self, objects.shared, timeout)
        after_shared = _set_deadline(pulumi.ResourceOptions(parent=self, depends_on=shared), timeout)
        gateway = names.gateway_name(plan.name)
        # Its Deployment becomes ready only when units have registered, so nothing may wait for it before they exist.
        Objects(gateway, _manifests_by_kind(gateway, objects.gateway), after_shared)
        occupants = Occupants("units", objects.occupants(), after_shared)
        after_list = _set_deadline(pulumi.ResourceOptions(parent=self, depends_on=[occupants]), timeout)
        units = [Objects(name, _manifests_by_kind(name, unit), after_list) for name, unit in objects.units.items()]
        arriving = pulumi.ResourceOptions(parent=self, depends_on=units)
        arrivals = Arrivals("units-ready", list(objects.units), _set_deadline(arriving, timeout))
        if objects.controller:  # after the units: each has been seen ready once before any is turned off
            controller = names.controller_name(plan.name)
            last = _set_deadline(pulumi.ResourceOptions(parent=self, depends_on=[arrivals]), timeout)
            Objects(controller, _manifests_by_kind(controller, objects.controller), last)
        self.endpoint = plan.endpoint
        self.register_outputs({"endpoint": self.endpoint})


def _create(
    parent: pulumi.ComponentResource, objects: Sequence[PlanObject], ready_timeout_s: float
) -> list[pulumi.Resource]:
    """Create `objects` as children of `parent`, side by side, but all after the first: it may be their namespace."""
    created: list[pulumi.Resource] = []
    for each in objects:
        options = pulumi.ResourceOptions(parent=parent, depends_on=created[:1])
        created.append(Object(each.name, each.manifest, _set_deadline(options, ready_timeout_s)))
    return created


def _manifests_by_kind(owner: str, objects: Sequence[PlanObject]) -> Mapping[str, Mapping[str, Any]]:
    """Return the manifests by kind, or by kind and name for those whose name is not their owner's."""
    return {_key(owner, each): each.manifest for each in objects}


def _key(owner: str, each: PlanObject) -> str:
    kind = str(each.manifest["kind"])
    return kind if each.name == owner else f"{kind} {each.name}"


def _set_deadline(options: pulumi.ResourceOptions, ready_timeout_s: float) -> pulumi.ResourceOptions:
    deadline = pulumi.CustomTimeouts(create=f"{ready_timeout_s:g}s", update=f"{ready_timeout_s:g}s")
    return pulumi.ResourceOptions.merge(options, pulumi.ResourceOptions(custom_timeouts=deadline))
