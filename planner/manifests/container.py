"""The container of each pod of a unit: command, variables, ports and probes.

Templates know nothing else about an engine. Another engine's adapter has written the container into the launch document
(`planner/engines`). The bundled runtime's container is made here from the launch document. The rest of a pod
(`pods.py`) is the same for all engines.
"""

from collections.abc import Sequence

from planner.engines.container import Container, Probe
from planner.facts import names
from planner.facts.exchange import queue_variables
from planner.layout.unit import Unit
from planner.plan.launch import LaunchDocument
from planner.plan.plan import Plan


def engine_container(document: LaunchDocument) -> Container:
    """Return the container that another engine's adapter wrote into the launch document of a unit or of the router."""
    return Container.from_document(document["container"])


def runtime_container(document: LaunchDocument, launch_file: str, registry: str, more: Sequence[str]) -> Container:
    """Return the container in which the bundled runtime serves the unit of `document`.

    `registry` is the name of the Service by which ranks find the gateway; `more` are further arguments, which
    follow from the spec's `kubernetes`.
    """
    return Container(
        command=("python", "-m", "runtime", "node"),
        args=(
            f"--launch=/etc/tidemill/{launch_file}",
            "--node=$(NODE_NAME)",
            "--address=$(POD_IP)",
            "--leader=$(LWS_LEADER_ADDRESS)",
            f"--gateway={registry}",
            *more,
        ),
        ports={"metrics": document["ports"]["metrics"]},
        liveness=Probe("/health", "metrics", None),
        readiness=Probe("/readyz", "metrics", None),
        metrics=Probe("/metrics", "metrics"),
        env=_nic_queue_variables(document),
    )


def epoch_arguments(plan: Plan, unit: Unit) -> tuple[str, ...]:
    """Return the argument by which a unit finds its next epoch; none if it keeps its map until it restarts."""
    return (f"--next-epoch=/etc/tidemill/{names.NEXT_EPOCH_FILE}",) if plan.gets_epochs(unit) else ()


def _nic_queue_variables(document: LaunchDocument) -> dict[str, str]:
    """Return the variable that makes NIC queues large enough for a decode step.

    Return nothing where no step uses low-latency kernels between ranks, or where the default is enough.
    """
    if document["device"] != "cuda" or document["phase"] != "decode" or len(document["ranks"]) == 1:
        return {}
    return queue_variables(document["limits"]["max_requests"])
