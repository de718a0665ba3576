"""What the user may not do, what the cluster does not serve, and what it says to objects: each fault is one finding."""

import pytest

from stacks.doctor.checks import findings
from stacks.doctor.facts import Denied, Refused, Unseen
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
    return Refused(subject, RefusedError(subject, status, {"message": message}))


def test_what_may_not_be_looked_at_is_a_note(needs):
    """`up` may do without."""
    (finding,) = findings(needs, good_cluster(needs, unseen=(Unseen("Nodes", "eve may not list nodes; bind a role"),)))

    assert (finding.check, finding.object, finding.blocks) == ("rights", "Nodes", False)
    assert (finding.reason, finding.fix) == ("could not be read: eve may not list nodes", "bind a role")


def test_a_lacking_right_is_said_by_kind(needs):
    """With the verbs, and with what binds them."""
    denied = (Denied("ConfigMap", "tidemill", ("create", "patch")), Denied("Namespace", "", ("create",)))

    of_maps, of_namespaces = findings(needs, good_cluster(needs, denied=denied))

    assert (of_maps.check, of_maps.object, of_maps.blocks) == ("rights", "ConfigMaps", True)
    assert of_maps.reason == "the kubeconfig's user may not create or patch them in namespace tidemill"
    assert of_maps.fix == "bind it to a Role that allows get, create, patch and delete on them"
    assert of_namespaces.fix.startswith("have tidemill created for you and set kubernetes.create_namespace: false, or")


def test_a_lacking_right_is_not_said_by_each_object_again(needs):
    """The dry runs are refused for the same reason."""
    denied = (Denied("ConfigMap", "tidemill", ("patch",)),)

    assert found(needs, good_cluster(needs, denied=denied, refused=(refused(RIGHTS),))) == [("rights", "ConfigMaps")]
    assert found(needs, good_cluster(needs, refused=(refused(RIGHTS),))) == [("object", str(ACCOUNT))]


def test_a_kind_that_nobody_serves_says_how_to_install_it(needs):
    """And in another version, that what serves it is old."""
    kind = ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")

    (absent,) = findings(needs, good_cluster(needs, unserved={kind: []}))
    (old,) = findings(needs, good_cluster(needs, unserved={kind: ["v1alpha1"]}))

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
    (finding,) = findings(needs, good_cluster(needs, refused=(Refused(str(ACCOUNT), error),)))

    assert (finding.check, finding.object, finding.reason) == ("owner", str(ACCOUNT), reason)


def test_a_silent_webhook_is_said_once(needs):
    """However many objects it was asked about."""
    message = 'Internal error occurred: failed calling webhook "m.lws.io": failed to call webhook: connection refused'
    facts = good_cluster(needs, refused=tuple(refused(message, 500, f"LeaderWorkerSet t/{n}") for n in range(3)))

    (finding,) = findings(needs, facts)

    assert (finding.check, finding.object) == ("webhook", "m.lws.io")
    assert finding.fix == "check that its controller runs"


def test_what_else_the_server_has_against_an_object_is_quoted(needs):
    """With the fix of its kind."""
    (finding,) = findings(needs, good_cluster(needs, refused=(refused("x is invalid: spec.a: Required", 422),)))

    assert (finding.check, finding.object) == ("object", str(ACCOUNT))
    assert finding.fix == "correct the manifest"
