"""A whole plan as a Pulumi component: what all pods share, then the gateway and the units side by side.

    Provider -> Deployment -> namespace, account -> Gateway
                                                 -> Occupants -> Unit, Unit, ... -> Arrivals

Gateway and units wait for each other inside the cluster (ranks register, then the gateway is ready), so Pulumi must
bring them up together and may order only what comes before both. Units that the plan before had and this one has not
end before new ones come, which may need their nodes. New units are awaited together (`provider/occupants.py`).

Units begin a few at a time, each when the one so many places before it has all but its pods. Else Pulumi would make the
launch files of all units first, and the first pods would come after the last Service.
"""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Iterator, Sequence

import pulumi

from planner.facts import names
from planner.plan.deployable import Deployable
from stacks.program.plan_objects import PlanObject, PlanObjects, plan_objects
from stacks.provider.resource import Arrivals, Object, Occupants, Provider

__all__ = ["Deployment", "deploy"]

AT_ONCE = 8  # units; assumed: Pulumi works in as many places on two cores


def deploy(plan: Deployable, context: str | None) -> "Deployment":
    """Declare the stack of `plan` on the cluster of kubeconfig `context` (None: the current one).

    Raises InfeasibleError, before anything is created, when the bundled runtime cannot run the plan.
    """
    objects = plan_objects(plan)
    with _without_stack_traces():
        provider = Provider("cluster", context=context, kinds=objects.kinds())
        return Deployment(plan, objects, pulumi.ResourceOptions(providers=[provider]))


@contextlib.contextmanager
def _without_stack_traces() -> Iterator[None]:
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
    """`endpoint` is where clients inside the cluster come in."""

    def __init__(self, plan: Deployable, objects: PlanObjects, options: pulumi.ResourceOptions) -> None:
        super().__init__("tidemill:stacks:Deployment", plan.name, opts=options)
        kubernetes = plan.kubernetes
        shared = _create(self, objects.shared, kubernetes.ready_timeout)
        children = pulumi.ResourceOptions(parent=self, depends_on=shared)
        Gateway(names.gateway_name(plan.name), objects.gateway, kubernetes.ready_timeout, children)
        occupants = Occupants("units", objects.occupants(), _with_deadline(children, kubernetes.ready_timeout))
        units: list[Unit] = []
        for number, (name, of_unit) in enumerate(objects.units.items()):
            begun = [_after(units[number - AT_ONCE].before_pods, occupants)] if number >= AT_ONCE else [occupants]
            options = pulumi.ResourceOptions(parent=self, depends_on=begun)
            units.append(Unit(name, of_unit, kubernetes.ready_timeout, options))
        arriving = pulumi.ResourceOptions(parent=self, depends_on=[each.group for each in units])
        Arrivals("units-ready", list(objects.units), _with_deadline(arriving, kubernetes.ready_timeout))
        self.endpoint = plan.endpoint
        self.register_outputs({"endpoint": self.endpoint})


class Gateway(pulumi.ComponentResource):
    """Account, launch file, Services and Deployment of the gateway.

    The Deployment becomes ready only when units have registered, so nothing may wait for it before they exist.
    """

    def __init__(
        self, name: str, objects: Sequence[PlanObject], ready_timeout_s: float, options: pulumi.ResourceOptions
    ) -> None:
        super().__init__("tidemill:stacks:Gateway", name, opts=options)
        _create(self, objects, ready_timeout_s)  # without outputs: Pulumi would write its state for none


class Unit(pulumi.ComponentResource):
    """Launch file, the pods' DNS domain and pods of one unit. `group` is the last of them, the pods."""

    def __init__(
        self, name: str, objects: Sequence[PlanObject], ready_timeout_s: float, options: pulumi.ResourceOptions
    ) -> None:
        super().__init__("tidemill:stacks:Unit", name, opts=options)
        *_, self.before_pods, self.group = _create(self, objects, ready_timeout_s)


def _create(
    parent: pulumi.ComponentResource, objects: Sequence[PlanObject], ready_timeout_s: float
) -> list[pulumi.Resource]:
    """Create `objects` as children of `parent`, each after those before it."""
    created: list[pulumi.Resource] = []
    for each in objects:
        options = pulumi.ResourceOptions(parent=parent, depends_on=list(created))
        created.append(Object(each.name, each.manifest, _with_deadline(options, ready_timeout_s)))
    return created


def _after(other: pulumi.Resource, needed: pulumi.Resource) -> Awaitable[pulumi.Resource]:
    """`needed`, once `other` is there too. To Pulumi's state that is no dependency on `other`."""

    async def wait() -> pulumi.Resource:
        await other.urn.future()
        return needed

    return asyncio.ensure_future(wait())


def _with_deadline(options: pulumi.ResourceOptions, ready_timeout_s: float) -> pulumi.ResourceOptions:
    deadline = pulumi.CustomTimeouts(create=f"{ready_timeout_s:g}s", update=f"{ready_timeout_s:g}s")
    return pulumi.ResourceOptions.merge(options, pulumi.ResourceOptions(custom_timeouts=deadline))
