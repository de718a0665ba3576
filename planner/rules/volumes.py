"""Rules about volumes, of all pods or of the gateway alone, and about staged checkpoints."""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from planner.facts import names
from planner.problems.finding import Finding
from planner.problems.fix import Fix, for_example, nearest
from planner.rules.forms import VOLUMES, is_folder
from planner.rules.rule import Rule
from planner.rules.valid_values import ValidValues
from planner.spec.pods import is_in, paths_overlap, volume_of

EACH_VOLUME = tuple(f"{volumes}.*" for volumes in VOLUMES)
NOT_FREE = f"S413 must not be {' or '.join(names.MOUNTED)}, nor in or above one of them"
# assumed: where Linux has programs, secrets and devices, and where container runtimes and the kubelet keep pods.
SYSTEM = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/root", "/run", "/sbin"),
    *("/sys", "/usr", "/var/run", "/var/lib/kubelet", "/var/lib/containerd", "/var/lib/containers", "/var/lib/docker"),
    *("/var/lib/cni", "/var/lib/etcd", "/var/lib/rancher"),
)
RESERVED = "the pod keeps its own files there"
EXAMPLE_DISKS = ("/mnt/nvme", "/local")  # no path is in both, so one of them is always free
Volumes = Sequence[Mapping[str, Any]]  # in the form of the spec


def volumes_have_one_source(c: ValidValues, volume: str) -> Iterator[Finding]:
    """Require exactly one source of each volume: a folder of the nodes or a claim."""
    given = [key for key in ("host_path", "claim") if c[f"{volume}.{key}"] is not None]
    if len(given) == 1:
        return
    fix = for_example("host_path: /mnt/models")
    if given:
        fix = Fix("remove host_path or claim", tuple({f"{volume}.{key}": None} for key in given))
    rule, found = "S411 must come with host_path or claim, one of the two", "both" if given else "neither"
    yield Finding(f"{volume}.mount_path", c[f"{volume}.mount_path"], rule, f"it has {found}", fix)


def mount_paths_are_free(c: ValidValues, place: str) -> Iterator[Finding]:
    """Reject a volume's mount path in or above a folder where pods keep their own files."""
    path: str = c[place]
    if is_folder(path) and _is_reserved(path):
        yield Finding(place, path, NOT_FREE, RESERVED, for_example("mount_path: /models"))


def written_folders_are_free(c: ValidValues, place: str) -> Iterator[Finding]:
    """Reject system folders as the node's place for KV or for copies of the checkpoint: root writes there."""
    path: str = c[place]
    other = next((each for each in SYSTEM if paths_overlap(path, each)), None)
    if is_folder(path) and other is not None:
        rule, reason = f"S413 must not be {other}, nor in or above it", "the node's own programs and secrets are there"
        yield Finding(place, path, rule, reason, for_example(f"{place.rpartition('.')[2]}: /mnt/nvme/tidemill"))


def stage_source_is_mounted(c: ValidValues) -> Iterator[Finding]:
    """Reject a staging source outside all volumes: pods cannot read it."""
    source: str = c["kubernetes.stage.source"]
    volumes: Volumes = c["kubernetes.volumes"]
    paths = [path for volume in volumes if _is_mountable(path := volume.get("mount_path"))]
    if not is_folder(source) or volume_of(source, volumes) is not None or len(paths) < len(volumes):
        return  # a volume with a wrong path may turn out to hold the source
    rule = "S457 must be in one of kubernetes.volumes"
    if shown := _pod_path(source, volumes):
        reason = "pods see this folder of the node under another path"
        yield Finding("kubernetes.stage.source", source, rule, reason, nearest(shown))
        return
    reason = f"pods see only what volumes mount: {' and '.join(paths)}" if paths else "the spec has no volumes"
    fix = "write a folder below one of these" if paths else f"add the volume that has it, with mount_path: {source}"
    yield Finding("kubernetes.stage.source", source, rule, reason, fix)


def stage_target_is_outside_source(c: ValidValues) -> Iterator[Finding]:
    """Reject a staging target that overlaps its source on the node: files would be copied onto themselves."""
    host_path: str = c["kubernetes.stage.host_path"]
    source: str = c["kubernetes.stage.source"]
    volumes: Volumes = c["kubernetes.volumes"]
    original = _node_path(source, volumes)
    if original is None or not paths_overlap(host_path, original):
        return
    rule = f"S463 must be outside {original}, and not above it"
    reason = f"kubernetes.stage.source ({source}) is at that path on the nodes and would be copied onto itself"
    places = (f"{disk}/{posixpath.basename(source)}" for disk in EXAMPLE_DISKS)
    free = next(place for place in places if not paths_overlap(place, original))
    yield Finding("kubernetes.stage.host_path", host_path, rule, reason, for_example(f"host_path: {free}"))


def staged_checkpoint_path_is_free(c: ValidValues) -> Iterator[Finding]:
    """Reject a staged `model.checkpoint` in a volume or reserved folder: the copy is mounted at that path."""
    checkpoint: str | None = c["model.checkpoint"]
    c.require("kubernetes.stage.source")
    volumes: Volumes = c["kubernetes.volumes"]
    if checkpoint is None:
        return
    if is_folder(checkpoint) and volume_of(checkpoint, volumes) is None:
        if not _is_reserved(checkpoint):
            return
        yield Finding("model.checkpoint", checkpoint, NOT_FREE, RESERVED, for_example("checkpoint: /checkpoint"))
        return
    rule = "S458 must be an absolute path outside kubernetes.volumes when kubernetes.stage is set"
    reason = "pods find the staged copy at this path, and volumes hold the original"
    yield Finding("model.checkpoint", checkpoint, rule, reason, for_example("checkpoint: /checkpoint"))


def _pod_path(path: str, volumes: Volumes) -> str | None:
    """Return the path at which pods see `path`, a folder of a node; None if no volume has it."""
    above = [each for each in volumes if is_in(path, each.get("host_path"))]
    if not above:
        return None
    volume = max(above, key=lambda each: len(each["host_path"]))
    return posixpath.normpath(posixpath.join(volume["mount_path"], posixpath.relpath(path, volume["host_path"])))


def _is_mountable(path: str | None) -> TypeGuard[str]:
    """Return whether `path` is a folder at which pods can mount a volume."""
    return path is not None and is_folder(path) and not _is_reserved(path)


def _node_path(path: str, volumes: Volumes) -> str | None:
    """Return the node's folder that pods see at `path`.

    Return None if no volume or no folder of the node is mounted there, or if a path is wrong.
    """
    index = volume_of(path, volumes)
    host_path = None if index is None else volumes[index].get("host_path")
    if index is None or host_path is None or not (is_folder(path) and is_folder(host_path)):
        return None
    return posixpath.normpath(posixpath.join(host_path, posixpath.relpath(path, volumes[index]["mount_path"])))


def _is_reserved(path: str) -> bool:
    """Return whether `path` is in or above a folder of the pod's own files.

    A read-only volume above such a folder would leave nowhere to mount it.
    """
    return any(paths_overlap(path, mounted) for mounted in names.MOUNTED)


RULES = (
    Rule("S411", "fields", volumes_have_one_source, EACH_VOLUME),
    Rule("S413", "fields", mount_paths_are_free, [f"{volume}.mount_path" for volume in EACH_VOLUME]),
    Rule("S413", "fields", written_folders_are_free, ["kv_cache.disk.path", "kubernetes.stage.host_path"]),
    Rule("S457", "fields", stage_source_is_mounted),
    Rule("S463", "fields", stage_target_is_outside_source),
    Rule("S413 S458", "fields", staged_checkpoint_path_is_free),
)
