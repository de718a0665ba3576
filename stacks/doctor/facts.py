"""The state of a cluster, as far as a plan cares, at one moment. `reading.py` looks; the checks judge.

Objects are manifests as the API server gives them. A list is None where the user may not read it, and the checks go
without it: `unseen` says what and why.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stacks.doctor.needs import Named
from stacks.kube.errors import ProviderError
from stacks.kube.manifest import Manifest

__all__ = ["ClusterFacts", "Denied", "Refused", "Unseen", "is_ending"]


@dataclass(frozen=True)
class Denied:
    """Verbs that the kubeconfig's user lacks for a kind."""

    kind: str
    namespace: str  # empty for kinds of the whole cluster
    verbs: tuple[str, ...]


@dataclass(frozen=True)
class Refused:
    """An object that the server refuses in a dry run, or that our rules refuse because someone else's is there."""

    object: str  # `ServiceAccount tidemill/demo-runtime`; of a pod that was tried, its component
    error: ProviderError


@dataclass(frozen=True)
class Unseen:
    """Something that could not be looked at."""

    what: str
    why: str


@dataclass(frozen=True)
class ClusterFacts:
    """One look at a cluster."""

    namespace: Manifest | None = None  # the plan's
    nodes: tuple[Manifest, ...] | None = ()
    pods: tuple[Manifest, ...] | None = ()  # of all namespaces, those that have not ended
    quotas: tuple[Manifest, ...] | None = ()  # of the plan's namespace
    storage_classes: tuple[Manifest, ...] | None = ()
    definition: Manifest | None = None  # of our own kind; None where the plan has no such object, or none was seen
    named: Mapping[Named, Manifest | None] = field(default_factory=dict)  # those that could be looked for
    unserved: Mapping[tuple[str, str], Sequence[str]] = field(default_factory=dict)  # kind -> versions of its group
    denied: tuple[Denied, ...] = ()
    refused: tuple[Refused, ...] = ()  # objects of the plan
    refused_pods: tuple[Refused, ...] = ()  # one tried for each component
    unseen: tuple[Unseen, ...] = ()


def is_ending(live: Manifest) -> bool:
    """Return whether an object is being deleted."""
    return "deletionTimestamp" in live["metadata"]
