"""What runs in each pod of a unit: command, variables, ports, and where it says that it started, lives and is ready.

This is all that a template knows of an engine. Other engines fill the same value (`planner/engines`); what pods get of
their nodes (`pods.py`) is the same for all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.facts.exchange import queue_variables
from planner.plan.launch import LaunchDocument

__all__ = ["Container", "Probe", "engine_container", "runtime_container"]

OWN_FIELDS = {"NODE_NAME": "spec.nodeName", "POD_IP": "status.podIP"}


@dataclass(frozen=True)
class Probe:
    """A path that answers with 200 or not, at a port by its name."""

    path: str
    port: str
    timeout: int | None = None  # seconds; a template's own where the engine says nothing


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
    start_s: int | None = None  # that it gets to start, where the engine says so
    image: str | None = None  # the spec's unless given
    metrics: str = "metrics"  # the port by its name
    annotations: Mapping[str, str] = field(default_factory=dict)  # of pods


def engine_container(document: LaunchDocument) -> Container:
    """Return what runs another engine, or its router, as its adapter says in the launch document."""
    told = document["container"]
    alive, ready = (Probe(each["path"], each["port"], each["timeout_seconds"]) for each in _probes(told))
    return Container(
        command=tuple(told["command"]),
        args=tuple(told["args"]),
        ports=_sorted(told["ports"]),
        started=alive,
        alive=alive,
        ready=ready,
        fields=OWN_FIELDS,
        env=_sorted(told["env"]),
        start_s=told["start_s"],
        image=told["image"],
        metrics=told["metrics"]["port"],
        annotations=_sorted(told.get("annotations", {})),
    )


def _sorted(told: Mapping[str, Any]) -> dict[str, Any]:
    """Sort by key, as in a plan that was read from its file."""
    return dict(sorted(told.items()))


def _probes(told: LaunchDocument) -> tuple[LaunchDocument, LaunchDocument]:
    return told["liveness"], told["readiness"]


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
        started=Probe("/health", "metrics"),
        alive=Probe("/health", "metrics"),
        ready=Probe("/readyz", "metrics"),
        fields=OWN_FIELDS,
        env=_queues(document),
    )


def _queues(document: LaunchDocument) -> dict[str, str]:
    """Room for a decode step's tokens in the NIC's queues. The other phases use DeepEP's kernels for prompts."""
    if document["device"] != "cuda" or document["phase"] != "decode" or len(document["ranks"]) == 1:
        return {}
    return queue_variables(document["limits"]["max_requests"])
