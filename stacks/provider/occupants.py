"""Objects that stand where others want to stand: what is no longer listed is gone before anything new is made.

Pulumi deletes what a program no longer declares at the very end, and a unit whose nodes are still taken by one that
leaves would be awaited until its deadline. So the program lists all its units in one resource, and every unit depends
on it. Pulumi keeps what was listed last; an update of the list ends, and awaits, what has left it. When Pulumi comes
to delete those, they are gone, which is fine.

    objects    name -> a manifest that needs no more than the object's identity and labels

What the list has for the first time is not awaited by whoever makes it: it would hold one of the few places in which
Pulumi works, until its pods have loaded. A second list of the same names (`Arrivals`), which depends on all of them,
awaits them together at the end. So it changes whenever there is something to wait for.

    names      of what is awaited

The lists are no objects of the cluster. Making the first one, looking at them and deleting them do nothing there.
"""

from typing import Any

from stacks.kube.manifest import Manifest, Reference

__all__ = ["ARRIVALS", "ID", "LISTS", "TOKEN", "find_departed", "find_naming_mistakes", "find_new"]

TOKEN = "tidemill:index:Occupants"  # noqa: S105  a Pulumi type, no secret
ARRIVALS = "tidemill:index:Arrivals"
LISTS = (TOKEN, ARRIVALS)
ID = "occupants"

ListInputs = dict[str, Any]


def find_departed(old: ListInputs, find_new: ListInputs) -> list[Manifest]:
    """The objects of `old` that `new` does not list, under whatever name."""
    staying = {Reference.from_manifest(each) for each in find_new["objects"].values()}
    return [each for each in old["objects"].values() if Reference.from_manifest(each) not in staying]


def find_new(old: ListInputs, listed: ListInputs) -> set[Reference]:
    """The objects that `listed` has and `old` had not."""
    return {Reference.from_manifest(each) for each in find_departed(listed, old)}


def find_naming_mistakes(values: ListInputs, token: str) -> list[tuple[str, str]]:
    """What is wrong with a list: (property, reason)."""
    if token == ARRIVALS:
        return [] if isinstance(values.get("names"), list) else [("names", "names must be a list of names")]
    objects = values.get("objects")
    if isinstance(objects, dict) and all(map(_is_named, objects.values())):
        return []
    return [("objects", "objects must map names to manifests, each with apiVersion, kind and metadata.name")]


def _is_named(manifest: Any) -> bool:
    if not isinstance(manifest, dict) or not isinstance(manifest.get("metadata"), dict):
        return False
    return all((manifest.get("apiVersion"), manifest.get("kind"), manifest["metadata"].get("name")))
