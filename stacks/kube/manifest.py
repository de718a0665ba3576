"""The identity of a manifest's object: apiVersion, kind, namespace and name, and a readable form of these four.

A manifest is plain JSON, decoded from YAML or from Pulumi. The server checks the rest of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

__all__ = [
    "CORE",
    "OBJECTS",
    "Manifest",
    "Reference",
    "find_condition",
    "is_ending",
    "list_conditions",
    "mounted_configs",
    "object_name",
    "object_uid",
    "parse_instant",
    "type_token",
]

Manifest = dict[str, Any]

CORE = "core/v1"  # how a type token writes `v1`, which has no group
OBJECTS = "tidemill:index:Objects"  # the Pulumi type of several objects that are one resource


@dataclass(frozen=True)
class Reference:
    """The identity of one object, whether it exists or not."""

    api_version: str  # `apps/v1`; `v1`
    kind: str
    namespace: str  # empty if the manifest names none
    name: str

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> "Reference":
        """Return the identity of the object that `manifest` describes. The manifest must have these four fields."""
        metadata = manifest["metadata"]
        return cls(manifest["apiVersion"], manifest["kind"], metadata.get("namespace") or "", metadata["name"])

    @property
    def id(self) -> str:
        """The object's Pulumi id: `apps/v1/Deployment/demo/gateway`."""
        return "/".join((self.api_version, self.kind, self.namespace, self.name))

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


def type_token(api_version: str, kind: str) -> str:
    """Return the Pulumi type of a kind, such as `tidemill:apps/v1:Deployment` or `tidemill:core/v1:ConfigMap`."""
    return f"tidemill:{CORE if api_version == 'v1' else api_version}:{kind}"


def object_name(live: Manifest) -> str:
    """Return an object's name."""
    return str(live["metadata"]["name"])


def object_uid(live: Manifest) -> str:
    """Return the uid that the server gave a live object."""
    return str(live["metadata"]["uid"])


def is_ending(live: Manifest) -> bool:
    """Return whether a live object is being deleted."""
    return "deletionTimestamp" in live["metadata"]


def list_conditions(live: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the conditions in a live object's status."""
    return (live.get("status") or {}).get("conditions") or []


def find_condition(live: Mapping[str, Any], kind: str) -> dict[str, str]:
    """Return the condition of type `kind` in a live object's status; empty if there is none."""
    return next((each for each in list_conditions(live) if each["type"] == kind), {})


def mounted_configs(value: Any) -> Iterator[str]:
    """Yield the names of all ConfigMaps in volumes anywhere below `value`, a part of an object."""
    if isinstance(value, dict):
        config = value.get("configMap")
        if isinstance(config, dict) and isinstance(config.get("name"), str):
            yield config["name"]
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from mounted_configs(inner)


def parse_instant(written: str) -> float | None:
    """Return the time that a field holds, in seconds since 1970; None if Python cannot read it.

    The server's schema admits more than Python reads: days such as the 31st of November.
    """
    try:
        return datetime.fromisoformat(written.upper()).astimezone(UTC).timestamp()
    except (ValueError, OverflowError):
        return None
