"""Predict the layout, memory and speed of one phase with trial sizes, before any placement or expert map exists.

A search does this for thousands of layouts. It uses the speed model of `estimate/throughput`, with the balance of
experts that `estimate/throughput/replicas.py` expects. Latencies are means, as in a plan.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from planner.estimate.case import build_case, unit_shape
from planner.estimate.points import operating_point
from planner.estimate.throughput.copies import expected_copies
from planner.estimate.throughput.predict import Case, mixed_turns, prompt_read_time, saturated_rate, turns_rate
from planner.estimate.throughput.replicas import Balance
from planner.estimate.throughput.turns import SteadyTurns
from planner.estimate.utilisation import with_promised_utilisation
from planner.facts.quantities import MS_PER_S
from planner.facts.terms import Phase
from planner.layout.dispatch import groups_on_nodes
from planner.layout.layout import PhaseLayout, lay_out
from planner.layout.memory import MemoryPlan, split_memory
from planner.spec.resolved import ResolvedSpec
from planner.spec.undecided import is_undecided

Numbers = Mapping[str, int]


@dataclass(frozen=True)
class Speed:
    """The predicted speed of one layout at one load. Prefill's tokens/s count prompt tokens without cache hits."""

    tokens_per_s_per_gpu: float
    tpot_ms: float | None  # None in prefill
    ttft_ms: float | None  # None in decode
    max_over_mean: float  # load of the fullest GPU over the mean


@dataclass(frozen=True)
class Trial:
    """One phase of a spec in which every `auto` of that phase is replaced with a number to try."""

    spec: ResolvedSpec
    phase: Phase

    @cached_property
    def layout(self) -> PhaseLayout:
        """Return the layout of the phase: its numbers of GPUs, nodes and slots."""
        return lay_out(self.spec, self.phase)

    @cached_property
    def memory(self) -> MemoryPlan:
        """Return the memory plan for one GPU of the phase. The memory of its GPU type must be known."""
        return split_memory(self.spec, self.layout)

    @cached_property
    def case(self) -> Case:
        """Return the input of the speed model, with balanced GPUs and the expected number of copies of a token."""
        spec, layout = self.spec, self.layout
        unit = unit_shape(spec, layout)
        on_nodes = groups_on_nodes(spec.model, spec.gpu_of(layout.phase), spec.cluster.gpus_per_node, layout) > 1
        return build_case(
            spec,
            layout,
            operating_point(self._with_most_requests, layout.phase, self.memory.kv_tokens),
            expected_copies(spec.model, unit.num_gpus, unit.num_nodes, groups_on_nodes=on_nodes),
        )

    @property
    def _with_most_requests(self) -> ResolvedSpec:
        """Return the spec, in which an `auto` of prefill's `max_requests` became as many as KV has room for."""
        if self.phase != "prefill" or f"{self.phase}.max_requests" not in self.spec.document.autos:
            return self.spec
        return self.spec.with_numbers(self.phase, {"max_requests": max(self.memory.full_requests, 1)})


def trial_of(spec: ResolvedSpec, phase: Phase, numbers: Numbers, requests: int) -> Trial:
    """Return a trial of `phase` with `numbers` as sizes and `requests` as `max_requests`.

    The number of units does not matter: `units: auto` becomes 1.
    """
    units = {"units": 1} if is_undecided(spec.phase(phase).units) else {}
    return Trial(spec.with_numbers(phase, {**numbers, **units, "max_requests": requests}), phase)


def speed_of(trial: Trial, balance: Balance) -> Speed:
    """Predict the speed of a trial, with the imbalance of GPUs that `balance` estimates."""
    case, unit = trial.case, trial.case.unit
    slots = trial.layout.num_physical_experts
    case = replace(case, imbalance=balance.estimate(slots, unit.num_gpus, unit.num_nodes, case.pairs_per_gpu))
    fullest = case.imbalance.gpus * case.engine.imbalance.get(case.phase, 1.0)  # as in plans
    if case.phase == "mixed":
        return _mixed_speed(case, mixed_turns(case), fullest)
    rate = saturated_rate(case)
    case = with_promised_utilisation(trial.spec, case, rate)
    tpot = None if case.phase == "prefill" else case.point.requests / unit.attention_tp / rate * MS_PER_S
    return Speed(rate * case.point.utilisation, tpot, _ttft_ms(case, rate), fullest)


def _mixed_speed(case: Case, turns: SteadyTurns, fullest: float) -> Speed:
    """Return the speed of a mixed unit by the formulas of `predict.py`. `fullest` is the max/mean load of GPUs."""
    tpot = turns.seconds_per_step / case.point.accepted_tokens
    ttft = case.point.prompt_steps * turns.seconds + turns.mean_wait_s + prompt_read_time(case)
    return Speed(turns_rate(case, turns), tpot * MS_PER_S, ttft * MS_PER_S, fullest)


def _ttft_ms(case: Case, rate: float) -> float | None:
    """Return prefill's mean TTFT in ms: a prompt's wait in the queue, its steps, and the read of its cached KV.

    `rate` is the saturated rate in computed tokens/s per GPU. Returns None for decode.
    """
    if case.phase == "decode":
        return None
    point = case.point
    step = point.step_tokens / case.unit.attention_tp / rate
    return ((point.prompt_steps + point.queued_steps) * step + prompt_read_time(case)) * MS_PER_S
