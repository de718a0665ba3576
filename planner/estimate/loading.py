"""Compute how long Kubernetes lets pods take to start, and how long the slowest unit needs to start.

    time to read = weights of the unit on a node / kubernetes.load_rate
    ours         = time to read, and as long again, 10 min at least
    another      = time to read, and as long again, 20 min at least; no less than 30 min or `kubernetes.ready_timeout`

Our pods count as started once they hold their weights, and compile kernels in their first steps. Other engines compile
before they answer. Kubernetes restarts a pod that misses its start budget, with its whole unit. Whoever created a unit
removes it if it is not ready by `kubernetes.ready_timeout`.

Source of the 20 min: sglang 0.5.23 srt/layers/deep_gemm_wrapper/compile_utils.py, which compiles DeepGEMM's kernels in
"typically 10-20 mins". The 30 min are assumed: graphs are captured after that. Published probes wait longer: 45 min in
github.com/llm-d/llm-d 39507f36 guides/wide-ep, 100 min in github.com/ai-dynamo/dynamo ecd29799 recipes/deepseek-r1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from planner.facts.engines import OURS
from planner.facts.quantities import BYTES_PER_GBIT
from planner.facts.terms import EngineName
from planner.layout.memory import MemoryPlan, node_bytes
from planner.spec.kubernetes import KubernetesSpec
from planner.spec.resolved import ResolvedSpec

START_MARGIN_S = 600  # assumed: the leader's pod pulls its image, processes start
COMPILING_S, LEAST_COMPILING_START_S = 1200, 1800


@dataclass(frozen=True)
class SlowestStart:
    """How long the slowest unit takes to start."""

    node_bytes: float  # bytes of weights that one node reads
    reading_s: float  # time to read these bytes
    needed_s: float  # time that the unit should be given before it is expected to be ready


def start_budget_s(kubernetes: KubernetesSpec, engine: EngineName, node_bytes: float) -> int:
    """Return the seconds after which Kubernetes restarts a pod that has not started, if its node reads `node_bytes`."""
    reading_s = _reading_s(kubernetes, node_bytes)
    if engine == OURS:
        return ceil(_with_margin(reading_s, START_MARGIN_S))
    return ceil(max(_expected_start_s(engine, reading_s), kubernetes.ready_timeout))


def slowest_start(spec: ResolvedSpec, memory: Sequence[MemoryPlan]) -> SlowestStart:
    """Return how long units take to start, for the phase with the most bytes of weights per node."""
    most_bytes = max(_node_bytes(spec, plan) for plan in memory)
    reading_s = _reading_s(spec.written.kubernetes, most_bytes)
    return SlowestStart(most_bytes, reading_s, _expected_start_s(spec.written.engine_name, reading_s))


def _reading_s(kubernetes: KubernetesSpec, node_bytes: float) -> float:
    return node_bytes / (kubernetes.load_rate * BYTES_PER_GBIT)


def _expected_start_s(engine: EngineName, reading_s: float) -> float:
    """Return the seconds from a unit's start until it is expected to be ready, if reading weights takes `reading_s`."""
    return reading_s if engine == OURS else max(_with_margin(reading_s, COMPILING_S), LEAST_COMPILING_START_S)


def _with_margin(reading_s: float, margin_s: float) -> float:
    return reading_s + max(reading_s, margin_s)


def _node_bytes(spec: ResolvedSpec, plan: MemoryPlan) -> float:
    """Return the bytes of weights that a node of the plan's phase reads when a unit starts.

    Each rank of an engine other than the bundled runtime is assumed to read its own weights.
    """
    section = spec.phase(plan.phase)
    if spec.written.engine_name != OURS:
        return plan.read_bytes * min(section.ep_size, spec.cluster.gpus_per_node)
    return node_bytes(
        plan.read_bytes, plan.parts["routed"], section.ep_size, section.attention_tp, spec.cluster.gpus_per_node
    )
