"""A whole plan as a Pulumi component: what all pods share, then the gateway and the units side by side.

    Deployment -> Provider -> namespace, account -> gateway
                                                 -> Occupants -> unit, unit, ... -> Arrivals
                                                                                 -> controller

Gateway and units wait for each other inside the cluster (ranks register, then the gateway is ready), so Pulumi must
bring them up together and may order only what comes before both. Units that only the plan before had end before new
ones start, which may need their nodes. New units are awaited together (`provider/occupants.py`).

With a controller, units that leave and units that change are its own, as under Git. So it gets the new plan once all
units are stored, and none is awaited before. When all is destroyed it goes before the units, which are Pulumi's then.

Gateway and units are one resource each, of several objects: Pulumi writes its whole state at each step of a resource.

Resources are named after the component, so that a program may have several, even of the same plan on two clusters.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pulumi

from planner.facts import names
from stacks.program import TOKEN
from stacks.program.plan_objects import PlanObject, PlanObjects
from stacks.program.source import Source
from stacks.provider.resource import Arrivals, Object, Objects, Occupants, Provider

__all__ = ["Deployment"]

PLAIN = ("apiVersion", "kind", "immutable")  # of a manifest: what kind of resource it is follows from them
LIMITING = threading.Lock()  # `sys.tracebacklimit` is global, and the provider declares components in threads


class Deployment(pulumi.ComponentResource):
    """The Pulumi component with all objects of a plan on one cluster.

    `endpoint` is the gateway's address for clients inside the cluster; it is known once gateway and units are
    ready. `plan_digest` is the plan's digest, `units` are its units' names; `verdict` judges the change from the
    plan `source.previous`.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        kubeconfig: pulumi.Input[str] | None = None,
        context: pulumi.Input[str] | None = None,
        adopt: pulumi.Input[bool] | None = None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """Declare all objects on the cluster that `kubeconfig` (a path or the content) and its `context` name.

        With `adopt`, objects of the plan that kubectl or Git has applied are taken over instead of refused.
        Raises TidemillError, before anything is declared, if there is no plan or the bundled runtime cannot run
        it.
        """
        objects, self._plan, self._is_secret = source.objects, source.deployed, source.is_secret
        self.plan_digest, self.units, self.verdict = self._plan.digest, list(objects.units), source.verdict
        with _omit_stack_traces():
            formerly = pulumi.ResourceOptions(aliases=[pulumi.Alias(type_="tidemill:stacks:Deployment")])
            super().__init__(TOKEN, name, opts=pulumi.ResourceOptions.merge(formerly, opts))
            secret = None if kubeconfig is None else pulumi.Output.secret(kubeconfig)
            before = pulumi.Alias(name="cluster", parent=pulumi.ROOT_STACK_RESOURCE)
            options = pulumi.ResourceOptions(parent=self, aliases=[before])
            self._cluster = Provider(f"{name}-cluster", context, objects.kinds(), secret, adopt, options)
            last = self._declare_objects(objects)
        self.endpoint = pulumi.Output.all(*(each.urn for each in last)).apply(lambda _: self._plan.endpoint)
        self.register_outputs(self.outputs)

    @property
    def outputs(self) -> dict[str, Any]:
        """The component's outputs, by their names in `schema.json`."""
        digest = self.plan_digest
        return {"endpoint": self.endpoint, "planDigest": digest, "units": self.units, "verdict": self.verdict}

    def _declare_objects(self, objects: PlanObjects) -> list[pulumi.Resource]:
        """Declare all objects in the order of their dependencies. Return the two resources that become ready last."""
        shared = self._declare_shared(objects.shared)
        # Its Deployment becomes ready only when units have registered, so nothing may wait for it before they exist.
        gateway = self._declare_set(names.gateway_name(self._plan.name), objects.gateway, shared)
        name, options = self._child("units", shared)
        listed, has_controller = self._conceal(objects.occupants()), bool(objects.controller)
        occupants = Occupants(name, listed, options, has_controller=has_controller)
        units = [self._declare_set(unit, of_unit, [occupants]) for unit, of_unit in objects.units.items()]
        if has_controller:
            self._declare_set(names.controller_name(self._plan.name), objects.controller, units)
        return [gateway, Arrivals(*self._child("units-ready", units))]

    def _declare_shared(self, objects: Sequence[PlanObject]) -> list[pulumi.Resource]:
        """Declare `objects`, which all pods of the plan share.

        All depend on the first, which may be their namespace; the others are created side by side.
        """
        declared: list[pulumi.Resource] = []
        for each in objects:
            name, options = self._child(each.name, declared[:1])
            declared.append(Object(name, self._conceal(each.manifest), options))
        return declared

    def _declare_set(self, owner: str, objects: Sequence[PlanObject], after: Sequence[pulumi.Resource]) -> Objects:
        name, options = self._child(owner, after)
        return Objects(name, self._conceal(_manifests_by_kind(owner, objects)), options)

    def _conceal(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a resource's inputs, marked as secrets (all but `PLAIN`) if the deployment's source is secret."""
        return {
            key: pulumi.Output.secret(value) if self._is_secret and key not in PLAIN else value
            for key, value in inputs.items()
        }

    def _child(self, name: str, after: Sequence[pulumi.Resource]) -> tuple[str, pulumi.ResourceOptions]:
        """Return (name, options) of a child resource. Older states know the resource as `name`, so that is an alias."""
        deadline = f"{self._plan.kubernetes.ready_timeout:g}s"
        options = pulumi.ResourceOptions(
            parent=self,
            provider=self._cluster,
            depends_on=list(after),
            aliases=[pulumi.Alias(name=name)],
            custom_timeouts=pulumi.CustomTimeouts(create=deadline, update=deadline),
        )
        return f"{self._name}-{names.short_name(name, self._plan.name)}", options


@contextlib.contextmanager
def _omit_stack_traces() -> Iterator[None]:
    """Keep the SDK, while a `with` block runs, from storing the program's stack trace with each resource.

    For the published system, stack traces are a quarter of the state, which Pulumi rewrites at each step, and they
    contain paths of this machine.
    """
    with LIMITING:
        before = getattr(sys, "tracebacklimit", None)
        sys.tracebacklimit = 1
        try:
            yield
        finally:
            if before is None:
                del sys.tracebacklimit
            else:
                sys.tracebacklimit = before


def _manifests_by_kind(owner: str, objects: Sequence[PlanObject]) -> Mapping[str, Mapping[str, Any]]:
    """Return kind -> manifest. If an object's name is not the owner's, the key is `KIND NAME`."""
    return {_key(owner, each): each.manifest for each in objects}


def _key(owner: str, each: PlanObject) -> str:
    kind = str(each.manifest["kind"])
    return kind if each.name == owner else f"{kind} {each.name}"
