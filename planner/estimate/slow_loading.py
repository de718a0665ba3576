"""The time that a unit's pods get to start, and a warning about units that are given up before it has passed.

    time to read = weights of the unit on a node / kubernetes.load_rate
    ours         = time to read, and as long again, 10 min at least
    another      = time to read, and as long again, 20 min at least; no less than 30 min or `kubernetes.ready_timeout`

Our pods have started once they hold their weights, and compile kernels in their first steps. Other engines compile
before they answer. A pod that has not started in its time is started again, with its whole unit. A unit that is not
ready by `kubernetes.ready_timeout` is undone by whoever made it.

Source of the 20 min: sglang 0.5.23 srt/layers/deep_gemm_wrapper/compile_utils.py, which compiles DeepGEMM's kernels in
"typically 10-20 mins". The 30 min are assumed: graphs are captured after that. Published probes wait longer: 45 min in
github.com/llm-d/llm-d 39507f36 guides/wide-ep, 100 min in github.com/ai-dynamo/dynamo ecd29799 recipes/deepseek-r1.
"""

from collections.abc import Iterator, Sequence
from math import ceil

from planner.facts.day import DAY_S, MINUTE_S
from planner.facts.engines import OURS
from planner.facts.quantities import gb
from planner.facts.terms import EngineName
from planner.layout.memory import MemoryPlan, node_bytes
from planner.problems.finding import Finding
from planner.problems.fix import nearest
from planner.spec.check import ResolvedSpec
from planner.spec.kubernetes import KubernetesSpec

__all__ = ["slow_loading", "start_budget_s"]

BYTES_PER_GBIT = 1e9 / 8
TIMES_READING = 2  # that are offered: other nodes read too, and pods start first; assumed
START_MARGIN_S = 600  # assumed: the leader's pod pulls its image, processes start
COMPILING_S, LEAST_COMPILING_START_S = 1200, 1800


def start_budget_s(kubernetes: KubernetesSpec, engine: EngineName, node_bytes: float) -> int:
    """Return the seconds that a pod gets to start whose node reads `node_bytes` of weights."""
    reading_s = _reading_s(kubernetes, node_bytes)
    if engine == OURS:
        return ceil(_with_margin(reading_s, START_MARGIN_S))
    return ceil(max(_needed_s(engine, reading_s), kubernetes.ready_timeout))


def slow_loading(spec: ResolvedSpec, memory: Sequence[MemoryPlan]) -> Iterator[Finding]:
    """Yield a `ready_timeout` that ends before the slowest unit's pods may have started.

    A spec without a checkpoint is only planned.
    """
    if not memory or not spec.written.checkpoint:
        return
    kubernetes, engine = spec.written.kubernetes, spec.written.engine_name
    most_bytes = max(_node_bytes(spec, plan) for plan in memory)
    reading_s = _reading_s(kubernetes, most_bytes)
    needed_s = _needed_s(engine, reading_s)
    if needed_s <= kubernetes.ready_timeout:
        return
    reads = f"reads {gb(int(most_bytes))} at kubernetes.load_rate"
    if engine == OURS:
        rule = f"W151 is less than the {_minutes(reading_s):,} min that a node takes to read its weights"
        reason = f"it {reads}, and a unit that is not ready by then is an error"
    else:
        rule = f"W151 is less than the {_minutes(needed_s):,} min that a pod of {engine} gets to start"
        reason = f"it {reads} and compiles kernels, and a unit that is not ready by then is an error"
    enough = max(needed_s, TIMES_READING * reading_s)
    fix = nearest(f"{_minutes(enough)}min") if enough <= DAY_S else "raise load_rate once storage is that fast"
    default = KubernetesSpec.model_fields["ready_timeout"].default
    written = (spec.document.data.get("kubernetes") or {}).get("ready_timeout", default)
    yield Finding("kubernetes.ready_timeout", written, rule, reason, fix)


def _reading_s(kubernetes: KubernetesSpec, node_bytes: float) -> float:
    return node_bytes / (kubernetes.load_rate * BYTES_PER_GBIT)


def _needed_s(engine: EngineName, reading_s: float) -> float:
    """Return the time before which a unit may well not be ready."""
    return reading_s if engine == OURS else max(_with_margin(reading_s, COMPILING_S), LEAST_COMPILING_START_S)


def _with_margin(reading_s: float, margin_s: float) -> float:
    return reading_s + max(reading_s, margin_s)


def _node_bytes(spec: ResolvedSpec, plan: MemoryPlan) -> float:
    """Return what a node reads: of other engines each rank reads for itself, which is what their pods get time for."""
    section = spec.phase(plan.phase)
    if spec.written.engine_name != OURS:
        return plan.weight_bytes * min(section.ep_size, spec.cluster.gpus_per_node)
    return node_bytes(
        plan.weight_bytes, plan.parts["routed"], section.ep_size, section.attention_tp, spec.cluster.gpus_per_node
    )


def _minutes(seconds: float) -> int:
    return ceil(seconds / MINUTE_S)
