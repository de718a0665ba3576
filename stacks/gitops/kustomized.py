"""Finds the kustomizations in a checkout that change a rendered folder's objects, and the fields that do so.

Labels, annotations and images may be added there. Names may not: they also stand where no name reference reaches, in
arguments, router URLs, a Role's `resourceNames` and launch files with a digest. So `namePrefix` breaks a folder, and
environments differ by overlays of the spec. Patches and generators may do anything, so they are not allowed either. Nor
are labels and annotations by which tools are told what to do, such as not to apply an object.

What is added may reach the templates of pods, and restarts these when it changes.

Only what is plainly read passes. A file with a repeated key or a second document does not, since readers differ in
which one they take. A kustomization that takes some files of the folder leaves others out. One that built on the folder
and no longer does, or now does by a URL, makes tools apply something else.

It knows `kustomization.yaml` files, not Flux's resource of that kind or Argo CD's settings, which can say the same. A
URL is taken for one of this repository if it ends in a path that the checkout has.
Fields: kubernetes-sigs/kustomize, api/types/kustomization.go and labels.go.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import yaml

from planner.facts import names
from planner.facts.files import read_file
from planner.spec.yaml import MAX_DEPTH
from stacks.gitops.tree import list_files

__all__ = ["Builder", "Builders", "differing_additions", "disallowed_fields", "lost_builders", "read_builders"]

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
BASES = ("resources", "bases", "components")
# What Kustomize may take for a URL and not for a path (api/internal/git/repospec.go). A path in a repository may follow
# the `.git` of its name at once.
REMOTE = re.compile(r"[:?]|//|_git/|^git@|^github\.com/", re.I)
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


@dataclass(frozen=True)
class Builder:
    """A kustomization that builds on the folder, or may do so."""

    fields: Content
    fault: str = ""  # why what it builds is not the folder with additions
    is_by_url: bool = False  # whether it may build on the folder by a URL alone


Builders = Mapping[str, Builder]  # by path relative to the folder

UNREAD = Builder({}, "which cannot be read here")
TAKES_FILES = "which builds on files of the folder, and not on all of it"


def read_builders(folder: Path, checkout: Path) -> Builders:
    """Return the kustomizations that build on the folder, on files in it, or on another that does.

    One that cannot be read is returned too, since what it builds on is unknown.
    """
    root, top = Path(os.path.realpath(folder)), Path(os.path.realpath(checkout))
    found = {path: _read(path) for path in _find_all(checkout) if path.parent != root}
    fields = {path: content for path, content in found.items() if content is not None}
    by_path = {path: set(_list_bases(path, content)) for path, content in fields.items()}
    by_any = {path: by_path[path] | set(_list_urls(content, top)) for path, content in fields.items()}
    plain = _find_builders(root, by_path)
    builders = dict.fromkeys(found.keys() - fields.keys(), UNREAD)
    for path in _find_builders(root, by_any):
        fault = TAKES_FILES if any(root in base.parents for base in by_any[path]) else ""
        builders[path] = Builder(fields[path], fault, is_by_url=path not in plain)
    return {os.path.relpath(path, root): builders[path] for path in sorted(builders)}


def disallowed_fields(builders: Builders) -> list[str]:
    """Return a text such as `namePrefix of ../prod/kustomization.yaml` for each field that may break the folder.

    Each kustomization that cannot be judged has a text, too: its name and what is wrong with it.
    """
    faults = [f"{name} ({each.fault})" for name, each in builders.items() if each.fault]
    return sorted(
        [*faults, *(f"{field} of {name}" for name, each in builders.items() for field in _disallowed(each.fields))]
    )


def lost_builders(before: Builders, after: Builders) -> list[str]:
    """Return a text for each kustomization that built on the folder in the checkout, and no longer does."""
    names = [name for name, each in before.items() if not (each.is_by_url or each.fault)]
    lost = [name for name in names if name not in after or after[name].is_by_url]
    return [f"{name} (which no longer builds on the folder)" for name in lost]


def differing_additions(before: Builders, after: Builders) -> tuple[str, ...]:
    """Return a text such as `images of ../prod/kustomization.yaml` for each field that restarts pods by its change.

    A field that reaches some pods alone is returned like one that reaches all.
    """
    old, new = map(_additions, (before, after))
    return tuple(sorted(name for name in {**old, **new} if old.get(name) != new.get(name)))


def _additions(builders: Builders) -> dict[str, frozenset[frozenset[tuple[str, str]]]]:
    """Return the fields that may reach the templates of pods, with the texts that they add."""
    found = {}
    for name, builder in builders.items():
        labels = [each for each in _listed(builder.fields.get("labels")) if isinstance(each, dict)]
        added = {
            "images": _listed(builder.fields.get("images")),
            "commonAnnotations": [builder.fields.get("commonAnnotations")],
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
    """Return a kustomization's fields; None if it cannot be read, or has YAML that parsers do not read alike.

    Such YAML is merge keys, texts in base64, repeated keys and several documents. If the file holds no mapping,
    return no fields: Kustomize builds nothing from it.
    """
    try:
        text = read_file(path, MAX_BYTES)
        if not _is_plain(text):
            return None
        content: Any = yaml.load(text, Loader=_PlainLoader)  # noqa: S506 (every value is text)
    except (OSError, ValueError, yaml.YAMLError):
        return None
    if not isinstance(content, dict):
        return {}  # Kustomize builds nothing from it
    return None if MERGE in content else content


class _PlainLoader(yaml.CBaseLoader):
    """Reads a single document, and refuses repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping. Raises YAMLError if a key is repeated."""
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        if len(found) < len(node.value):
            raise yaml.constructor.ConstructorError(None, None, "a key is repeated", node.start_mark)
        return found


def _is_plain(text: bytes) -> bool:
    """Return whether YAML nests no deeper than a spec may, and has no base64. Raises YAMLError if it is no YAML.

    Deeper nesting overflows the stack of libyaml, which composes by calling itself; parsing into events does not.
    """
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CBaseLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH or getattr(event, "tag", None) == BINARY:
            return False
    return True


def _find_builders(root: Path, bases_of: Mapping[Path, set[Path]]) -> set[Path]:
    """Return the kustomizations that build on `root`, directly or through the folders of others."""
    builders = defaultdict[Path, list[Path]](list)
    for path, bases in bases_of.items():
        for base in bases:
            builders[root if base.is_relative_to(root) else base].append(path)
    found, left = set[Path](), [root]
    while left:
        above = builders.pop(left.pop(), [])
        found.update(above)
        left += [path.parent for path in above]
    return found


def _list_bases(path: Path, content: Content) -> Iterator[Path]:
    """Yield the real paths of a kustomization's resources, bases and components."""
    for each in _list_names(content):
        yield Path(os.path.realpath(path.parent / each))


def _list_urls(content: Content, top: Path) -> Iterator[Path]:
    """Yield the paths of the checkout `top` that a kustomization's URLs may mean, if they are of its own repository."""
    for each in filter(REMOTE.search, _list_names(content)):
        url = unquote(each).partition("?")[0]
        for text in {url, url.replace(".git", "/")}:
            parts = [part for part in re.split("[/:]", text) if part]
            ends = (top.joinpath(*parts[len(parts) - length :]) for length in range(min(len(parts), MAX_DEPTH) + 1))
            yield from (Path(os.path.realpath(end)) for end in ends if os.path.lexists(end))


def _list_names(content: Content) -> Iterator[str]:
    """Yield the paths and URLs that a kustomization builds on, as written. Kustomize ignores the case of keys."""
    names = [each for key, value in content.items() if key.lower() in BASES for each in _listed(value)]
    plain = dict.fromkeys(each for each in names if isinstance(each, str))  # aliases may repeat a name for ever
    yield from (each for each in plain if "\0" not in unquote(each))


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
