"""What runs in each pod of a unit: command, variables, ports, and where it says that it lives and is ready.

This is all that a template knows of an engine. Another engine's adapter has said it in the launch document
(`planner/engines`); our runtime's follows from the launch document. What pods get of their nodes (`pods.py`) is the
same for all of them.
"""

from collections.abc import Sequence

from planner.engines.container import Container, Probe
from planner.facts.exchange import queue_variables
from planner.plan.launch import LaunchDocument

__all__ = ["engine_container", "runtime_container"]


def engine_container(document: LaunchDocument) -> Container:
    """Return what runs another engine, or its router, as its adapter says in the launch document."""
    return Container.from_document(document["container"])


def runtime_container(document: LaunchDocument, launch_file: str, registry: str, told: Sequence[str]) -> Container:
    """Return what runs our runtime, as told by the unit's launch document.

    `registry` is the Service of the gateway; `told` are the arguments that the spec's `kubernetes` makes.
    """
    return Container(
        command=("python", "-m", "runtime", "node"),
        args=(
            f"--launch=/etc/tidemill/{launch_file}",
            "--node=$(NODE_NAME)",
            "--address=$(POD_IP)",
            "--leader=$(LWS_LEADER_ADDRESS)",
            f"--gateway={registry}",
            *told,
        ),
        ports={"metrics": document["ports"]["metrics"]},
        liveness=Probe("/health", "metrics", None),
        readiness=Probe("/readyz", "metrics", None),
        metrics=Probe("/metrics", "metrics"),
        env=_queues(document),
    )


def _queues(document: LaunchDocument) -> dict[str, str]:
    """Room for a decode step's tokens in the NIC's queues. The other phases use DeepEP's kernels for prompts."""
    if document["device"] != "cuda" or document["phase"] != "decode" or len(document["ranks"]) == 1:
        return {}
    return queue_variables(document["limits"]["max_requests"])
