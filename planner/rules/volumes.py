"""The rules of volumes: what pods mount, or the gateway alone, and where."""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from planner.facts import names
from planner.problems.finding import Finding
from planner.problems.fix import Fix, for_example, nearest
from planner.rules.forms import VOLUMES, is_folder
from planner.rules.rule import Rule
from planner.rules.written import Written
from planner.spec.pods import is_in, volume_of

__all__ = ["RULES"]

EACH_VOLUME = tuple(f"{volumes}.*" for volumes in VOLUMES)
NOT_FREE = f"S413 must not be {' or '.join(names.MOUNTED)}, nor in or above one of them"
OF_PODS = "the pod keeps its own files there"
EXAMPLE_DISKS = ("/mnt/nvme", "/local")  # one path is never in both
Volumes = Sequence[Mapping[str, Any]]  # as written


def volumes_have_one_source(c: Written, volume: str) -> Iterator[Finding]:
    """A folder of the nodes or a claim."""
    given = [key for key in ("host_path", "claim") if c[f"{volume}.{key}"] is not None]
    if len(given) == 1:
        return
    fix = for_example("host_path: /mnt/models")
    if given:
        fix = Fix("remove host_path or claim", tuple({f"{volume}.{key}": None} for key in given))
    rule, found = "S411 must come with host_path or claim, one of the two", "both" if given else "neither"
    yield Finding(f"{volume}.mount_path", c[f"{volume}.mount_path"], rule, f"it has {found}", fix)


def mount_paths_are_free(c: Written, place: str) -> Iterator[Finding]:
    """Not over what the pods have already."""
    path: str = c[place]
    if is_folder(path) and _is_taken_by_pods(path):
        yield Finding(place, path, NOT_FREE, OF_PODS, for_example("mount_path: /models"))


def mount_paths_differ(c: Written, where: str) -> Iterator[Finding]:
    """One path shows one volume."""
    volumes: Volumes | None = c[where]
    paths = [volume.get("mount_path") for volume in volumes or ()]
    for index, path in enumerate(paths):
        if path is not None and path in paths[:index]:
            rule = f"S408 must differ from {where}.{paths.index(path)}.mount_path"
            fix = "write a path of its own, or remove one of the two"
            yield Finding(f"{where}.{index}.mount_path", path, rule, "one path can hold only one volume", fix)


def staged_checkpoints_are_in_a_volume(c: Written) -> Iterator[Finding]:
    """The copy is made from what a pod can see."""
    source: str = c["kubernetes.stage.source"]
    volumes: Volumes = c["kubernetes.volumes"]
    paths = [path for volume in volumes if _is_free(path := volume.get("mount_path"))]
    if not is_folder(source) or volume_of(source, volumes) is not None or len(paths) < len(volumes):
        return  # where a volume will be that has a wrong path, nobody knows yet
    rule = "S457 must be in one of kubernetes.volumes"
    if shown := _shown_at(source, volumes):
        reason = "pods see this folder of the node under another path"
        yield Finding("kubernetes.stage.source", source, rule, reason, nearest(shown))
        return
    reason = f"pods see only what volumes mount: {' and '.join(paths)}" if paths else "the spec has no volumes"
    fix = "write a folder below one of these" if paths else f"add the volume that has it, with mount_path: {source}"
    yield Finding("kubernetes.stage.source", source, rule, reason, fix)


def copies_are_not_made_over_their_source(c: Written) -> Iterator[Finding]:
    """A volume and the copy may be the same folder of a node under two names."""
    host_path: str = c["kubernetes.stage.host_path"]
    source: str = c["kubernetes.stage.source"]
    volumes: Volumes = c["kubernetes.volumes"]
    original = _on_nodes(source, volumes)
    if original is None or not (is_in(host_path, original) or is_in(original, host_path)):
        return
    rule = f"S463 must be outside {original}, and not above it"
    reason = f"kubernetes.stage.source ({source}) is at that path on the nodes and would be copied onto itself"
    places = (f"{disk}/{posixpath.basename(source)}" for disk in EXAMPLE_DISKS)
    free = next(place for place in places if not (is_in(place, original) or is_in(original, place)))
    yield Finding("kubernetes.stage.host_path", host_path, rule, reason, for_example(f"host_path: {free}"))


def staged_checkpoints_have_a_place(c: Written) -> Iterator[Finding]:
    """Ranks read the copy where the spec has the checkpoint, and a volume would be there already."""
    checkpoint: str | None = c["model.checkpoint"]
    c.require("kubernetes.stage.source")
    volumes: Volumes = c["kubernetes.volumes"]
    if checkpoint is None:
        return
    if is_folder(checkpoint) and volume_of(checkpoint, volumes) is None:
        if not _is_taken_by_pods(checkpoint):
            return
        yield Finding("model.checkpoint", checkpoint, NOT_FREE, OF_PODS, for_example("checkpoint: /checkpoint"))
        return
    rule = "S458 must be an absolute path outside kubernetes.volumes when kubernetes.stage is set"
    reason = "pods find the staged copy at this path, and volumes hold the original"
    yield Finding("model.checkpoint", checkpoint, rule, reason, for_example("checkpoint: /checkpoint"))


def _shown_at(path: str, volumes: Volumes) -> str | None:
    """Return where pods see a folder of the nodes; None where no volume has it."""
    above = [each for each in volumes if is_in(path, each.get("host_path"))]
    if not above:
        return None
    volume = max(above, key=lambda each: len(each["host_path"]))
    return posixpath.normpath(posixpath.join(volume["mount_path"], posixpath.relpath(path, volume["host_path"])))


def _is_free(path: str | None) -> TypeGuard[str]:
    """Whether something can be mounted there."""
    return path is not None and is_folder(path) and not _is_taken_by_pods(path)


def _on_nodes(path: str, volumes: Volumes) -> str | None:
    """Return the nodes' folder that pods see at `path`; None for a claim, and where there is none below `/`."""
    index = volume_of(path, volumes)
    host_path = None if index is None else volumes[index].get("host_path")
    if index is None or host_path is None or not (is_folder(path) and is_folder(host_path)):
        return None
    return posixpath.normpath(posixpath.join(host_path, posixpath.relpath(path, volumes[index]["mount_path"])))


def _is_taken_by_pods(path: str) -> bool:
    """Whether pods have files of their own there; above such a place nothing could be mounted in what is read-only."""
    return any(is_in(path, mounted) or is_in(mounted, path) for mounted in names.MOUNTED)


RULES = (
    Rule("S411", "fields", volumes_have_one_source, EACH_VOLUME),
    Rule("S413", "fields", mount_paths_are_free, [f"{volume}.mount_path" for volume in EACH_VOLUME]),
    Rule("S408", "fields", mount_paths_differ, VOLUMES),
    Rule("S457", "fields", staged_checkpoints_are_in_a_volume),
    Rule("S463", "fields", copies_are_not_made_over_their_source),
    Rule("S413 S458", "fields", staged_checkpoints_have_a_place),
)
