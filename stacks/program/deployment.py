"""A whole plan as a Pulumi component: what all pods share, then the gateway and the units side by side.

    Provider -> Deployment -> namespace, account -> Gateway
                                                 -> Occupants -> Unit, Unit, ...

Gateway and units wait for each other inside the cluster (ranks register, then the gateway is ready), so Pulumi must
bring them up together and may order only what comes before both. Units that the plan before had and this one has not
end before new ones come, which may need their nodes (`provider/occupants.py`).
"""

from collections.abc import Sequence

import pulumi

from planner.facts import names
from planner.plan.deployable import Deployable
from stacks.program.plan_objects import PlanObject, PlanObjects, plan_objects
from stacks.provider.resource import Object, Occupants, Provider

__all__ = ["Deployment", "deploy"]


def deploy(plan: Deployable, context: str | None) -> "Deployment":
    """Declare the stack of `plan` on the cluster of kubeconfig `context` (None: the current one).

    Raises InfeasibleError, before anything is created, when the bundled runtime cannot run the plan.
    """
    objects = plan_objects(plan)
    provider = Provider("cluster", context=context, kinds=objects.kinds())
    return Deployment(plan, objects, pulumi.ResourceOptions(providers=[provider]))


class Deployment(pulumi.ComponentResource):
    """`endpoint` is where clients inside the cluster come in."""

    def __init__(self, plan: Deployable, objects: PlanObjects, options: pulumi.ResourceOptions) -> None:
        super().__init__("tidemill:stacks:Deployment", plan.name, opts=options)
        kubernetes = plan.kubernetes
        shared = _create(self, objects.shared, kubernetes.ready_timeout)
        children = pulumi.ResourceOptions(parent=self, depends_on=shared)
        Gateway(names.gateway_name(plan.name), objects.gateway, kubernetes.ready_timeout, children)
        occupants = Occupants("units", objects.occupants(), _with_deadline(children, kubernetes.ready_timeout))
        in_place = pulumi.ResourceOptions(parent=self, depends_on=[*shared, occupants])
        for name, of_unit in objects.units.items():
            Unit(name, of_unit, kubernetes.ready_timeout, in_place)
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
        _create(self, objects, ready_timeout_s)
        self.register_outputs({})


class Unit(pulumi.ComponentResource):
    """Launch file, the pods' DNS domain and pods of one unit; ready when its whole group is."""

    def __init__(
        self, name: str, objects: Sequence[PlanObject], ready_timeout_s: float, options: pulumi.ResourceOptions
    ) -> None:
        super().__init__("tidemill:stacks:Unit", name, opts=options)
        _create(self, objects, ready_timeout_s)
        self.register_outputs({})


def _create(
    parent: pulumi.ComponentResource, objects: Sequence[PlanObject], ready_timeout_s: float
) -> list[pulumi.Resource]:
    """Create `objects` as children of `parent`, each after those before it."""
    created: list[pulumi.Resource] = []
    for each in objects:
        options = pulumi.ResourceOptions(parent=parent, depends_on=list(created))
        created.append(Object(each.name, each.manifest, _with_deadline(options, ready_timeout_s)))
    return created


def _with_deadline(options: pulumi.ResourceOptions, ready_timeout_s: float) -> pulumi.ResourceOptions:
    deadline = pulumi.CustomTimeouts(create=f"{ready_timeout_s:g}s", update=f"{ready_timeout_s:g}s")
    return pulumi.ResourceOptions.merge(options, pulumi.ResourceOptions(custom_timeouts=deadline))
