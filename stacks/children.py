"""What the components share: an object of the cluster as a child, created when those before it are there."""

from collections.abc import Sequence

import pulumi

from stacks.plan_objects import PlanObject
from stacks.provider.resource import Object

__all__ = ["create_objects"]


def create_objects(
    parent: pulumi.ComponentResource, objects: Sequence[PlanObject], ready_timeout_s: float
) -> list[pulumi.Resource]:
    """`objects` as children of `parent`, each after those before it."""
    created: list[pulumi.Resource] = []
    for each in objects:
        deadline = pulumi.CustomTimeouts(create=f"{ready_timeout_s:g}s", update=f"{ready_timeout_s:g}s")
        options = pulumi.ResourceOptions(parent=parent, depends_on=list(created), custom_timeouts=deadline)
        created.append(Object(each.name, each.manifest, options))
    return created
