"""A plan's objects, grouped as the components own them: exactly what `tidemill render` writes, parsed.

A plan becomes objects in this one way, so that Pulumi and a Git repository cannot differ.
"""

from dataclasses import dataclass
from typing import Any

import yaml

from planner.facts import names
from planner.manifests.render import KUSTOMIZATION, render_files
from planner.plan.plan import Plan

__all__ = ["PlanObject", "PlanObjects", "plan_objects"]

GROUPS = [kind for _, kind in names.UNIT_OBJECTS.values()]


@dataclass(frozen=True)
class PlanObject:
    """One object of a plan, and its name within the stack.

    The name within the stack stays when the object's own name changes with its content.
    """

    name: str
    manifest: dict[str, Any]

    @property
    def kind(self) -> str:
        """The object's apiVersion and kind, such as `apps/v1/Deployment`."""
        return f"{self.manifest['apiVersion']}/{self.manifest['kind']}"

    @property
    def identity(self) -> dict[str, Any]:
        """The manifest's apiVersion, kind and identifying metadata (name, namespace, labels)."""
        metadata = {key: self.manifest["metadata"][key] for key in ("name", "namespace", "labels")}
        return {"apiVersion": self.manifest["apiVersion"], "kind": self.manifest["kind"], "metadata": metadata}


@dataclass(frozen=True)
class PlanObjects:
    """All objects of a plan, in the order in which they can be created."""

    shared: tuple[PlanObject, ...]
    gateway: tuple[PlanObject, ...]
    units: dict[str, tuple[PlanObject, ...]]  # unit name -> its objects
    controller: tuple[PlanObject, ...]  # empty without a controller

    def occupants(self) -> dict[str, dict[str, Any]]:
        """Return unit name -> the identity of the workload whose pods occupy the unit's nodes."""
        groups = {name: [each for each in unit if each.manifest["kind"] in GROUPS] for name, unit in self.units.items()}
        return {name: group.identity for name, (group,) in groups.items()}

    def kinds(self) -> list[str]:
        """Return every kind that the cluster must serve, such as `apps/v1/Deployment`, sorted."""
        return sorted({each.kind for each in self.all_objects()})

    def all_objects(self) -> list[PlanObject]:
        """Return all objects, in the order in which they can be created."""
        units = (each for unit in self.units.values() for each in unit)
        return [*self.shared, *self.gateway, *units, *self.controller]


def plan_objects(plan: Plan) -> PlanObjects:
    """Return the objects of `plan`. Raises InfeasibleError if the bundled runtime cannot run the plan."""
    files = {file: text for file, text in render_files(plan).items() if file != KUSTOMIZATION}
    objects = [
        PlanObject(_name_in_file(file), yaml.load(text, Loader=yaml.CSafeLoader)) for file, text in files.items()
    ]
    owners = [names.owner_of(each.manifest["metadata"]["labels"]) for each in objects]
    owned = list(zip(owners, objects, strict=True))
    return PlanObjects(
        shared=tuple(each for owner, each in owned if owner == "plan"),
        gateway=tuple(each for owner, each in owned if owner == "gateway"),
        units={unit.name: tuple(each for owner, each in owned if owner == unit.name) for unit in plan.units},
        controller=tuple(each for owner, each in owned if owner == "controller"),
    )


def _name_in_file(file: str) -> str:
    """Return NAME for a file `configmap-NAME.yaml`."""
    return file.removesuffix(".yaml").partition("-")[2]
