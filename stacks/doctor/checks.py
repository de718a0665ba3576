"""Runs every check, in the order in which a user would fix the problems. Pure: needs and facts in, findings out.

    what the user may do    -> what the cluster serves -> the namespace and what must be in it -> the nodes

A fault is reported once, by the check that is nearest to its cause.
"""

import itertools
from collections.abc import Callable, Iterator

from stacks.doctor import cluster_checks, namespace_checks, node_checks
from stacks.doctor.facts import ClusterFacts
from stacks.doctor.findings import Finding
from stacks.doctor.needs import Needs

__all__ = ["findings"]

CheckFunction = Callable[[Needs, ClusterFacts], Iterator[Finding]]

CHECKS: tuple[CheckFunction, ...] = (
    cluster_checks.read_failures,
    cluster_checks.rights,
    cluster_checks.kinds,
    cluster_checks.definition,
    cluster_checks.objects,
    namespace_checks.namespace,
    namespace_checks.required_objects,
    namespace_checks.claims,
    namespace_checks.quotas,
    namespace_checks.pods,
    node_checks.nodes,
    node_checks.gateway,
)


def findings(needs: Needs, facts: ClusterFacts) -> tuple[Finding, ...]:
    """Return every obstacle between the plan and the cluster, each once."""
    found = itertools.chain.from_iterable(check(needs, facts) for check in CHECKS)
    return tuple(dict.fromkeys(found))
