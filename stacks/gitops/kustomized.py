"""Finds the kustomizations in a checkout that change a rendered folder's objects, and the fields that do so.

Labels, annotations and images may be added there. Names may not: they also stand where no name reference reaches, in
arguments, router URLs, a Role's `resourceNames` and launch files with a digest. So `namePrefix` breaks a folder, and
environments differ by overlays of the spec. Patches and generators may do anything, so they are not allowed either.

It knows `kustomization.yaml` files, not Flux's resource of that kind or Argo CD's settings, which can say the same. One
that builds on the URL of its own repository is not seen either.
Fields: kubernetes-sigs/kustomize, api/types/kustomization.go and labels.go. Like Kustomize, it reads the first document
of a file.
"""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from planner.facts import names
from planner.facts.files import read_file

__all__ = ["find_changed_fields"]

FILES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
MAX_BYTES = 2**18  # per file; assumed: room for 5,000 resource paths
ALLOWED = {
    "apiVersion",
    "kind",
    "metadata",
    "resources",
    "bases",
    "labels",
    "commonAnnotations",
    "images",
    "buildMetadata",
}
ALLOWED_OF_LABELS = {"pairs", "includeTemplates"}  # of an entry of `labels`
OFF = ("", "false", "False", "FALSE")
MERGE = "<<"  # YAML's key for another mapping's keys, which are not looked for
OURS = {names.COMPONENT_LABEL, *names.UNPRUNED, *names.MERGE_ANNOTATIONS, MERGE}  # beside all of `tidemill.dev/`

Content = Mapping[str, Any]  # all scalars are texts


def find_changed_fields(folder: Path, checkout: Path) -> list[str]:
    """Return a text such as `namePrefix of ../prod/kustomization.yaml` for each field that may break `folder`.

    A kustomization counts if it builds on the folder, on files in it, or on another that does. One that cannot be read
    is returned too, since what it builds on is unknown.
    """
    root = Path(os.path.realpath(folder))
    found = {path: _read(path) for path in _find_all(checkout) if path.parent != root}
    readable = {path: content for path, content in found.items() if content is not None}
    fields = [f"{os.path.relpath(path, root)} (which cannot be read here)" for path in found.keys() - readable.keys()]
    for path in _find_builders(root, readable):
        fields += [f"{field} of {os.path.relpath(path, root)}" for field in _disallowed(readable[path])]
    return sorted(fields)


def _find_all(checkout: Path) -> Iterator[Path]:
    """Yield the path of each kustomization. A linked one gets its own folder's path: it is relative to that folder."""
    for name in FILES:
        for each in checkout.rglob(name):
            if each.is_symlink() or not each.is_dir():
                yield Path(os.path.realpath(each.parent), name)


def _read(path: Path) -> Content | None:
    """Return a kustomization's fields; None if it cannot be read or has YAML merge keys."""
    try:
        content: Any = next(yaml.load_all(read_file(path, MAX_BYTES), Loader=yaml.CBaseLoader), {})
    except (OSError, yaml.YAMLError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(content, dict):
        return {}  # Kustomize builds nothing from it
    return None if MERGE in content else content


def _find_builders(root: Path, contents: Mapping[Path, Content]) -> set[Path]:
    """Return the kustomizations that build on `root`, directly or through the folders of others."""
    builders = defaultdict[Path, list[Path]](list)
    for path, content in contents.items():
        for base in _list_bases(path, content):
            builders[root if base.is_relative_to(root) else base].append(path)
    found, bases = set[Path](), [root]
    while bases:
        above = builders.pop(bases.pop(), [])
        found.update(above)
        bases += [path.parent for path in above]
    return found


def _list_bases(path: Path, content: Content) -> Iterator[Path]:
    """Yield the real paths of a kustomization's resources, bases and components. Kustomize ignores the case of keys."""
    for key, value in content.items():
        if key.lower() in ("resources", "bases", "components"):
            for each in _listed(value):
                if isinstance(each, str) and "\0" not in each:
                    yield Path(os.path.realpath(path.parent / each))


def _disallowed(content: Content) -> Iterator[str]:
    yield from (key for key, value in content.items() if value and key not in ALLOWED)
    yield from (f"commonAnnotations.{key}" for key in _overwritten_keys(content.get("commonAnnotations")))
    for place, each in enumerate(_listed(content.get("labels"))):
        if isinstance(each, dict):
            keys = [key for key, value in each.items() if key not in ALLOWED_OF_LABELS and value and value not in OFF]
            yield from (f"labels[{place}].{key}" for key in keys)
            yield from (f"labels[{place}].pairs.{key}" for key in _overwritten_keys(each.get("pairs")))


def _overwritten_keys(pairs: Any) -> Iterator[str]:
    """Yield the keys of added labels or annotations that would overwrite some that rendered objects need."""
    for key in pairs if isinstance(pairs, dict) else ():
        if key.startswith(f"{names.DOMAIN}/") or key in OURS:
            yield key


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
