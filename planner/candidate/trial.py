"""One phase of a candidate, before it is placed and balanced: its shape, its memory, and how fast it would be.

A search asks it of a thousand layouts. The point is that of `estimate/case.py`, the time that of `estimate/throughput`;
balance is foreseen by its `replicas.py`. The latencies are the means that a plan predicts too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from planner.estimate.case import case_of, unit_shape
from planner.estimate.points import operating_point
from planner.estimate.throughput.copies import expected_copies
from planner.estimate.throughput.predict import Case, prompt_reading, rate_of_turns, saturated_rate, turns_at
from planner.estimate.throughput.replicas import Balance
from planner.estimate.throughput.turns import SteadyTurns
from planner.estimate.utilisation import as_full_as_promised
from planner.facts.quantities import MS_PER_S
from planner.facts.terms import Phase
from planner.layout.dispatch import groups_on_nodes
from planner.layout.layout import PhaseLayout, lay_out
from planner.layout.memory import MemoryPlan, split_memory
from planner.spec.resolved import ResolvedSpec
from planner.spec.undecided import is_undecided

__all__ = ["Numbers", "Speed", "Trial", "speed_of", "trial_of"]


Numbers = Mapping[str, int]


@dataclass(frozen=True)
class Speed:
    """One layout at one load; rates of prefill count computed tokens."""

    tokens_per_s_per_gpu: float
    tpot_ms: float | None  # none in prefill
    ttft_ms: float | None  # none in decode
    max_over_mean: float


@dataclass(frozen=True)
class Trial:
    """One phase of a candidate, with numbers for every field of it."""

    spec: ResolvedSpec
    phase: Phase

    @cached_property
    def layout(self) -> PhaseLayout:
        """Return the shape of the phase."""
        return lay_out(self.spec, self.phase)

    @cached_property
    def memory(self) -> MemoryPlan:
        """Return a GPU of the phase, whose memory is known."""
        return split_memory(self.spec, self.layout)

    @cached_property
    def case(self) -> Case:
        """Return what is asked of `estimate/throughput`. Without a map, GPUs are equally full and copies expected."""
        spec, layout = self.spec, self.layout
        unit = unit_shape(spec, layout)
        on_nodes = groups_on_nodes(spec.model, spec.gpu_of(layout.phase), spec.cluster.gpus_per_node, layout) > 1
        return case_of(
            spec,
            layout,
            operating_point(spec, layout.phase, self.memory.kv_tokens),
            expected_copies(spec.model, unit.num_gpus, unit.num_nodes, groups_on_nodes=on_nodes),
        )


def trial_of(spec: ResolvedSpec, phase: Phase, numbers: Numbers, requests: int) -> Trial:
    """Return the layout with `numbers` and so many requests; units do not matter to one of them."""
    units = {"units": 1} if is_undecided(spec.phase(phase).units) else {}
    return Trial(spec.trying(phase, {**numbers, **units, "max_requests": requests}), phase)


def speed_of(trial: Trial, balance: Balance) -> Speed:
    """Return how fast a layout is whose GPUs are as full as `balance` foresees."""
    case, unit = trial.case, trial.case.unit
    slots = trial.layout.num_physical_experts
    case = replace(case, imbalance=balance.of(slots, unit.num_gpus, unit.num_nodes, case.pairs_per_gpu))
    fullest = case.imbalance.gpus * case.engine.imbalance.get(case.phase, 1.0)  # as a plan tells it
    if case.phase == "mixed":
        return _speed_of_turns(case, turns_at(case), fullest)
    rate = saturated_rate(case)
    case = as_full_as_promised(trial.spec, case, rate)
    tpot = None if case.phase == "prefill" else case.point.requests / unit.attention_tp / rate * MS_PER_S
    return Speed(rate * case.point.utilisation, tpot, _ttft_ms(case, rate), fullest)


def _speed_of_turns(case: Case, turns: SteadyTurns, fullest: float) -> Speed:
    """Return the speed of a mixed unit, as `predict.py` has it."""
    tpot = turns.seconds_per_step / case.point.accepted_tokens
    ttft = case.point.prompt_steps * turns.seconds + turns.wait + prompt_reading(case)
    return Speed(rate_of_turns(case, turns), tpot * MS_PER_S, ttft * MS_PER_S, fullest)


def _ttft_ms(case: Case, rate: float) -> float | None:
    """Return the mean time of a prompt's steps and of the queue before them, as `predict.py` has it."""
    if case.phase == "decode":
        return None
    point = case.point
    step = point.step_tokens / case.unit.attention_tp / rate
    return ((point.prompt_steps + point.queued_steps) * step + prompt_reading(case)) * MS_PER_S
