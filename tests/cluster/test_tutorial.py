"""docs/tutorial.md, from measured traffic to the first rebalancing: every command, run as written.

Gitea and the API server are real. Forty nodes are there without kubelets, and `kubectl` is a stand-in that names them.
"""

import json

import pytest
from kubernetes import client

from tests.cluster.pages import Reader, read_blocks, running_prometheus

PAGE = "tutorial.md"
NODES = [f"gpu-{number:02}" for number in range(40)]
KUBECTL = f"#!/bin/sh\nprintf 'node/%s\\n' {' '.join(NODES)}\n"


@pytest.fixture
def prod(api_server):
    """The kubeconfig of a cluster with forty nodes of eight H200s."""
    core = client.CoreV1Api(api_server.api)
    for name in NODES:
        resources = {"cpu": "192", "memory": "2Ti", "ephemeral-storage": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}
        core.create_node({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
        status = {"capacity": resources, "allocatable": resources, "conditions": [{"type": "Ready", "status": "True"}]}
        core.patch_node_status(name, {"status": status})
        core.patch_node(name, {"spec": {"taints": None}})  # not-ready, which a new node has
    yield api_server.kubeconfig
    for name in NODES:
        core.delete_node(name)


@pytest.mark.whole
def test_a_newcomer_with_forty_nodes_gets_to_the_first_rebalancing(gitea, prod, tmp_path):
    """The page alone suffices: traffic becomes a spec, a plan, a page, a folder in Git, and a pull request."""
    with running_prometheus() as prometheus:
        stood_for = {"http://prometheus:9090": prometheus, "--context prod": "--context test"}
        reader = Reader(gitea, tmp_path, "chat", stood_for)
        (tmp_path / "programs" / "kubectl").write_text(KUBECTL)
        (tmp_path / "programs" / "kubectl").chmod(0o755)
        reader.environment["KUBECONFIG"] = str(prod)
        folder = tmp_path / "chat"

        def follow(section, place=folder):
            return [reader.run(text, place) for _, text in read_blocks(PAGE, section)]

        follow("Measure the traffic", tmp_path)
        follow("Write the spec")
        (planned,) = follow("Read the plan")
        (looked,) = follow("Ask the cluster")
        follow("Put it into Git")
        reader.wait_for_push()
        (told,) = follow("The first rebalancing")
        reader.merge(1)
        follow("The next change")

    plan = json.loads((folder / "plan.json").read_text())
    assert len(json.loads((folder / "profile").read_text())) == 24
    assert {node for unit in plan["units"] for node in unit["nodes"]} <= set(NODES)
    assert "load      it fits in every hour" in planned
    assert (folder / "plan.html").stat().st_size > 100_000
    assert looked == "deepseek-r1: nothing in the cluster of context test stands in its way\n"
    assert "opened " in told
    assert "loads.json" in reader.run("git ls-tree --name-only HEAD", folder)
    assert reader.run("git diff HEAD -- spec.yaml deploy loads.json", folder) == ""
