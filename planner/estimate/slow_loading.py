"""A warning about units that are given up while their nodes still read weights.

    time to read = weights of the unit on a node / kubernetes.load_rate

Twice that time is offered for `kubernetes.ready_timeout`, after which the unit is undone; startup probes wait for no
less (`planner/manifests/pods.py`).
"""

from collections.abc import Iterator, Sequence
from math import ceil

from planner.facts.day import DAY_S, MINUTE_S
from planner.facts.quantities import gb
from planner.layout.memory import MemoryPlan, node_bytes
from planner.problems.errors import Violation
from planner.problems.fix import nearest
from planner.spec.check import ResolvedSpec
from planner.spec.kubernetes import KubernetesSpec

__all__ = ["slow_loading"]

BYTES_PER_GBIT = 1e9 / 8
TIMES_READING = 2  # that are offered: other nodes read too, and pods start first; assumed


def slow_loading(spec: ResolvedSpec, memory: Sequence[MemoryPlan]) -> Iterator[Violation]:
    """Yield a `ready_timeout` that ends before the slowest unit's nodes have read their weights.

    A spec without a checkpoint is only planned.
    """
    if not memory or not spec.written.checkpoint:
        return
    kubernetes = spec.written.kubernetes
    most_bytes = max(_node_bytes(spec, plan) for plan in memory)
    reading_s = most_bytes / (kubernetes.load_rate * BYTES_PER_GBIT)
    if reading_s <= kubernetes.ready_timeout:
        return
    rule = f"W151 is less than the {_minutes(reading_s):,} min that a node takes to read its weights"
    reason = f"it reads {gb(int(most_bytes))} at kubernetes.load_rate, and a unit that is not ready by then is an error"
    enough = TIMES_READING * reading_s
    fix = nearest(f"{_minutes(enough)}min") if enough <= DAY_S else "raise load_rate once storage is that fast"
    default = KubernetesSpec.model_fields["ready_timeout"].default
    written = (spec.document.data.get("kubernetes") or {}).get("ready_timeout", default)
    yield Violation("kubernetes.ready_timeout", written, rule, reason, fix)


def _node_bytes(spec: ResolvedSpec, plan: MemoryPlan) -> float:
    section = spec.phase(plan.phase)
    return node_bytes(plan, section.ep_size, section.attention_tp, spec.cluster.gpus_per_node)


def _minutes(seconds: float) -> int:
    return ceil(seconds / MINUTE_S)
