"""The published system's spec on nodes that are named, as a team with such a cluster would write it."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from kubernetes import client

from planner.facts.engines import OURS
from planner.facts.names import UNIT_LABEL
from planner.facts.terms import EngineName
from tests.cluster.fake_nodes import RDMA, h800_nodes

__all__ = ["NAME", "NAMESPACE", "bound_nodes", "write_published_spec"]

SPEC = Path(__file__).parents[2] / "stacks" / "specs" / "deepseek-h800.yaml"
COUNTED = "  nodes: 278\n  gpus_per_node: 8\n  rack_size: 4\n"
KUBERNETES = "\nkubernetes:\n"
DEVICES = "{resource: rdma/ib, count: 1}"
CONTROLLER = re.compile(r"^  controller:.*\n(?:    .*\n)+", re.MULTILINE)
NAME, NAMESPACE = "deepseek-r1", "tidemill"


def write_published_spec(folder: Path, engine: EngineName = OURS) -> Path:
    """The spec that ships, with the inventory of the fake nodes instead of their number, and their RDMA devices.

    It has no controller: a pod that KWOK plays carries out no day, and `pulumi up` would wait for that.
    """
    text, count = CONTROLLER.subn("", SPEC.read_text())
    assert count == 1
    assert COUNTED in text
    assert KUBERNETES in text
    assert DEVICES in text
    listed = json.dumps([each.inventory for each in h800_nodes()])
    path = folder / "spec.yaml"
    text = text.replace(COUNTED, f"  nodes: {listed}\n  gpus_per_node: 8\n")
    text = text.replace(DEVICES, f"{{resource: {RDMA}, count: 8}}")
    text = text.replace(KUBERNETES, f"\nengine: {engine}\n{KUBERNETES}")
    path.write_text(text)
    return path


def bound_nodes(pods: Iterable[client.V1Pod]) -> dict[str, set[str]]:
    """Unit -> the nodes that its pods are bound to."""
    nodes: dict[str, set[str]] = {}
    for pod in pods:
        nodes.setdefault(pod.metadata.labels[UNIT_LABEL], set()).add(pod.spec.node_name)
    return nodes
