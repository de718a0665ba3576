"""The launch file: everything that a unit or the gateway gets before it starts, and the only link to the planner.

It is read once and checked before anything is loaded. An unknown version, an unknown key, or a digest that does not
match the content stops the process, which prints both values. Peers are discovered, never listed here.

The three digests, each over canonical JSON (sorted keys, no spaces, ASCII):
    launch_digest    this file
    unit_digest      the part that all ranks of a unit must have in common
    kv_digest        the part that a prefill and a decode unit must have in common to exchange latent KV

The reader chooses nothing: no defaults, no fallbacks. `tests/contract/launch.schema.json` binds it to the planner.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterable
from itertools import count, takewhile
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from runtime.errors import LaunchError

__all__ = ["GatewayLaunch", "UnitLaunch", "read_gateway_launch", "read_unit_launch"]

MAX_EXPERTS = 2**16  # assumed: more than any model has

AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]

VERSION = 2
MAX_BYTES = 2**26  # the largest DeepSeek-V3 map, 16,640 slots in 58 layers, takes 3.5e6
UNIT_DIGEST_KEYS = (
    *("version", "unit", "phase", "device", "ranks", "places", "spares", "expert_map", "split", "precision"),
    *("overlap", "deterministic", "kv_cache", "model", "checkpoint", "limits"),
)
KV_DIGEST_KEYS = ("kv_cache", "model", "checkpoint")


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the launch file. It is immutable and refuses unknown keys."""


class Model(_Part):
    """The model that is served."""

    name: str


class Checkpoint(_Part):
    """The place of the weights, and the digests of `config.json` and of the manifest, if the plan has them."""

    uri: str
    config_digest: str | None
    weights_digest: str | None


class Disk(_Part):
    """The folder where blocks of the prefix cache outlive processes. `path` is absolute, and the same on all nodes.

    `max_bytes` and `max_files` limit all ranks that share the folder, `bytes_per_s` limits each rank. None means no
    limit.
    """

    path: Annotated[str, msgspec.Meta(pattern="^/")]
    max_bytes: AtLeastOne
    max_files: AtLeastOne | None = None
    bytes_per_s: AtLeastOne | None = None


class Limits(_Part):
    """The limits of one rank. `kv_tokens` is for all its requests together, and suffices for one of full length.

    `host_bytes` is the host memory that blocks of the prefix cache may take. Blocks reach the `disk` through it.
    """

    max_requests: AtLeastOne
    max_request_tokens: AtLeastOne
    max_batch_tokens: AtLeastOne
    kv_tokens: AtLeastOne
    host_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    disk: Disk | None = None


class RankPlace(_Part):
    """The place of a global rank in the unit, and its number among the ranks of that place."""

    place: Annotated[int, msgspec.Meta(ge=0)]
    local_rank: Annotated[int, msgspec.Meta(ge=0)]
    rank: int


class ExpertMap(_Part):
    """The unit's expert map `[num_moe_layers][num_physical_experts]`. Slots are numbered rank by rank."""

    sha256: str
    num_logical_experts: Annotated[int, msgspec.Meta(ge=1, le=MAX_EXPERTS)]
    physical_to_logical: list[list[int]]


class KvLayout(_Part):
    """The form of latent KV on the wire and in memory.

    With `nixl`, a prefill rank writes latents directly into the memory of a decode rank on its machine, as far as that
    rank has room. Otherwise they go over TCP.
    """

    wire_version: Literal[11]
    dtype: Literal["fp32", "bf16"]
    bytes_per_token: AtLeastOne
    transport: Literal["tcp", "nixl"] = "tcp"


class GatewayRef(_Part):
    """The DNS name at which ranks find the gateway."""

    service: str


class UnitTls(_Part):
    """The identity that the gateway must prove if ranks and gateway have certificates."""

    gateway: str


class GatewayTls(_Part):
    """The prefix of units' identities. The unit's name follows it."""

    units: str


class UnitPorts(_Part):
    """The unit's ports. Each local rank has a `kv` and a `metrics` port of its own; these are the first rank's."""

    places: Port
    rendezvous: Port
    kv: Port
    registry: Port
    metrics: Port


class GatewayPorts(_Part):
    """The gateway's ports, all on its one address."""

    http: Port
    registry: Port
    metrics: Port


class UnitLaunch(_Part, kw_only=True):
    """The launch file of one unit. `places` are the planned nodes, `spares` the nodes that may take a place."""

    version: Literal[2]
    kind: Literal["unit"]
    launch_digest: str
    unit_digest: str
    kv_digest: str
    unit: str
    phase: Literal["prefill", "decode", "mixed"]
    device: Literal["cpu", "cuda"]  # PyTorch's name of the kind of device that each rank has
    ranks: list[RankPlace]
    places: list[str]
    spares: list[str]
    expert_map: ExpertMap
    split: Literal["equal", "local_first"]
    precision: Literal["fp32", "bf16", "fp8"]
    overlap: Literal["none", "dual_batch", "five_stage"]
    deterministic: bool
    kv_cache: KvLayout
    model: Model
    checkpoint: Checkpoint
    limits: Limits
    gateway: GatewayRef
    tls: UnitTls
    ports: UnitPorts

    @property
    def local_first_nodes(self) -> list[str] | None:
        """Each rank's node, if tokens prefer near replicas; None otherwise."""
        return [self.places[each.place] for each in self.ranks] if self.split == "local_first" else None

    def place_ranks(self, place: int) -> list[RankPlace]:
        """Return the ranks of a place, in their order."""
        return [each for each in self.ranks if each.place == place]

    def rank_nodes(self) -> list[int]:
        """Return for each rank the number of its place, which stands for its node."""
        return [each.place for each in self.ranks]


class GatewayLaunch(_Part, kw_only=True):
    """The launch file of the gateway.

    `sharing` says whose prompts share cached KV: only prompts of the same API key, or all prompts.
    """

    version: Literal[2]
    kind: Literal["gateway"]
    launch_digest: str
    kv_digest: str
    model: Model
    checkpoint: Checkpoint
    limits: Limits
    max_queued_requests: Annotated[int, msgspec.Meta(ge=0)]
    stall_timeout_s: AtLeastOne  # the seconds that a ready rank may make no step
    # the seconds that a request waits for another rank when it has lost one
    resume_timeout_s: Annotated[int, msgspec.Meta(ge=0)]
    sharing: Literal["tenant", "all"] = "tenant"
    tls: GatewayTls
    ports: GatewayPorts


_Launch = TypeVar("_Launch", UnitLaunch, GatewayLaunch)


def read_unit_launch(path: Path) -> UnitLaunch:
    """Return a unit's launch file, checked. Raises LaunchError if it is missing or wrong."""
    document = _read_json(path)
    launch = _convert(document, UnitLaunch, path)
    _check_digest(path, "unit_digest", launch.unit_digest, {key: document[key] for key in UNIT_DIGEST_KEYS})
    _check_digest(path, "kv_digest", launch.kv_digest, {key: document[key] for key in KV_DIGEST_KEYS})
    _check_digest(path, "expert_map.sha256", launch.expert_map.sha256, launch.expert_map.physical_to_logical)
    _check_ranks(path, launch)
    _check_limits(path, launch.limits)
    _check_kv_dtype(path, launch)
    _check_expert_map(path, launch)
    return launch


def read_gateway_launch(path: Path) -> GatewayLaunch:
    """Return the gateway's launch file, checked. Raises LaunchError if it is missing or wrong."""
    return _convert(_read_json(path), GatewayLaunch, path)


def canonical_digest(value: Any) -> str:
    """Return `sha256:DIGEST` of `value` as canonical JSON."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


def find_slot_fault(layer: int, slots: Iterable[int], experts: Iterable[int]) -> str | None:
    """Return which of the `experts` of a layer has no slot, or which slot's expert is none of them; None if all fit."""
    held, wanted = {*slots}, {*experts}
    for expert in sorted(wanted - held):
        return f"leaves expert {expert} of MoE layer {layer} without a slot"
    for expert in sorted(held - wanted):
        return f"has expert {expert} in MoE layer {layer}, and the model has no such expert"
    return None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(_read_content(path))
    except OSError as error:
        raise LaunchError(f"cannot read the launch file {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise LaunchError(f"the launch file {path} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise LaunchError(f"the launch file {path} is not a JSON object")
    return document


def _read_content(path: Path) -> bytes:
    """Return the file's bytes, or those of its parts PATH.0, PATH.1, ... if it was too large for one ConfigMap."""
    parts = takewhile(Path.exists, (path.with_name(f"{path.name}.{number}") for number in count()))
    content = b""
    for part in (path,) if path.exists() else tuple(parts) or (path,):
        with open(part, "rb", opener=_open_nonblocking) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise LaunchError(f"the launch file {part} is not a regular file, nor a link to one")
            content += file.read(MAX_BYTES + 1 - len(content))
    if len(content) > MAX_BYTES:
        raise LaunchError(f"the launch file {path} has more than {MAX_BYTES} bytes, which no plan needs")
    return content


def _open_nonblocking(path: str, flags: int) -> int:
    """Open a file without waiting, so that a FIFO can be refused. Return its descriptor."""
    return os.open(path, flags | os.O_NONBLOCK)


def _convert(document: dict[str, Any], kind: type[_Launch], path: Path) -> _Launch:
    """Return the launch file's document as an object of type `kind`.

    The version is checked first, since another version's keys would be called unknown.
    """
    if document.get("version") != VERSION:
        raise LaunchError(
            f"the launch file {path} has version {document.get('version')!r}, this runtime reads version {VERSION}"
        )
    without_own_digest = {key: value for key, value in document.items() if key != "launch_digest"}
    _check_digest(path, "launch_digest", document.get("launch_digest"), without_own_digest)
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise LaunchError(f"the launch file {path} is refused: {error}") from None


def _check_digest(path: Path, name: str, written: Any, content: Any) -> None:
    try:
        computed = canonical_digest(content)
    except RecursionError:
        raise LaunchError(f"the launch file {path} is nested too deep") from None
    if written != computed:
        raise LaunchError(f"the launch file {path} was changed: its {name} says {written}, its content is {computed}")


def _check_ranks(path: Path, launch: UnitLaunch) -> None:
    if not launch.ranks:
        raise LaunchError(f"the launch file {path} has no ranks")
    if [place.rank for place in launch.ranks] != list(range(len(launch.ranks))):
        raise LaunchError(f"the launch file {path} does not number its ranks 0 to {len(launch.ranks) - 1} in order")
    if len({(each.place, each.local_rank) for each in launch.ranks}) != len(launch.ranks):
        raise LaunchError(f"the launch file {path} gives one place to two ranks")
    if {each.place for each in launch.ranks} != set(range(len(launch.places))):
        raise LaunchError(f"the launch file {path} does not give ranks to each of its {len(launch.places)} places")
    nodes = [*launch.places, *launch.spares]
    if len(set(nodes)) != len(nodes):
        raise LaunchError(f"the launch file {path} names a node twice among its places and spares")


def _check_limits(path: Path, limits: Limits) -> None:
    if limits.kv_tokens < limits.max_request_tokens:
        raise LaunchError(
            f"the launch file {path} has room for {limits.kv_tokens} tokens of KV,"
            f" a request may have {limits.max_request_tokens}"
        )
    if limits.disk is not None and not limits.host_bytes:
        raise LaunchError(
            f"the launch file {path} has limits.disk and limits.host_bytes 0: blocks reach a disk through host memory,"
            " so host_bytes must be above 0"
        )


def _check_kv_dtype(path: Path, launch: UnitLaunch) -> None:
    kept = "bf16" if launch.precision == "fp8" else launch.precision
    if launch.kv_cache.dtype != kept:
        raise LaunchError(
            f"the launch file {path} has KV in {launch.kv_cache.dtype}, precision {launch.precision} keeps it in {kept}"
        )


def _check_expert_map(path: Path, launch: UnitLaunch) -> None:
    if len({len(slots) for slots in launch.expert_map.physical_to_logical}) != 1:
        raise LaunchError(f"the launch file {path} does not give every MoE layer the same number of slots")
    experts = range(launch.expert_map.num_logical_experts)
    for layer, slots in enumerate(launch.expert_map.physical_to_logical):
        if len(slots) % len(launch.ranks):
            raise LaunchError(
                f"the launch file {path} does not divide its {len(slots)} slots among {len(launch.ranks)} ranks"
            )
        if fault := find_slot_fault(layer, slots, experts):
            raise LaunchError(f"the launch file {path} {fault}")
