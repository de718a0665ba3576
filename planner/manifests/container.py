"""The container of each pod of a unit: command, variables, ports and probes.

Templates know nothing else about an engine. For another engine its adapter wrote the container into the launch document
(`planner/engines`); our runtime's is made here from that document. The rest of a pod (`pods.py`) is the same for all.
"""

from collections.abc import Sequence

from planner.engines.container import Container, Probe
from planner.facts.exchange import queue_variables
from planner.plan.launch import LaunchDocument

__all__ = ["engine_container", "runtime_container"]


def engine_container(document: LaunchDocument) -> Container:
    """Return the container of another engine or its router from the launch document."""
    return Container.from_document(document["container"])


def runtime_container(document: LaunchDocument, launch_file: str, registry: str, told: Sequence[str]) -> Container:
    """Return the container of our runtime for the unit's launch document.

    `registry` is the gateway's Service; `told` are arguments from the spec's `kubernetes`.
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
    """Return the variable for queues that hold a decode step's tokens. Other phases use DeepEP's normal kernels."""
    if document["device"] != "cuda" or document["phase"] != "decode" or len(document["ranks"]) == 1:
        return {}
    return queue_variables(document["limits"]["max_requests"])
