"""Kueue's quota of the nodes that are free."""

import pytest

from stacks.controller.quota import groups_with_quota
from stacks.kube.errors import ProviderError

GPU = "nvidia.com/gpu"


def queue(**quotas):
    """A ClusterQueue with a flavor of its own nodes, and one of nodes that are lent."""
    own = [{"name": name, "nominalQuota": "64"} for name in (GPU, "cpu")]
    lending_events = [{"name": GPU, "nominalQuota": quotas.get("gpu", "0")}, {"name": "cpu", "nominalQuota": "1k"}]
    flavors = [{"name": "own", "resources": own}, {"name": "lent", "resources": lending_events}]
    groups = [{"coveredResources": [GPU, "cpu"], "flavors": flavors}]
    return {"metadata": {"name": "batch"}, "spec": {"resourceGroups": groups}}


def test_the_quota_of_one_flavor_changes_and_no_other():
    """The groups come back whole, as the server keeps them; the object that was read stays as it was."""
    read = queue()

    (group,) = groups_with_quota(read, "lent", {GPU: 16})

    assert [each["nominalQuota"] for each in group["flavors"][0]["resources"]] == ["64", "64"]
    assert [each["nominalQuota"] for each in group["flavors"][1]["resources"]] == ["16", "1k"]
    assert group["coveredResources"] == [GPU, "cpu"]
    assert read == queue()


@pytest.mark.parametrize("quotas", [{GPU: 16}, {GPU: 16, "cpu": 1000}])
def test_a_quota_that_is_right_is_left(quotas):
    """However it is written."""
    assert groups_with_quota(queue(gpu=16), "lent", quotas) is None


@pytest.mark.parametrize(("flavor", "resource"), [("lend", GPU), ("lent", "amd.com/gpu")])
def test_a_flavor_or_resource_that_is_not_there_is_named(flavor, resource):
    """With the queue that should have it."""
    why = f"ClusterQueue batch has no quota of {resource} in a flavor {flavor}"

    with pytest.raises(ProviderError, match=why):
        groups_with_quota(queue(), flavor, {resource: 8})
