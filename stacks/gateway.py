"""The gateway as a component: account, launch file, Services, Deployment. Ready when requests can be answered."""

from collections.abc import Sequence

import pulumi

from stacks.children import create_objects
from stacks.plan_objects import PlanObject

__all__ = ["Gateway"]


class Gateway(pulumi.ComponentResource):
    """Its Deployment becomes ready only when units have registered: nothing may wait for it before they exist."""

    def __init__(
        self, name: str, objects: Sequence[PlanObject], ready_timeout_s: float, options: pulumi.ResourceOptions
    ) -> None:
        super().__init__("tidemill:stacks:Gateway", name, opts=options)
        create_objects(self, objects, ready_timeout_s)
        self.register_outputs({})
