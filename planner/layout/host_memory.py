"""The host memory that a pod's ranks need, as far as a plan knows it.

    pod = ranks on the node x (a rank's cache of prompts' KV in host memory + a process)

Requests whose KV waits outside the GPU use the same memory as this cache, which gives way to them
(`runtime/kv/host_memory.py`), so they add nothing. Ranks on `cpu` have their weights and KV in host memory too; how
much that is, nobody knows before they run.
"""

from collections.abc import Sequence

from planner.facts.terms import Phase
from planner.spec.schema import Spec

# Phases whose ranks compute prompts and keep the prompts' KV. A decode rank receives KV from prefill instead.
KEEPS_KV: Sequence[Phase] = ("prefill", "mixed")
PROCESS_BYTES = 2**29  # a lower bound: importing torch and the runtime on a CPU took 540 MiB


def pod_host_bytes(spec: Spec, phase: Phase, ranks_per_node: int) -> int | None:
    """Return the host memory that a pod of `phase` needs at least; None if its ranks keep no KV there."""
    kept = spec.kv_cache.memory
    return None if kept is None or phase not in KEEPS_KV else ranks_per_node * (kept + PROCESS_BYTES)
