"""Finds the kustomizations in a checkout that change a rendered folder's objects, and the fields that do so.

Labels, annotations and images may be added there. Names may not: they also stand where no name reference reaches, in
arguments, router URLs, a Role's `resourceNames` and launch files with a digest. So `namePrefix` breaks a folder, and
environments differ by overlays of the spec. Patches and generators may do anything, so they are not allowed either. Nor
are labels and annotations by which tools are told what to do, such as not to apply an object.

What is added may reach the templates of pods, and restarts these when it changes.

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
from planner.spec.yaml import MAX_DEPTH
from stacks.gitops.tree import list_files

__all__ = ["Builders", "differing_additions", "disallowed_fields", "read_builders"]

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
BINARY = "tag:yaml.org,2002:binary"  # YAML's tag for text in base64

# Domains of labels and annotations that tools act on, with all domains below them. assumed: a cluster may have more of
# such tools.
DOMAINS = (
    names.DOMAIN,
    "kubernetes.io",
    "k8s.io",
    "x-k8s.io",
    "kpt.dev",
    "argoproj.io",
    "fluxcd.io",
    "pulumi.com",
    "helm.sh",
    "k14s.io",
    "werf.io",
    "openshift.io",
    "istio.io",
    "linkerd.io",
    "cilium.io",
    "kyverno.io",
    "cert-manager.io",
    "stakater.com",
    "nvidia.com",
    "google.com",
    "amazonaws.com",
    "azure.com",
)
WITHOUT_DOMAIN = ("istio-injection", MERGE)

Content = Mapping[str, Any]  # all scalars are texts
Builders = Mapping[str, Content | None]  # path relative to the folder -> fields; None if the file cannot be read


def read_builders(folder: Path, checkout: Path) -> Builders:
    """Return the kustomizations that build on the folder, on files in it, or on another that does.

    One that cannot be read is returned too, since what it builds on is unknown.
    """
    root = Path(os.path.realpath(folder))
    found = {path: _read(path) for path in _find_all(checkout) if path.parent != root}
    readable = {path: content for path, content in found.items() if content is not None}
    building = _find_builders(root, readable) | (found.keys() - readable.keys())
    return {os.path.relpath(path, root): found[path] for path in sorted(building)}


def disallowed_fields(builders: Builders) -> list[str]:
    """Return a text such as `namePrefix of ../prod/kustomization.yaml` for each field that may break the folder."""
    fields = []
    for name, content in builders.items():
        if content is None:
            fields.append(f"{name} (which cannot be read here)")
        else:
            fields += [f"{field} of {name}" for field in _disallowed(content)]
    return sorted(fields)


def differing_additions(before: Builders, after: Builders) -> tuple[str, ...]:
    """Return a text such as `images of ../prod/kustomization.yaml` for each field that restarts pods by its change.

    A field that reaches some pods alone is returned like one that reaches all.
    """
    old, new = map(_additions, (before, after))
    return tuple(sorted(name for name in {**old, **new} if old.get(name) != new.get(name)))


def _additions(builders: Builders) -> dict[str, frozenset[frozenset[tuple[str, str]]]]:
    """Return the fields that may reach the templates of pods, with the texts that they add."""
    found = {}
    for name, content in builders.items():
        labels = [each for each in _listed((content or {}).get("labels")) if isinstance(each, dict)]
        added = {
            "images": _listed((content or {}).get("images")),
            "commonAnnotations": [(content or {}).get("commonAnnotations")],
            "labels": [each.get("pairs") for each in labels if each.get("includeTemplates", "") not in OFF],
        }
        for field, values in added.items():
            found[f"{field} of {name}"] = frozenset(_texts(each) for each in values if each)
    return {name: values for name, values in found.items() if values}


def _texts(pairs: Any) -> frozenset[tuple[str, str]]:
    found = pairs.items() if isinstance(pairs, dict) else ()
    return frozenset((key, value) for key, value in found if isinstance(value, str))


def _find_all(checkout: Path) -> Iterator[Path]:
    """Yield the path of each kustomization, and of folders that cannot be listed.

    A linked one gets its own folder's path: it is relative to that folder.
    """
    for each in list_files(checkout):
        if each.name in FILES or not (os.path.isfile(each) or each.is_symlink()):
            yield Path(os.path.realpath(each.parent), each.name)


def _read(path: Path) -> Content | None:
    """Return a kustomization's fields; None if it cannot be read, or says something that only some readers understand.

    That is YAML's merge keys and texts in base64.
    """
    try:
        text = read_file(path, MAX_BYTES)
        if not _is_plain(text):
            return None
        content: Any = next(yaml.load_all(text, Loader=yaml.CBaseLoader), {})
    except (OSError, ValueError, yaml.YAMLError):
        return None
    if not isinstance(content, dict):
        return {}  # Kustomize builds nothing from it
    return None if MERGE in content else content


def _is_plain(text: bytes) -> bool:
    """Return whether YAML nests no deeper than a spec may, and has no base64. Raises YAMLError.

    Deeper nesting overflows the stack of libyaml, which composes by calling itself; parsing into events does not.
    """
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CBaseLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH or getattr(event, "tag", None) == BINARY:
            return False
    return True


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
    yield from (f"commonAnnotations.{key}" for key in _keys_of_tools(content.get("commonAnnotations")))
    for place, each in enumerate(_listed(content.get("images"))):
        if isinstance(each, dict) and MERGE in each:
            yield f"images[{place}].{MERGE}"
    for place, each in enumerate(_listed(content.get("labels"))):
        if isinstance(each, dict):
            keys = [key for key, value in each.items() if key not in ALLOWED_OF_LABELS and value and value not in OFF]
            yield from (f"labels[{place}].{key}" for key in keys)
            yield from (f"labels[{place}].pairs.{key}" for key in _keys_of_tools(each.get("pairs")))


def _keys_of_tools(pairs: Any) -> Iterator[str]:
    """Yield the keys of added labels or annotations that tools act on, or that rendered objects need."""
    for key in pairs if isinstance(pairs, dict) else ():
        domain = f".{key.rpartition('/')[0]}"
        if key in WITHOUT_DOMAIN or any(domain.endswith(f".{each}") for each in DOMAINS):
            yield key


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
