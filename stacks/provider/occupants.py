"""The list of objects that occupy nodes: those no longer listed are deleted before anything new is created.

Pulumi deletes resources that a program no longer declares at the very end. A new unit that needs their nodes would wait
until its deadline. So the program lists all its units in one resource, and every unit depends on it. Pulumi keeps the
last list; an update of the list deletes the units that have left it, and waits until they are gone. When Pulumi comes
to delete them itself, there is nothing left to do. With a controller they are left to that (`departed.py`).

    objects      name -> a manifest that needs no more than the object's identity and labels
    controller   true if the plan has one

Units that are new in the list are stored without waiting: each wait would block one of Pulumi's few workers until the
unit has loaded. With a controller no unit is awaited by itself, since one may need what only the controller does, as
soon as the new plan tells it. A second resource (`Arrivals`), which depends on all units, awaits all of these together
at the end, but for those that keep their pods until their turn comes. It has no inputs, and changes whenever there is
something to wait for.

Both are no objects of the cluster. Making the first one and looking at them do nothing there, and neither does deleting
them without a controller.
"""

from typing import Any

from stacks.kube.manifest import Manifest, Reference

__all__ = ["ARRIVALS", "ID", "LISTS", "TOKEN", "find_departed", "find_naming_mistakes", "find_new"]

TOKEN = "tidemill:index:Occupants"  # noqa: S105  a Pulumi type, no secret
ARRIVALS = "tidemill:index:Arrivals"
LISTS = (TOKEN, ARRIVALS)
ID = "occupants"

ListInputs = dict[str, Any]


def find_departed(old: ListInputs, new: ListInputs) -> list[Manifest]:
    """Return the objects in the list `old` that the list `new` does not have under any key."""
    staying = {Reference.from_manifest(each) for each in new["objects"].values()}
    return [each for each in old["objects"].values() if Reference.from_manifest(each) not in staying]


def find_new(old: ListInputs, listed: ListInputs) -> set[Reference]:
    """Return the objects in `listed` that the list `old` does not have."""
    return {Reference.from_manifest(each) for each in find_departed(listed, old)}


def find_naming_mistakes(values: ListInputs) -> list[tuple[str, str]]:
    """Return [(property, reason)] if a list of objects has a mistake in a name or kind; empty if it has none."""
    objects = values.get("objects")
    if isinstance(objects, dict) and all(map(_is_named, objects.values())):
        return []
    return [("objects", "objects must map names to manifests, each with apiVersion, kind and metadata.name")]


def _is_named(manifest: Any) -> bool:
    if not isinstance(manifest, dict) or not isinstance(manifest.get("metadata"), dict):
        return False
    return all((manifest.get("apiVersion"), manifest.get("kind"), manifest["metadata"].get("name")))
