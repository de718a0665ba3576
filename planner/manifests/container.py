"""What runs in each pod of a unit: command, variables, ports, and where it says that it started, lives and is ready.

This is all that a template knows of an engine. Other engines fill the same value; what pods get of their nodes
(`pods.py`) is the same for all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.plan.launch import LaunchDocument

__all__ = ["Container", "Probe", "runtime_container"]


@dataclass(frozen=True)
class Probe:
    """A path that answers with 200 or not, at a port by its name."""

    path: str
    port: str


@dataclass(frozen=True)
class Container:
    """The main container of a unit's pods. `$(NAME)` in `args` is a variable's value."""

    command: tuple[str, ...]
    args: tuple[str, ...]
    ports: Mapping[str, int]
    started: Probe  # 200 once weights are loaded
    alive: Probe  # no 200 while nothing moves any more
    ready: Probe  # 200 while requests can be answered
    fields: Mapping[str, str] = field(default_factory=dict)  # variables from the pod's own fields: name -> path
    env: Mapping[str, str] = field(default_factory=dict)


def runtime_container(document: LaunchDocument, launch_file: str, registry: str, drain_s: float) -> Container:
    """Return what runs our runtime, as told by the unit's launch document. `registry`: the Service of the gateway."""
    return Container(
        command=("python", "-m", "runtime", "node"),
        args=(
            f"--launch=/etc/tidemill/{launch_file}",
            "--node=$(NODE_NAME)",
            "--address=$(POD_IP)",
            "--leader=$(LWS_LEADER_ADDRESS)",
            f"--gateway={registry}",
            f"--drain={drain_s:g}",
        ),
        ports={"metrics": document["ports"]["metrics"]},
        started=Probe("/health", "metrics"),
        alive=Probe("/health", "metrics"),
        ready=Probe("/readyz", "metrics"),
        fields={"NODE_NAME": "spec.nodeName", "POD_IP": "status.podIP"},
    )
