"""Weigh a new expert map: what it gains against what its restarts cost, in the plan's own figures.

    lost      GPU-hours = GPUs of the units that restart x minutes that a restart takes / 60
    gained    GPUs      = sum over phases of (tokens/s with the new map / tokens/s with the present one - 1) x its GPUs
    payback   hours     = lost / gained

Both maps are judged under the new loads. A GPU is the common measure of prefill and decode, whose tokens are not alike.
A change that restarts nobody is worth any gain. Nothing is said of answers that the restart interrupts: the verdict of
the change says that.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from planner.diff.change import ENDING_FATES, Change
from planner.diff.rollout import rollout_s
from planner.facts.day import HOUR_MINUTES, MINUTE_S
from planner.facts.quantities import counted
from planner.facts.terms import Phase
from planner.plan.plan import Plan

__all__ = ["PAYBACK_HOURS", "Worth", "weigh_maps"]

PAYBACK_HOURS = 24.0  # assumed: measured loads describe a day; --payback gives another


@dataclass(frozen=True)
class Worth:
    """What new expert maps gain and cost. `why_unknown` is empty if both are known."""

    rates: Mapping[Phase, tuple[float, float]]  # tokens/s of a GPU, with the present map and with the new one
    gained_gpus: float
    lost_gpu_hours: float
    restarts: int
    restart_minutes: int
    read_bytes: int
    most_hours: float  # the longest acceptable payback
    why_unknown: str = ""

    @property
    def hours(self) -> float:
        """The hours after which the gain makes up for the restarts; infinite without a gain."""
        return self.lost_gpu_hours / self.gained_gpus if self.gained_gpus > 0 else float("inf")

    @property
    def is_enough(self) -> bool:
        """Whether the gain makes up for the restarts within `most_hours`. False if either is unknown."""
        return not self.why_unknown and self.hours <= self.most_hours

    def lines(self) -> list[str]:
        """Return the gain, the cost and the comparison, a line each."""
        if self.why_unknown:
            return [f"nobody can tell what new maps gain: {self.why_unknown}"]
        rates = (
            f"{phase} {old:,.0f} -> {new:,.0f} tokens/s per GPU ({new / old - 1:+.2%})"
            for phase, (old, new) in self.rates.items()
        )
        costs = (
            f"{counted(self.restarts, 'restart')} of {self.restart_minutes} min, "
            f"{self.read_bytes / 1e9:,.0f} GB read, {self.lost_gpu_hours:,.1f} GPU-hours lost"
        )
        return [f"gain: {', '.join(rates)}", f"cost: {costs if self.restarts else 'no unit restarts'}", self._verdict()]

    def _verdict(self) -> str:
        if self.gained_gpus <= 0:
            return "not worth it: the new maps make no more tokens/s than the present ones would"
        word = "worth it" if self.is_enough else "not worth it"
        gained = f"the gain equals {self.gained_gpus:,.2f} more GPUs"
        return f"{word}: {gained} and pays for the restarts in {self.hours:,.1f} h (at most {self.most_hours:g} h)"


def weigh_maps(before: Plan, plan: Plan, change: Change, most_hours: float) -> Worth:
    """Compare the gain and the cost of a new plan's expert maps.

    `before` is the plan that runs, with its figures for the new loads, and `change` leads from `before` to `plan`. The
    new maps are worth it if their gain makes up for the restarts within `most_hours`.
    """
    restarting = [each for each in change.units if each.phase in plan.phases and each.change in ENDING_FATES]
    minutes = ceil(rollout_s(plan, plan, restarting, in_turns=False) / MINUTE_S)
    if change.loads is not None and change.loads.figures_before == "before":
        return _unknown("what the present maps make of the new loads is unknown", most_hours)
    kept, new = _rates(before), _rates(plan)
    if kept.keys() != plan.phases.keys() or new.keys() != kept.keys():
        return _unknown("the plan predicts no tokens/s for a phase", most_hours)
    restarted = Counter(each.phase for each in restarting)
    return Worth(
        rates={phase: (kept[phase], new[phase]) for phase in new},
        gained_gpus=sum((new[phase] / kept[phase] - 1) * _num_gpus(plan, phase) for phase in new),
        lost_gpu_hours=sum(restarted[phase] * plan.phases[phase].ep_size for phase in new) * minutes / HOUR_MINUTES,
        restarts=len(restarting),
        restart_minutes=minutes,
        read_bytes=change.weights.bytes,
        most_hours=most_hours,
    )


def _unknown(why: str, most_hours: float) -> Worth:
    return Worth({}, 0.0, 0.0, 0, 0, 0, most_hours, why)


def _rates(plan: Plan) -> dict[Phase, float]:
    rates = {phase: each.tokens_per_s_per_gpu for phase, each in (plan.performance or {}).items()}
    return {phase: rate.mid for phase, rate in rates.items() if rate is not None}


def _num_gpus(plan: Plan, phase: Phase) -> int:
    return plan.phases[phase].ep_size * len(plan.units_of(phase))
