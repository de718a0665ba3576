"""The rules of `kv_cache`: where KV of prompts is kept, and whether nodes and pods have room for it."""

from collections.abc import Iterator
from math import ceil

from planner.facts import names
from planner.facts.quantisation import KV_BYTES, kv_dtype
from planner.facts.quantities import read_bytes
from planner.facts.terms import Phase
from planner.layout.memory import KEEPS_KV, PROCESS_BYTES, round_up_to_pages
from planner.problems.finding import Finding, Unknown
from planner.problems.fix import for_example, nearest
from planner.rules.forms import VOLUMES, is_folder
from planner.rules.rule import Rule
from planner.rules.valid_values import ValidValues
from planner.spec.pods import paths_overlap

MEMORY, DISK = "kv_cache.memory", "kv_cache.disk"
POD_MEMORY = "kubernetes.resources.unit.memory"


def disk_needs_memory(c: ValidValues) -> Iterator[Finding]:
    """Reject `kv_cache.disk` without `kv_cache.memory`: KV reaches the disk only through host memory."""
    c.require(f"{DISK}.path")
    if c[MEMORY] is None:
        reason = "blocks reach the disk through host memory"
        yield Finding(MEMORY, None, "S202 is required with kv_cache.disk", reason, for_example("memory: 48GiB"))


def disk_exceeds_memory(c: ValidValues) -> Iterator[Finding]:
    """Reject a disk smaller than the KV memory of a node's ranks: everything on it would be in memory too."""
    size: str = c[f"{DISK}.size"]
    kept = _kept_bytes(c)
    for phase in KEEPS_KV:
        ranks = _ranks_per_node(c, phase)
        if ranks and (least := ranks * kept) > (read_bytes(size) or 0):
            rule = f"S504 must be at least {_write_size(least)}: {ranks} ranks a node x {MEMORY} ({c[MEMORY]})"
            reason = "what is on the disk is in memory first, so a smaller disk would have nothing that memory lacks"
            yield Finding(f"{DISK}.size", size, rule, reason, nearest(_write_size(least)))


def memory_holds_a_prompt(c: ValidValues) -> Iterator[Finding]:
    """Reject a `kv_cache.memory` too small for the longest prompt: a prompt's KV is loaded from it all at once."""
    kept = _kept_bytes(c)
    for phase in KEEPS_KV:
        tokens, precision = c.get(f"{phase}.max_request_tokens"), c.get(f"{phase}.precision")
        if tokens is None or precision is None:
            continue
        per_token = c.model.kv_bytes_per_token(KV_BYTES[kv_dtype(precision, c.get(f"{phase}.kv_precision"))])
        if (least := round_up_to_pages(tokens) * per_token) > kept:
            rule = f"S504 must be at least {_write_size(least)}, the KV of {tokens:,} tokens"
            reason = f"KV of the longest prompt ({phase}.max_request_tokens) is loaded from there at once"
            yield Finding(MEMORY, c[MEMORY], rule, reason, nearest(_write_size(least)))


def pods_hold_kept_kv(c: ValidValues) -> Iterator[Finding]:
    """Reject a memory limit of pods below what their ranks use to keep KV: the kernel would kill the pods."""
    kept, written = _kept_bytes(c), c[POD_MEMORY]
    for phase in KEEPS_KV:
        ranks = _ranks_per_node(c, phase)
        if ranks and (least := ranks * (kept + PROCESS_BYTES)) > (read_bytes(written) or 0):
            each = f"{c[MEMORY]} of {MEMORY} + {_write_size(PROCESS_BYTES)} for the process"
            rule = f"S504 must be at least {_write_size(least)}: {ranks} ranks a pod x ({each})"
            reason = "the kernel kills a pod that takes more"
            yield Finding(POD_MEMORY, written, rule, reason, nearest(_write_size(least)))


def disk_path_is_free(c: ValidValues) -> Iterator[Finding]:
    """Reject a `kv_cache.disk.path` that overlaps another mount of pods, or a node's folder that a volume mounts."""
    path: str = c[f"{DISK}.path"]
    volumes = [each for where in VOLUMES for each in c.get(where) or ()]
    on_node = [] if c.get("kubernetes.kv_cache_claim") else [volume.get("host_path") for volume in volumes]
    taken = [*names.MOUNTED, *(volume.get("mount_path") for volume in volumes), *on_node]
    if c.get("kubernetes.stage.source") is not None:
        taken.append(c.get("model.checkpoint"))
    other = next((each for each in taken if each and paths_overlap(path, each)), None)
    if is_folder(path) and other is not None:
        fix = for_example("path: /mnt/nvme/kv")
        yield Finding(f"{DISK}.path", path, f"S413 must not be {other}, nor in or above it", "pods mount it", fix)


def _kept_bytes(c: ValidValues) -> int:
    """Return the bytes of host memory in which a rank keeps KV. Raises Unknown if the spec gives no size."""
    kept = read_bytes(c[MEMORY] or "")
    if kept is None:
        raise Unknown(MEMORY)
    return kept


def _ranks_per_node(c: ValidValues, phase: Phase) -> int | None:
    """Return the number of ranks of `phase` on one node; None if the spec lacks the phase or a valid size."""
    ep_size, per_node = c.get(f"{phase}.ep_size"), c.get("cluster.gpus_per_node")
    return None if ep_size is None or per_node is None else min(ep_size, per_node)


def _write_size(num_bytes: int) -> str:
    """Return a number of bytes as a spec writes it, rounded up to MiB, such as `1GiB` or `1536MiB`."""
    amount = ceil(num_bytes / 2**20)
    return f"{amount}MiB" if amount % 1024 else f"{amount // 1024}GiB"


RULES = (
    Rule("S202", "fields", disk_needs_memory),
    Rule("S504", "fields", disk_exceeds_memory),
    Rule("S504", "resolved", memory_holds_a_prompt),
    Rule("S504", "fields", pods_hold_kept_kv),
    Rule("S413", "fields", disk_path_is_free),
)
