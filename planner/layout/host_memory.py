"""The host memory of a pod's ranks, as far as a plan knows it.

    pod = ranks on the node x (what each keeps of prompts' KV + what a process takes)

In a rank, requests whose KV waits outside the GPU share the memory of kept KV, which gives way to them
(`runtime/kv/host_memory.py`). So they add nothing. Weights and KV of ranks on `cpu` lie in host memory too; nobody
knows how much that is before they run.
"""

from collections.abc import Sequence

from planner.facts.terms import Phase
from planner.spec.schema import Spec

__all__ = ["KEEPS_KV", "PROCESS_BYTES", "pod_host_bytes"]

# Phases whose ranks compute prompts, and so keep their KV. A decode rank is sent all that its own cache lacks.
KEEPS_KV: Sequence[Phase] = ("prefill", "mixed")
PROCESS_BYTES = 2**29  # at least: torch and the runtime, imported on a CPU, took 540 MiB


def pod_host_bytes(spec: Spec, phase: Phase, ranks_per_node: int) -> int | None:
    """Return what a pod of `phase` needs at least; None if its ranks keep no KV in host memory."""
    kept = spec.kv_cache.memory
    return None if kept is None or phase not in KEEPS_KV else ranks_per_node * (kept + PROCESS_BYTES)
