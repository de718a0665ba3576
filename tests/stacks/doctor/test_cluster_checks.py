"""What the user may not do, what the cluster does not serve, and what it says to objects: each fault is one finding."""

import pytest
import yaml

from stacks.doctor.checks import findings
from stacks.doctor.definition import SHIPPED
from stacks.doctor.facts import MissingRight, ReadFailure, Refusal
from stacks.kube.errors import ForeignError, OtherPlanError, RefusedError
from stacks.kube.manifest import Reference
from tests.stacks.doctor.clusters import demo_needs, found, good_cluster

ACCOUNT = Reference("v1", "ServiceAccount", "tidemill", "demo-runtime")
RIGHTS = 'x is forbidden: User "eve" cannot patch resource "configmaps" in API group "" in the namespace "tidemill"'


@pytest.fixture(scope="module")
def needs():
    """The demo's."""
    return demo_needs()


def refused(message, status=403, subject=str(ACCOUNT)):
    return Refusal(subject, RefusedError(subject, status, {"message": message}))


def test_what_may_not_be_looked_at_is_a_note(needs):
    """`up` may do without."""
    (finding,) = findings(
        needs, good_cluster(needs, read_failures=(ReadFailure("Nodes", "eve may not list nodes; bind a role"),))
    )

    assert (finding.check, finding.object, finding.blocks) == ("rights", "Nodes", False)
    assert (finding.reason, finding.fix) == ("could not be read: eve may not list nodes", "bind a role")


def test_a_lacking_right_is_said_by_kind(needs):
    """With the verbs, and with what binds them."""
    denied = (MissingRight("ConfigMap", "tidemill", ("create", "patch")), MissingRight("Namespace", "", ("create",)))

    of_maps, of_namespaces = findings(needs, good_cluster(needs, missing_rights=denied))

    assert (of_maps.check, of_maps.object, of_maps.blocks) == ("rights", "ConfigMaps", True)
    assert of_maps.reason == "the kubeconfig's user may not create or patch them in namespace tidemill"
    assert of_maps.fix == "bind it to a Role that allows get, create, patch and delete on them"
    assert of_namespaces.fix.startswith("have tidemill created for you and set kubernetes.create_namespace: false, or")


def test_a_lacking_right_is_not_said_by_each_object_again(needs):
    """The dry runs are refused for the same reason."""
    denied = (MissingRight("ConfigMap", "tidemill", ("patch",)),)

    assert found(needs, good_cluster(needs, missing_rights=denied, refusals=(refused(RIGHTS),))) == [
        ("rights", "ConfigMaps")
    ]
    assert found(needs, good_cluster(needs, refusals=(refused(RIGHTS),))) == [("object", str(ACCOUNT))]


def test_a_kind_that_nobody_serves_says_how_to_install_it(needs):
    """And in another version, that what serves it is old."""
    kind = ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")

    (absent,) = findings(needs, good_cluster(needs, unserved_kinds={kind: []}))
    (old,) = findings(needs, good_cluster(needs, unserved_kinds={kind: ["v1alpha1"]}))

    assert (absent.check, absent.object) == (old.check, old.object) == ("kind", "LeaderWorkerSet")
    assert absent.fix.startswith("install LeaderWorkerSet 0.9 or newer")
    assert old.reason == "the cluster serves leaderworkerset.x-k8s.io in v1alpha1, but not LeaderWorkerSet in v1"
    assert old.fix.startswith("upgrade what defines it: install LeaderWorkerSet 0.9 or newer")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OtherPlanError(ACCOUNT, "other"), "it belongs to the plan other"),
        (
            ForeignError(ACCOUNT, ["helm"]),
            "it exists already and is not Tidemill's (its fields are managed by: helm)",
        ),
    ],
)
def test_an_object_of_somebody_else_blocks(needs, error, reason):
    """Tidemill takes over nothing."""
    (finding,) = findings(needs, good_cluster(needs, refusals=(Refusal(str(ACCOUNT), error),)))

    assert (finding.check, finding.object, finding.reason) == ("owner", str(ACCOUNT), reason)


def test_a_silent_webhook_is_said_once(needs):
    """However many objects it was asked about."""
    message = 'Internal error occurred: failed calling webhook "m.lws.io": failed to call webhook: connection refused'
    facts = good_cluster(needs, refusals=tuple(refused(message, 500, f"LeaderWorkerSet t/{n}") for n in range(3)))

    (finding,) = findings(needs, facts)

    assert (finding.check, finding.object) == ("webhook", "m.lws.io")
    assert finding.fix == "check that its controller runs"


def test_what_else_the_server_has_against_an_object_is_quoted(needs):
    """With the fix of its kind."""
    (finding,) = findings(needs, good_cluster(needs, refusals=(refused("x is invalid: spec.a: Required", 422),)))

    assert (finding.check, finding.object) == ("object", str(ACCOUNT))
    assert finding.fix == "correct kubernetes.overlay, or the field that writes it"


def definition(*absent):
    """The definition of our own kind, without those fields: a path each."""
    found = yaml.safe_load(SHIPPED.read_text())
    for path in absent:
        *outer, last = path
        schema = found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for key in outer:
            schema = schema[key] if key in schema else schema["properties"][key]
        del schema["properties"][last]
    return found


def test_the_definition_of_this_version_is_no_finding(needs):
    """Nor is one that has more, as a newer version's."""
    newer = definition()
    newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["more"] = {}

    assert found(needs, good_cluster(needs, definition=definition())) == []
    assert found(needs, good_cluster(needs, definition=newer)) == []


def test_an_older_definition_is_found_by_the_fields_that_it_lacks(needs):
    """`up` goes on where only the controller's own words are lost; each field is named by its outermost."""
    older = definition(("spec", "demand"), ("spec", "units", "items", "spares"), ("status", "stragglers"))

    (finding,) = findings(needs, good_cluster(needs, definition=older))

    assert (finding.check, finding.blocks) == ("kind", False)
    assert finding.object == "CustomResourceDefinition deployments.tidemill.dev"
    assert finding.reason == (
        "it is older than this version: it lacks spec.demand, spec.units[].spares, status.stragglers, which are not"
        " stored"
    )
    assert finding.fix.endswith("tidemill controller --definition | kubectl apply --server-side -f -")


def test_a_field_that_the_definition_lacks_blocks_where_the_plan_has_it(needs):
    """The server refuses the object, and that is said once."""
    message = (
        "failed to create typed patch object (tidemill/demo-day; tidemill.dev/v1alpha1, Kind=TidemillDeployment): "
        ".spec.heal: field not declared in schema"
    )
    day = refused(message, 500, "TidemillDeployment tidemill/demo-day")

    (finding,) = findings(needs, good_cluster(needs, definition=definition(("spec", "heal")), refusals=(day,)))
    (unknown,) = findings(needs, good_cluster(needs, definition=definition(), refusals=(day,)))

    assert (finding.object, finding.blocks) == ("CustomResourceDefinition deployments.tidemill.dev", True)
    assert (unknown.check, unknown.object) == ("object", "TidemillDeployment tidemill/demo-day")
