"""The facts about a cluster that matter to a plan, at one moment. `reading.py` reads them; the checks judge them.

Objects are manifests as the API server returns them. A list is None if the user may not read it: `read_failures` says
why, and the checks do without it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stacks.doctor.needs import RequiredObject
from stacks.kube.errors import ProviderError
from stacks.kube.manifest import Manifest

__all__ = ["ClusterFacts", "MissingRight", "ReadFailure", "Refusal"]


@dataclass(frozen=True)
class MissingRight:
    """The `verbs` (such as `create`) that the kubeconfig's user may not use on objects of a kind."""

    kind: str
    namespace: str  # empty for kinds of the whole cluster
    verbs: tuple[str, ...]


@dataclass(frozen=True)
class Refusal:
    """An object that the server refuses in a dry run, or that we may not apply because its name is taken."""

    object: str  # `ServiceAccount tidemill/demo-runtime`; for a dry-run pod, its component
    error: ProviderError


@dataclass(frozen=True)
class ReadFailure:
    """Something in the cluster that the user may not read, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class ClusterFacts:
    """The state of a cluster at one moment, as far as a plan depends on it."""

    namespace: Manifest | None = None  # the plan's
    nodes: tuple[Manifest, ...] | None = ()
    pods: tuple[Manifest, ...] | None = ()  # of all namespaces, those that have not ended
    quotas: tuple[Manifest, ...] | None = ()  # of the plan's namespace
    storage_classes: tuple[Manifest, ...] | None = ()
    definition: Manifest | None = None  # the CRD of TidemillDeployment; None if it is not needed, or was not seen
    # Without objects that the user may not read; None for an object that does not exist.
    required_objects: Mapping[RequiredObject, Manifest | None] = field(default_factory=dict)
    # (apiVersion, kind) -> the versions in which the cluster serves its group
    unserved_kinds: Mapping[tuple[str, str], Sequence[str]] = field(default_factory=dict)
    missing_rights: tuple[MissingRight, ...] = ()
    refusals: tuple[Refusal, ...] = ()  # objects of the plan
    pod_refusals: tuple[Refusal, ...] = ()  # a dry run of one pod for each component
    read_failures: tuple[ReadFailure, ...] = ()
