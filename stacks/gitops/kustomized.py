"""Finds the kustomizations in a checkout that change a rendered folder's objects, and the fields that do so.

Labels, annotations and images may be added there. Names may not: they also stand where no name reference reaches, in
arguments, router URLs, a Role's `resourceNames` and launch files with a digest. So `namePrefix` breaks a folder, and
environments differ by overlays of the spec. Patches and generators may do anything, so they are not allowed either.

It knows `kustomization.yaml` files, not Flux's resource of that kind or Argo CD's settings, which can say the same.
Fields: kubernetes-sigs/kustomize, api/types/kustomization.go and labels.go.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from planner.facts.files import read_file

__all__ = ["find_changed_fields"]

NAMES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
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
SELECTING = ("includeSelectors", "fields")  # of an entry of `labels`


def find_changed_fields(folder: Path, checkout: Path) -> list[str]:
    """Return `namePrefix of ../prod/kustomization.yaml` for each field that changes `folder` and may break it.

    A kustomization counts if it builds on the folder, directly or through another kustomization.
    """
    found = dict(_read_all(folder, checkout))
    reached, size = {os.path.realpath(folder)}, 0
    while len(reached) > size:
        size = len(reached)
        reached |= {str(path.parent) for path, content in found.items() if reached & set(_bases(path, content))}
    fields = [
        f"{field} of {os.path.relpath(path, folder)}"
        for path, content in found.items()
        if reached & set(_bases(path, content))
        for field in _disallowed(content)
    ]
    return sorted(fields)


def _read_all(folder: Path, checkout: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield real path and content of each kustomization but the folder's own; files that are no YAML are skipped."""
    for name in NAMES:
        for each in checkout.rglob(name):
            path = Path(os.path.realpath(each))
            if path.parent == Path(os.path.realpath(folder)) or not path.is_file():
                continue
            try:
                content = yaml.load(read_file(path), Loader=yaml.CSafeLoader)
            except (OSError, yaml.YAMLError, UnicodeDecodeError, RecursionError):
                continue
            if isinstance(content, dict):
                yield path, content


def _bases(path: Path, content: Mapping[str, Any]) -> Iterator[str]:
    """Yield the real paths of the folders and files that a kustomization builds on."""
    for key in ("resources", "bases", "components"):
        for each in _listed(content.get(key)):
            if isinstance(each, str) and "\0" not in each:
                yield os.path.realpath(path.parent / each)


def _disallowed(content: Mapping[str, Any]) -> Iterator[str]:
    yield from (str(key) for key, value in content.items() if value and key not in ALLOWED)
    for place, each in enumerate(_listed(content.get("labels"))):
        yield from (f"labels[{place}].{key}" for key in SELECTING if isinstance(each, dict) and each.get(key))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
