"""Split a launch file into parts that fit into ConfigMaps. A small file has one part, the file itself.

A phase's units share one expert map, which is nearly all of each launch file: 65 of 68 kB for DeepSeek-V3 on 144 GPUs.
A map of that size has its own ConfigMap, once for the phase, and each unit's ConfigMap has the rest of its file. Pods
mount both into one folder, as FILE.0 and FILE.1, and the runtime reads FILE.0 and FILE.1 as one text.

The API server accepts at most 1 MiB of data in a ConfigMap; 2,304 slots in 58 layers are 468 KiB. Larger text is split
between lines into more parts. Nothing is compressed, because zlib's output depends on its version, and a plan must have
the same bytes on any machine.

Pods of another engine mount the launch file without its map, so that a changed file restarts them. They also mount the
map in the engine's format, if it reads one.

Source of the limit: kubernetes 1.36, pkg/apis/core/validation/validation.go, ValidateConfigMap: the values of `data`
and `binaryData` together may have MaxSecretSize bytes (pkg/apis/core/types.go). A request may have more: 3 MiB by the
API server, 1.5 MiB by etcd.
"""

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from planner.engines.edge import EDGE_FILE
from planner.facts import names
from planner.facts.digest import digest_of_text, pretty_json
from planner.facts.engines import OURS
from planner.facts.map_files import export_map
from planner.facts.terms import Phase
from planner.layout.unit import Unit
from planner.plan.launch import LaunchDocument, strip_map
from planner.plan.plan import Plan

MAX_PART_BYTES = 1_000_000  # the API server allows 1,048,576
MIN_SHARED_BYTES = 16_384  # assumed: people can read a file with a smaller map, and copies of the map cost little
SHARED_KEY = "expert-map"  # in the ConfigMap; each unit mounts it under the name of a part of its own file


@dataclass(frozen=True)
class LaunchPart:
    """The part of a launch file that one ConfigMap holds: its `text`, under the key `file`."""

    owner: str  # names the manifest's file (`Manifest.owner`)
    config: str  # the ConfigMap's name
    file: str
    text: str


def gateway_parts(plan: Plan) -> tuple[LaunchPart, ...]:
    """Return the parts of the launch file of the gateway, or of another engine's router.

    If a proxy stands before the router, the parts of the proxy's configuration follow.
    """
    owner, file = names.gateway_name(plan.name), names.GATEWAY_LAUNCH_FILE
    document = plan.launch_documents[file]
    launch = file_parts(owner, file, document["launch_digest"], pretty_json(document))
    edge = document.get("container", {}).get("edge")
    if edge is None:
        return launch
    return launch + file_parts(f"{owner}-edge", EDGE_FILE, digest_of_text(edge["config"]), edge["config"])


def map_parts(plan: Plan, phase: Phase) -> tuple[LaunchPart, ...]:
    """Return the parts of the expert map that all units of a phase share.

    The result is empty if the map is small, so that each launch file holds it, or if another engine reads no map.
    """
    document = plan.unit_document(plan.units_of(phase)[0])
    owner = names.phase_map(plan.name, phase)
    if plan.engine != OURS:
        return tuple(_engine_map(plan, owner, document))
    text = pretty_json({"expert_map": document["expert_map"]})
    if len(text) < MIN_SHARED_BYTES:
        return ()
    pieces = _split_lines(text.removeprefix("{\n"))  # this follows the part that each unit has for itself
    return tuple(_numbered(owner, SHARED_KEY, digest_of_text(text), pieces))


def unit_parts(plan: Plan, unit: Unit, shared: Sequence[LaunchPart]) -> tuple[LaunchPart, ...]:
    """Return the parts of a unit's launch file without `shared`, the parts that all units of its phase share."""
    document, file = plan.unit_document(unit), names.launch_file(unit.name)
    digest = document["launch_digest"]
    if plan.engine != OURS:
        return file_parts(unit.name, file, digest, pretty_json(strip_map(document)))
    if not shared:
        return file_parts(unit.name, file, digest, pretty_json(document))
    own = pretty_json({key: value for key, value in document.items() if key != "expert_map"})
    return tuple(_numbered(unit.name, file, digest, _split_lines(own.removesuffix("\n}\n") + ",\n")))


def config_mounts(
    plan: Plan, unit: Unit, own: Sequence[LaunchPart], shared: Sequence[LaunchPart]
) -> list[dict[str, Any]]:
    """Return the ConfigMaps that a unit's pods mount: {name}, or {name, key, path} to mount file `key` as `path`.

    Pods start without a ConfigMap that is `optional`. Its file appears once the controller has written it.
    """
    if plan.engine != OURS:
        return [{"name": part.config} for part in (*own, *shared)]
    file = names.launch_file(unit.name)
    continued = enumerate(shared, start=len(own))
    behind = [{"name": part.config, "key": part.file, "path": f"{file}.{number}"} for number, part in continued]
    epoch = [{"name": names.epoch_config(unit.name), "optional": True}] if plan.gets_epochs(unit) else []
    return [{"name": part.config} for part in own] + behind + epoch


def file_parts(owner: str, file: str, digest: str, text: str) -> tuple[LaunchPart, ...]:
    """Return the parts of a file: one part with all of it or, if a ConfigMap is too small, FILE.0, FILE.1 and so on."""
    pieces = list(_split_lines(text))
    if len(pieces) == 1:
        return (LaunchPart(owner, names.launch_config(owner, digest), file, text),)
    return tuple(_numbered(owner, file, digest, pieces))


def _numbered(owner: str, file: str, digest: str, pieces: Iterable[str]) -> Iterator[LaunchPart]:
    for number, piece in enumerate(pieces):
        yield LaunchPart(
            owner=f"{owner}-part-{number}" if number else owner,
            config=names.launch_config(owner, digest, number),
            file=f"{file}.{number}",
            text=piece,
        )


def _engine_map(plan: Plan, owner: str, document: LaunchDocument) -> Iterator[LaunchPart]:
    """Yield the parts of the expert map in another engine's format; none if the engine reads no map."""
    path = document["container"].get("map_file")
    if path is None:
        return
    expert_map = document["expert_map"]
    assert plan.engine == "sglang"  # the only engine to which we give a `map_file`
    text = export_map(plan.engine, expert_map["physical_to_logical"], len(document["ranks"]), expert_map["first_layer"])
    yield from file_parts(owner, posixpath.basename(path), digest_of_text(text), text)


def _split_lines(text: str) -> Iterator[str]:
    """Yield `text` in pieces of whole lines, each as long as fits into a ConfigMap."""
    assert text.isascii()  # so that a character is a byte
    lines: list[str] = []
    size = 0
    for line in text.splitlines(keepends=True):
        assert len(line) <= MAX_PART_BYTES  # a map has one line per layer
        if size + len(line) > MAX_PART_BYTES:
            yield "".join(lines)
            lines, size = [], 0
        lines.append(line)
        size += len(line)
    yield "".join(lines)
