"""What the accounts of a plan may do, as the API server tells it."""

import pytest
from kubernetes import client

from tests.cluster.controller.day import ACCOUNT, NAME, NAMESPACE, NODES, SPARE, UNITS, api_of_account


def rights_of(api):
    """(verb, resource, name) as `kubectl auth can-i --list` has them, less what every account may do."""
    review = client.V1SelfSubjectRulesReview(spec=client.V1SelfSubjectRulesReviewSpec(namespace=NAMESPACE))
    found = client.AuthorizationV1Api(api).create_self_subject_rules_review(review).status.resource_rules
    return {
        (verb, resource, name)
        for each in found
        for verb in each.verbs
        for resource in each.resources
        for name in each.resource_names or [""]
        if not resource.startswith("selfsubject")
    }


def test_the_account_may_do_what_its_page_says_and_no_more(account):
    """Each right, by verb, resource and name."""
    assert rights_of(account) == {
        ("get", "deployments", NAME),
        ("patch", "deployments/status", NAME),
        ("list", "leaderworkersets", ""),
        *(("patch", "leaderworkersets/scale", unit) for unit in UNITS),
        ("list", "statefulsets", ""),
        ("delete", "leaderworkersets", ""),
        *(
            (verb, each, "")
            for verb in ("list", "delete")
            for each in ("services", "networkpolicies", "certificates", "computedomains")
        ),
        *((verb, each, "") for verb in ("list", "delete") for each in ("configmaps", "controllerrevisions")),
        ("list", "deployments", ""),
        ("get", "leases", ACCOUNT),
        ("patch", "leases", ACCOUNT),
        ("create", "leases", ""),
        ("create", "events", ""),
        ("list", "pods", ""),
        *(("delete", "pods", f"{unit}-0") for unit in UNITS),
        ("list", "nodes", ""),
        *((verb, "nodes", node) for verb in ("get", "patch") for node in (*NODES, SPARE)),
    }


@pytest.mark.parametrize("name", ["demo-day-runtime", "demo-day-gateway"])
def test_ranks_and_gateway_have_no_rights(api_server, objects, name):
    """Their pods have no token either."""
    assert rights_of(api_of_account(api_server, name)) == set()
