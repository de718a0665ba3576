"""A whole plan as a component: what all pods share, then the gateway and the units side by side.

    Provider -> Deployment -> namespace, account -> Gateway
                                                 -> Unit, Unit, ...

Gateway and units wait for each other inside the cluster (ranks register, then the gateway is ready), so Pulumi must
bring them up together and may order only what comes before both.
"""

import pulumi

from planner import names
from planner.plan import Plan
from stacks.children import create_objects
from stacks.gateway import Gateway
from stacks.plan_objects import PlanObjects, plan_objects
from stacks.provider.resource import Provider
from stacks.unit import Unit

__all__ = ["Deployment", "deploy"]


def deploy(plan: Plan, context: str | None) -> "Deployment":
    """The stack of `plan` on the cluster of kubeconfig `context` (None: the current one).

    Raises InfeasibleError, before anything is created, when the bundled runtime cannot run the plan.
    """
    objects = plan_objects(plan)
    provider = Provider("cluster", context=context, kinds=objects.kinds())
    return Deployment(plan, objects, pulumi.ResourceOptions(providers=[provider]))


class Deployment(pulumi.ComponentResource):
    """`endpoint` is where clients inside the cluster come in."""

    def __init__(self, plan: Plan, objects: PlanObjects, options: pulumi.ResourceOptions) -> None:
        super().__init__("tidemill:stacks:Deployment", plan.name, opts=options)
        kubernetes = plan.spec.kubernetes
        shared = create_objects(self, objects.shared, kubernetes.ready_timeout)
        children = pulumi.ResourceOptions(parent=self, depends_on=shared)
        Gateway(names.gateway_name(plan.name), objects.gateway, kubernetes.ready_timeout, children)
        for name, of_unit in objects.units.items():
            Unit(name, of_unit, kubernetes.ready_timeout, children)
        self.endpoint = names.cluster_endpoint(plan.name, kubernetes.namespace, plan.spec.gateway.port)
        self.register_outputs({"endpoint": self.endpoint})
