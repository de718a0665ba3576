"""The rules about volumes: what pods mount, or the gateway alone, and where. `layout_rules.py` asks them too."""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from planner.facts import names
from planner.problems.fix import Fix, for_example, nearest
from planner.spec.rule import Broken, Partial, Rule, declare_at, declare_in

__all__ = ["RULES", "VOLUMES", "volume_of"]

VOLUMES = ("kubernetes.volumes", "kubernetes.gateway.volumes")
NOT_FREE = f"S413 must not be {' or '.join(names.MOUNTED)}, nor in or above one of them"
OF_PODS = "the pod keeps its own files there"

RULES: list[Rule] = []
_reads = declare_in(RULES)

EXAMPLE_DISKS = ("/mnt/nvme", "/local")  # one path is never in both

Volumes = Sequence[Mapping[str, Any]]  # as written


@declare_at(RULES, *VOLUMES)
def volumes_have_one_source(where: str, volumes: Volumes | None) -> Iterator[Broken]:
    """A folder of the nodes or a claim."""
    for index, volume in enumerate(volumes or ()):
        path = f"{where}.{index}"
        given = [key for key in ("host_path", "claim") if volume.get(key) is not None]
        if len(given) == 2:
            fix = Fix("remove host_path or claim", tuple({f"{path}.{key}": None} for key in given))
        else:
            fix = for_example("host_path: /mnt/models")
        if len(given) != 1 and not isinstance(volume, Partial):
            rule, found = "S411 must come with host_path or claim, one of the two", "both" if given else "neither"
            yield Broken(rule, f"it has {found}", fix, f"{path}.mount_path", volume["mount_path"])


@declare_at(RULES, *VOLUMES)
def volume_paths_are_absolute(where: str, volumes: Volumes | None) -> Iterator[Broken]:
    """Neither a pod nor a node has a current folder."""
    for index, volume in enumerate(volumes or ()):
        for key in ("mount_path", "host_path"):
            path = volume.get(key)
            if path is not None and not _is_absolute(path):
                yield _not_absolute(f"{where}.{index}.{key}", path)


@declare_at(RULES, *VOLUMES)
def mount_paths_are_free(where: str, volumes: Volumes | None) -> Iterator[Broken]:
    """Not over what the pods have already."""
    for index, volume in enumerate(volumes or ()):
        path = volume.get("mount_path")
        if path is not None and _is_absolute(path) and _is_taken_by_pods(path):
            place = f"{where}.{index}.mount_path"
            yield Broken(NOT_FREE, OF_PODS, for_example("mount_path: /models"), place, path)


@declare_at(RULES, *VOLUMES)
def mount_paths_differ(where: str, volumes: Volumes | None) -> Iterator[Broken]:
    """One path shows one volume."""
    paths = [volume.get("mount_path") for volume in volumes or ()]
    for index, path in enumerate(paths):
        if path is not None and path in paths[:index]:
            rule = f"S414 must differ from {where}.{paths.index(path)}.mount_path"
            fix = "write a path of its own, or remove one of the two"
            yield Broken(rule, "one path can hold only one volume", fix, f"{where}.{index}.mount_path", path)


# A copy on the nodes' disks


@_reads("kubernetes.stage.source")
def staged_checkpoints_are_absolute(source: str) -> Broken | None:
    """A pod has no current folder."""
    return None if _is_absolute(source) else _not_absolute("kubernetes.stage.source", source)


@_reads("kubernetes.stage.host_path")
def staged_folders_are_absolute(host_path: str) -> Broken | None:
    """A node has no current folder."""
    return None if _is_absolute(host_path) else _not_absolute("kubernetes.stage.host_path", host_path)


@_reads("kubernetes.kernel_cache")
def cached_kernels_have_an_absolute_folder(folder: str | None) -> Broken | None:
    """A node has no current folder."""
    return None if folder is None or _is_absolute(folder) else _not_absolute("kubernetes.kernel_cache", folder)


@_reads("kubernetes.stage.source", "kubernetes.volumes")
def staged_checkpoints_are_in_a_volume(source: str, volumes: Volumes) -> Broken | None:
    """The copy is made from what a pod can see."""
    paths = [path for volume in volumes if _is_free(path := volume.get("mount_path"))]
    if not _is_absolute(source) or volume_of(source, volumes) is not None or len(paths) < len(volumes):
        return None  # where a volume will be that has a wrong path, nobody knows yet
    rule = "S457 must be in one of kubernetes.volumes"
    if shown := _shown_at(source, volumes):
        return Broken(rule, "pods see this folder of the node under another path", nearest(shown))
    reason = f"pods see only what volumes mount: {' and '.join(paths)}" if paths else "the spec has no volumes"
    fix = "write a folder below one of these" if paths else f"add the volume that has it, with mount_path: {source}"
    return Broken(rule, reason, fix)


@_reads("kubernetes.stage.host_path", "kubernetes.stage.source", "kubernetes.volumes")
def copies_are_not_made_over_their_source(host_path: str, source: str, volumes: Volumes) -> Broken | None:
    """A volume and the copy may be the same folder of a node under two names."""
    original = _on_nodes(source, volumes)
    if original is None or not (_is_in(host_path, original) or _is_in(original, host_path)):
        return None
    rule = f"S463 must be outside {original}, and not above it"
    reason = f"kubernetes.stage.source ({source}) is at that path on the nodes and would be copied onto itself"
    places = (f"{disk}/{posixpath.basename(source)}" for disk in EXAMPLE_DISKS)
    free = next(place for place in places if not (_is_in(place, original) or _is_in(original, place)))
    return Broken(rule, reason, for_example(f"host_path: {free}"))


@_reads("model.checkpoint", "kubernetes.stage.source", "kubernetes.volumes")
def staged_checkpoints_have_a_place(checkpoint: str | None, source: str, volumes: Volumes) -> Broken | None:
    """Ranks read the copy where the spec has the checkpoint, and a volume would be there already."""
    if checkpoint is None:
        return None
    if _is_absolute(checkpoint) and volume_of(checkpoint, volumes) is None:
        if not _is_taken_by_pods(checkpoint):
            return None
        return Broken(NOT_FREE, OF_PODS, for_example("checkpoint: /checkpoint"))
    rule = "S458 must be an absolute path outside kubernetes.volumes when kubernetes.stage is set"
    reason = "pods find the staged copy at this path, and volumes hold the original"
    return Broken(rule, reason, for_example("checkpoint: /checkpoint"))


def volume_of(path: str, volumes: Volumes) -> int | None:
    """Return which of `volumes` shows `path` to pods: the one mounted deepest above it."""
    above = {
        index: volume["mount_path"] for index, volume in enumerate(volumes) if _is_in(path, volume.get("mount_path"))
    }
    return max(above, key=lambda index: len(above[index]), default=None)


def _shown_at(path: str, volumes: Volumes) -> str | None:
    """Return where pods see a folder of the nodes; None where no volume has it."""
    above = [each for each in volumes if _is_in(path, each.get("host_path"))]
    if not above:
        return None
    volume = max(above, key=lambda each: len(each["host_path"]))
    return posixpath.normpath(posixpath.join(volume["mount_path"], posixpath.relpath(path, volume["host_path"])))


def _is_free(path: str | None) -> TypeGuard[str]:
    """Whether something can be mounted there."""
    return path is not None and _is_absolute(path) and not _is_taken_by_pods(path)


def _on_nodes(path: str, volumes: Volumes) -> str | None:
    """Return the nodes' folder that pods see at `path`; None for a claim, and where there is none below `/`."""
    index = volume_of(path, volumes)
    host_path = None if index is None else volumes[index].get("host_path")
    if index is None or host_path is None or not (_is_absolute(path) and _is_absolute(host_path)):
        return None
    return posixpath.normpath(posixpath.join(host_path, posixpath.relpath(path, volumes[index]["mount_path"])))


def _is_in(path: str, folder: str | None) -> bool:
    return folder is not None and (path == folder or path.startswith(f"{folder.rstrip('/')}/"))


def _is_taken_by_pods(path: str) -> bool:
    """Whether pods have files of their own there; above such a place nothing could be mounted in what is read-only."""
    return any(_is_in(path, mounted) or _is_in(mounted, path) for mounted in names.MOUNTED)


def _not_absolute(where: str, path: str) -> Broken:
    rule = "S412 must be an absolute path below /, without //, .., : or a closing /"
    reason = (
        "a folder must be written in one way only"
        if path.startswith("/")
        else "a relative path has no meaning for pods and nodes"
    )
    return Broken(rule, reason, for_example(f"{where.rpartition('.')[2]}: /mnt/models"), where, path)


def _is_absolute(path: str) -> bool:
    """Refuse `..`, double and closing slashes, so that a place has one name. `normpath` leaves two at the start.

    A colon ends the path where a container runtime takes a mount as one word.
    """
    is_plain = path.startswith("/") and not path.startswith("//") and ":" not in path
    return is_plain and path == posixpath.normpath(path) != "/"
