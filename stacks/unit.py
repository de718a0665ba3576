"""One unit as a component: launch file, the pods' DNS domain, LeaderWorkerSet. Ready when its whole group is."""

from collections.abc import Sequence

import pulumi

from stacks.children import create_objects
from stacks.plan_objects import PlanObject

__all__ = ["Unit"]


class Unit(pulumi.ComponentResource):
    """The thing that is placed, drained, scaled and healed. It needs no other unit to become ready."""

    def __init__(
        self, name: str, objects: Sequence[PlanObject], ready_timeout_s: float, options: pulumi.ResourceOptions
    ) -> None:
        super().__init__("tidemill:stacks:Unit", name, opts=options)
        create_objects(self, objects, ready_timeout_s)
        self.register_outputs({})
