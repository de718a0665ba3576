"""Who holds the Lease, whatever others have written into it."""

import pytest

from stacks.controller.act import FIELD_MANAGER
from stacks.controller.lease import LASTS_S, Lease
from stacks.kube.errors import RefusedError
from tests.stacks.controller.cluster import NAMESPACE, MemoryCluster
from tests.stacks.controller.days import MIDNIGHT
from tests.stacks.controller.test_observe import SPEC

NAME = "a-controller"


@pytest.fixture
def cluster():
    """One that nobody follows yet."""
    return MemoryCluster(SPEC)


def lease(holder):
    return Lease(NAMESPACE, NAME, holder, FIELD_MANAGER)


def test_one_at_a_time_holds_it(cluster):
    """It is renewed by its holder, and taken by another one that has seen it unchanged for as long as it lasts."""
    one, two = lease("one"), lease("two")

    assert one.acquire(cluster, MIDNIGHT)
    assert not two.acquire(cluster, MIDNIGHT + 1)
    assert one.acquire(cluster, MIDNIGHT + 5)
    assert not two.acquire(cluster, MIDNIGHT + 6)
    assert not two.acquire(cluster, MIDNIGHT + 6 + LASTS_S - 1)
    assert two.acquire(cluster, MIDNIGHT + 6 + LASTS_S)
    assert not one.acquire(cluster, MIDNIGHT + 6 + LASTS_S + 1)


def test_a_namespace_that_is_not_there_is_no_other_holder(cluster, monkeypatch):
    """The API server answers 404 to whoever creates something in it, and nobody follows the deployment."""

    def create(*_, **__):
        raise RefusedError("Lease", 404, {"message": 'namespaces "demo" not found'})

    monkeypatch.setattr(cluster, "create", create)

    with pytest.raises(RefusedError, match="namespace demo does not exist"):
        lease("one").acquire(cluster, MIDNIGHT)


def test_it_is_taken_at_once_when_it_was_let_go(cluster):
    """Nobody waits for it to run out."""
    one, two = lease("one"), lease("two")
    one.acquire(cluster, MIDNIGHT)
    assert not two.acquire(cluster, MIDNIGHT)

    one.release(cluster, MIDNIGHT + 1)

    assert two.acquire(cluster, MIDNIGHT + 1)


@pytest.mark.parametrize(
    "written",
    [
        {"renewTime": "2027-11-26T12:00:00.000000Z", "leaseDurationSeconds": 15},
        {"renewTime": "0000-01-01T00:00:00.000000Z"},
        {"renewTime": "no time at all", "leaseDurationSeconds": -5},
        {"leaseDurationSeconds": 2**31 - 1, "leaseTransitions": 2**31 - 1},
    ],
)
def test_what_others_wrote_makes_it_last_no_longer(cluster, written):
    """Their clock may be a year ahead, and any number is a duration: ours alone counts."""
    cluster.put("Lease", NAME, spec={"holderIdentity": "gone"} | written)
    one = lease("one")

    assert not one.acquire(cluster, MIDNIGHT)
    assert one.acquire(cluster, MIDNIGHT + LASTS_S)
    found = cluster.objects["Lease", NAME]["spec"]
    assert (found["holderIdentity"], found["leaseDurationSeconds"]) == ("one", LASTS_S)
    assert found["leaseTransitions"] <= 2**31 - 1


def test_a_holder_whose_clock_is_behind_keeps_it(cluster):
    """It renews it, which is all that others look at: otherwise the two would take it from each other at each look."""
    behind, other = lease("behind"), lease("other")
    for second in range(0, 60, 5):
        assert behind.acquire(cluster, MIDNIGHT - 86_400 + second)
        assert not other.acquire(cluster, MIDNIGHT + second)


def test_a_clock_that_is_set_back_waits_no_longer(cluster):
    """It begins to count anew."""
    cluster.put("Lease", NAME, spec={"holderIdentity": "gone"})
    one = lease("one")
    assert not one.acquire(cluster, MIDNIGHT)

    assert not one.acquire(cluster, MIDNIGHT - 86_400)
    assert one.acquire(cluster, MIDNIGHT - 86_400 + LASTS_S)
