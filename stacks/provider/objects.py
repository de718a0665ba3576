"""Resources made of objects of the cluster: a single object, or several as one resource.

    tidemill:apps/v1:Deployment   inputs are the manifest
    tidemill:index:Objects        inputs are manifests by key: `Service`, `LeaderWorkerSet`

Pulumi writes its whole state before and after each step of each resource, so a unit of four objects costs less as one
resource. Its previews name the object and the path: `Service.spec.ports[0].port`. If one of several objects has to be
replaced, that happens within an update, and its differences are marked so. The whole resource is replaced only if its
last object, which the others serve, becomes another object.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from google.protobuf.struct_pb2 import Struct

from stacks.kube import lifecycle
from stacks.kube.api import Api
from stacks.kube.diff import Difference, Path, differences, path_text
from stacks.kube.manifest import OBJECTS, Manifest, Reference, type_token
from stacks.kube.object_set import Manifests, main_object
from stacks.provider.wire import encode_struct, has_unknown

__all__ = ["Changes", "build_inputs", "changes", "find_naming_mistakes", "outputs", "read_manifests", "resource_id"]

# Changing one of these makes it a different object.
IDENTITY: set[Path] = {("kind",), ("metadata", "name"), ("metadata", "namespace")}


def read_manifests(values: Mapping[str, Any], token: str) -> dict[str, Manifest]:
    """Return key -> manifest from a resource's inputs. The key of a single object's manifest is empty."""
    return dict(values) if token == OBJECTS else {"": dict(values)}


def build_inputs(manifests: Manifests, token: str) -> dict[str, Any]:
    """Return the inputs of a resource of type `token` that is made of these objects."""
    return dict(manifests) if token == OBJECTS else manifests[""]


def resource_id(manifests: Manifests) -> str:
    """Return a resource's Pulumi id, which is the id of its main object."""
    return Reference.from_manifest(main_object(manifests)[1]).id


def outputs(manifests: Manifests, token: str) -> Struct:
    """Return a resource's outputs: only its main object's identity, since Pulumi often rewrites its whole state."""
    key, manifest = main_object(manifests)
    metadata = {name: manifest["metadata"][name] for name in ("name", "namespace") if name in manifest["metadata"]}
    identity = {"apiVersion": manifest["apiVersion"], "kind": manifest["kind"], "metadata": metadata}
    return encode_struct(build_inputs({key: identity}, token))


def find_naming_mistakes(values: Mapping[str, Any], token: str) -> list[tuple[str, str]]:
    """Return (property, reason) for each mistake in apiVersion, kind or name, found without asking the API server."""
    if token != OBJECTS:
        return _find_mistakes(values, token)
    if not values:
        return [("", "there must be at least one manifest")]
    return [
        (key, f"{key} must be a manifest: {reason}") for key, each in values.items() for reason in _missing_names(each)
    ]


@dataclass(frozen=True)
class Changes:
    """The differences between a resource's old and new inputs, and what they require."""

    changed: list[Difference]
    replacing: list[Difference] = field(default_factory=list)  # differences that need a new resource
    old_first: bool = False  # whether the old resource must be deleted before the new one is created
    remade: list[str] = field(default_factory=list)  # a sentence for each object that is replaced within the update


def changes(api: Api | None, old: Mapping[str, Any], new: Mapping[str, Any], type_token: str) -> Changes:
    """Return how the inputs of a resource of type `type_token` differ, path by path.

    Return also which of the differences make Pulumi replace the resource. With an `api`, ask it which fields are
    immutable.
    """
    changed = list(differences(dict(old), dict(new)))
    if type_token == OBJECTS:
        return _object_set_changes(api, old, new, changed)
    moved = [each for each in changed if _is_identity(each.path, dict(old), dict(new))]
    frozen = [] if moved else _frozen_changes(api, dict(new), changed)
    return Changes(changed, moved or frozen, old_first=bool(frozen))


def _object_set_changes(
    api: Api | None, old: Mapping[str, Any], new: Mapping[str, Any], changed: list[Difference]
) -> Changes:
    """Return the changes of a resource made of several objects.

    The resource is replaced as a whole only if its main object must be replaced.
    """
    end, manifest = main_object(new)
    if old and Reference.from_manifest(main_object(old)[1]) != Reference.from_manifest(manifest):
        moved = [each for each in changed if each.path[0] == end]
        return Changes(changed, moved or changed)
    remade = []
    for key in sorted({str(each.path[0]) for each in changed} & old.keys() & new.keys()):
        if Reference.from_manifest(old[key]) != Reference.from_manifest(new[key]):
            continue  # the object's new name already shows that it is replaced
        own = [each for each in changed if each.path[0] == key]
        frozen = _frozen_changes(api, new[key], [replace(each, path=each.path[1:]) for each in own])
        if frozen and key == end:
            return Changes(changed, [replace(each, path=(key, *each.path)) for each in frozen], old_first=True)
        if frozen:
            paths = ", ".join(path_text(each.path) for each in frozen)
            remade.append(
                f"{Reference.from_manifest(new[key])} is deleted and created again, since {paths} cannot be changed"
            )
    return Changes(changed, remade=remade)


def _frozen_changes(api: Api | None, manifest: Manifest, changed: list[Difference]) -> list[Difference]:
    """Return the changes to immutable fields.

    Return none if there is no `api` to ask, or if some value is not known yet.
    """
    return lifecycle.find_frozen_changes(api, manifest, changed) if api and not has_unknown(manifest) else []


def _find_mistakes(manifest: Mapping[str, Any], token: str) -> list[tuple[str, str]]:
    failures = [
        (key, f"{key} is missing; a manifest needs it") for key in ("apiVersion", "kind") if not manifest.get(key)
    ]
    metadata = manifest.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        failures.append(("metadata", "metadata.name is missing; a manifest needs it"))
    if not failures and type_token(manifest["apiVersion"], manifest["kind"]) != token:
        failures.append(("kind", f"{manifest['apiVersion']} {manifest['kind']} is not of the resource's type {token}"))
    return failures


def _missing_names(manifest: Any) -> Iterator[str]:
    """Yield a sentence for each of apiVersion, kind and name that a manifest lacks."""
    if not isinstance(manifest, dict):
        yield "it is no map"
        return
    yield from (f"{key} is missing" for key in ("apiVersion", "kind") if not manifest.get(key))
    metadata = manifest.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        yield "metadata.name is missing"


def _is_identity(path: Path, old: Manifest, new: Manifest) -> bool:
    if path == ("apiVersion",):  # the same object in another version of its group
        return bool(old["apiVersion"].rpartition("/")[0] != new["apiVersion"].rpartition("/")[0])
    return path in IDENTITY
