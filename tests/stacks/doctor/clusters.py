"""A plan's needs, and a cluster that meets them all: tests take away one thing at a time."""

import copy
from dataclasses import replace

from planner.compiler import compile_plan
from planner.rules.check import check_spec
from stacks.doctor.checks import findings
from stacks.doctor.facts import ClusterFacts
from stacks.doctor.needs import Needs, read_needs
from tests.stacks.deployments import DEMO_SPEC

__all__ = ["changed_pods", "demo_needs", "found", "good_cluster", "node", "pod"]


def demo_needs() -> Needs:
    """The demo's: prefill on node-0, decode on node-1 and node-2, a gateway, and nothing asked of resources."""
    return read_needs(compile_plan(check_spec(DEMO_SPEC)))


def changed_pods(needs: Needs, change, component: str | None = None) -> Needs:
    """The needs with `change` made to the pod spec of every pod set, or of those of one component."""
    pod_sets = []
    for each in needs.pod_sets:
        template = copy.deepcopy(each.template)
        if component in (None, each.component):
            change(template["spec"])
        pod_sets.append(replace(each, template=template))
    return replace(needs, pod_sets=tuple(pod_sets))


def node(name, **more):
    """A node that is ready and has 8 GPUs; `more` is put into its spec, or its metadata or status by name."""
    resources = {"cpu": "192", "memory": "2Ti", "nvidia.com/gpu": "8"}
    status = {
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": resources,
        "capacity": dict(resources),
    }
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}} | more.pop("metadata", {})
    return {"metadata": metadata, "status": status | more.pop("status", {}), "spec": more}


def pod(name, on, requests, namespace="research", labels=None, **spec):
    """A pod of somebody's that holds `requests` of a node."""
    container = {"name": "c", "resources": {"requests": requests}}
    metadata = {"name": name, "namespace": namespace, "labels": labels or {}}
    return {"metadata": metadata, "spec": {"nodeName": on, "containers": [container], **spec}}


def good_cluster(needs: Needs, **others) -> ClusterFacts:
    """A cluster with the planned nodes, a fourth one, and whatever the pods name."""
    names = sorted({name for each in needs.pod_sets for name in (*each.nodes, *each.spares)} | {"node-3"})
    namespace = {"metadata": {"name": needs.namespace}}
    facts = ClusterFacts(
        namespace=namespace,
        nodes=tuple(map(node, names)),
        required_objects={each: {"metadata": {}} for each in needs.required_objects},
    )
    return replace(facts, **others)


def found(needs: Needs, facts: ClusterFacts) -> list[tuple[str, str]]:
    """(check, object) of each finding."""
    return [(each.check, each.object) for each in findings(needs, facts)]
