"""What the program declares, in which order, without an engine."""

import asyncio
import sys
import time

import pulumi
import pytest
from pulumi.runtime import resource as sdk
from pulumi.runtime.mocks import MockMonitor

from planner.compiler import compile_plan
from planner.problems.fix import apply_change
from planner.rules.check import check_spec
from stacks.kube.manifest import OBJECTS
from stacks.program import TOKEN
from stacks.program.deployment import Deployment
from stacks.program.plan_objects import plan_objects
from stacks.program.source import Source
from stacks.provider import occupants
from stacks.provider.wire import has_secret
from tests.stacks.controller.day_spec import day_plan
from tests.stacks.deployments import DEMO_SPEC


@pytest.fixture(scope="module")
def plan():
    """The demo's."""
    return compile_plan(check_spec(DEMO_SPEC))


@pytest.fixture
def declared(plan):
    """(type, name, inputs) of each custom resource, in the order in which the engine may make them."""
    return declared_of(source_of(plan))


def source_of(plan, *, is_secret=False):
    """What would be planned so; no file has it."""
    source = Source(is_secret=is_secret)
    vars(source)["deployed"] = plan
    return source


def declared_of(source, slow="demo-units", components=()):
    """Components of the source, one named after its plan unless named; the resource of one name takes its time."""
    found = []

    class Mocks(pulumi.runtime.Mocks):
        def new_resource(self, args):
            if args.name == slow:
                time.sleep(0.5)  # whoever does not wait for it is made meanwhile
            found.append((args.typ, args.name, args.inputs))
            return args.name, args.inputs

        def call(self, args):
            return {}

    asyncio.set_event_loop(
        loop := asyncio.new_event_loop()
    )  # Pulumi looks for one, and a test before may have closed it
    pulumi.runtime.set_mocks(Mocks())
    wanted = components or (source.deployed.name,)
    pulumi.runtime.test(lambda: [Deployment(each, source) for each in wanted])()
    loop.close()
    return [each for each in found if each[0] != TOKEN]


def test_no_manifest_of_a_secret_source_is_readable_in_the_state(plan, monkeypatch):
    """What a provider declares is in the state as it is sent to the engine."""
    sent = []
    register = MockMonitor.RegisterResource
    monkeypatch.setattr(MockMonitor, "RegisterResource", lambda self, each: sent.append(each) or register(self, each))

    declared_of(source_of(plan, is_secret=True), slow="")
    fields = [(key, value) for each in sent if each.custom for key, value in each.object.fields.items()]

    assert len(fields) > len(plan.units)
    assert {key for key, value in fields if not has_secret(value)} <= {
        "apiVersion",
        "kind",
        "immutable",
        "controller",
        "kinds",
    }


def test_every_unit_is_an_occupant(plan):
    """The list has the identity of what takes its nodes, and nothing of it that may change while it runs."""
    listed = plan_objects(plan).occupants()

    assert list(listed) == [unit.name for unit in plan.units]
    assert listed["demo-decode-0"]["kind"] == "LeaderWorkerSet"
    assert listed["demo-decode-0"]["metadata"]["labels"]["tidemill.dev/plan"] == "demo"
    assert all(set(each) == {"apiVersion", "kind", "metadata"} for each in listed.values())
    assert all(set(each["metadata"]) == {"name", "namespace", "labels"} for each in listed.values())


def test_a_stateful_set_is_an_occupant_too(plan):
    """Whatever a unit is, it takes its nodes."""
    of_sets = plan.with_sections(written=apply_change(plan.written, {"kubernetes.unit_kind": "statefulset"}))

    assert {each["kind"] for each in plan_objects(of_sets).occupants().values()} == {"StatefulSet"}
    assert "apps/v1/StatefulSet" in plan_objects(of_sets).kinds()


def test_units_come_after_the_list_of_all_units(plan, declared):
    """And the list after what all pods share: who left the list is gone before a new unit is made."""
    types = [kind for kind, _, _ in declared]
    listed = types.index(occupants.TOKEN)
    of_units = [place for place, (_, name, _) in enumerate(declared) if name in {unit.name for unit in plan.units}]

    assert len(of_units) == len(plan.units)
    assert types.index("tidemill:core/v1:Namespace") < listed < min(of_units)
    assert declared[listed][2] == {"objects": plan_objects(plan).occupants()}
    assert declared[-1][:2] == (occupants.ARRIVALS, "demo-units-ready")
    assert declared[-1][2] == {}


def test_the_controller_gets_the_new_plan_before_units_are_awaited(tmp_path):
    """All units are there by then; one may need what only the controller does, such as the end of another."""
    of_day = day_plan(tmp_path)

    declared = declared_of(source_of(of_day), slow="demo-day-units-ready")

    assert [name for _, name, _ in declared[-2:]] == ["demo-day-controller", "demo-day-units-ready"]
    assert next(inputs for kind, _, inputs in declared if kind == occupants.TOKEN)["controller"] is True
    assert len(plan_objects(of_day).controller) == 6
    assert "tidemill.dev/v1alpha1/TidemillDeployment" in plan_objects(of_day).kinds()


def test_what_pods_share_waits_for_its_namespace_alone(plan):
    """One that takes long keeps none of the others."""
    with_budgets = plan.with_sections(written=apply_change(plan.written, {"kubernetes.disruptions": 0}))
    made = [
        (kind.rpartition(":")[2], name) for kind, name, _ in declared_of(source_of(with_budgets), slow="demo-runtime")
    ]

    assert made[1] == ("Namespace", "demo-tidemill")
    assert made.index(("PodDisruptionBudget", "demo-decode")) < made.index(("ServiceAccount", "demo-runtime"))


def test_two_deployments_of_a_plan_share_no_name(plan):
    """One program may bring it to two clusters; Pulumi refuses two resources of one type and name."""
    found = [each[:2] for each in declared_of(source_of(plan), components=("east", "west"))]

    assert len(set(found)) == len(found)
    assert {name.partition("-")[0] for _, name in found} == {"east", "west"}


def test_gateway_and_units_are_one_resource_each(plan, declared):
    """With all their objects, by kind, and by name where another object of the kind is called as the owner."""
    made = {name: inputs for kind, name, inputs in declared if kind == OBJECTS}
    objects = plan_objects(plan)

    assert set(made) == {"demo-gateway", *objects.units}  # the engine hears of them in any order
    assert set(made["demo-prefill-0"]) == {"ConfigMap", "LeaderWorkerSet", "NetworkPolicy", "Service"}
    assert {"Deployment", "Service", "Service demo-registry"} <= set(made["demo-gateway"])
    for name, of_owner in {"demo-gateway": objects.gateway, **objects.units}.items():
        assert len(made[name]) == len(of_owner)
        assert all(each.manifest in made[name].values() for each in of_owner)


def test_no_resource_has_the_programs_stack_with_it(plan, monkeypatch):
    """It would be in the state, with this machine's paths; tracebacks are as before afterwards."""
    kept = []

    def trace():
        kept.append(before())
        return kept[-1]

    before = sdk._get_stack_trace
    monkeypatch.setattr(sdk, "_get_stack_trace", trace)
    declared_of(source_of(plan))

    assert len(kept) > len(plan.units)
    assert [each for each in kept[1:] if each.frames] == []  # the first is of Pulumi's own stack resource
    assert not hasattr(sys, "tracebacklimit")
