"""A fleet that scales with its load as Kubernetes' autoscalers do: the baseline for a planned day.

    desired units = ceil(units that serve x used / target), unless used / target is within 10 % of 1

It scales up at once, at most to twice as many units, and down to the largest number desired in five minutes. A unit
that starts warms up like a planned one before it serves, and one that stops drains. `used` is a phase's busiest
resource: the share of time for prompts, of KV and places for tokens.

KEDA leaves the choice to the horizontal pod autoscaler, whose defaults these are (tolerance 10 %, no stabilisation
upwards, 300 s downwards). AIBrix's APA has the same tolerances, a rate of 2 each way, and cools down for 300 s. Here
the load is looked at once a minute; they look every 15 or 30 s.

Sources: kubernetes.io, HorizontalPodAutoscaler (algorithm, `HPAScalingRules`); keda.sh, ScaledObject specification;
vllm-project/aibrix @4148b7a pkg/controller/podautoscaler/algorithm/apa.go, and its context's defaults.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from planner.facts.day import MINUTE_S
from planner.facts.terms import Phase
from stacks.simulator.flows.fleet import Load, UnitCounts

__all__ = ["ReactiveFleet"]

TOLERANCE = 0.1
MAX_RATE = 2
STABLE_MINUTES = 5
ROUNDING = 1e-9


@dataclass
class _AutoscaledUnits:
    """The units of one phase: how many serve, and when the others will serve or free their nodes."""

    serving: int
    starting: list[int] = field(default_factory=list)  # the minutes at which they will serve
    draining: list[int] = field(default_factory=list)  # the minutes at which their nodes are free
    desired: list[int] = field(default_factory=list)  # the numbers of units desired in the last minutes


@dataclass
class ReactiveFleet:
    """An autoscaler that sets the number of units according to the load of the last minute.

    It keeps its units from one simulated day to the next.
    """

    drain_s: float
    warm_up_s: float
    target: float  # share of a phase's capacity that should be in use
    max_units: Mapping[Phase, int]
    nodes_per_unit: Mapping[Phase, int]
    _clock: int = 0
    _phases: dict[Phase, _AutoscaledUnits] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._phases = {phase: _AutoscaledUnits(number) for phase, number in self.max_units.items()}

    def units_at(self, minute: int, load: Load) -> Mapping[Phase, UnitCounts]:
        """Scale each phase by the load of the last minute. Return phase -> its units."""
        self._clock += 1
        return {phase: self._change(phase, each, load.used[phase]) for phase, each in self._phases.items()}

    def _change(self, phase: Phase, units: _AutoscaledUnits, used: float) -> UnitCounts:
        ready = [at for at in units.starting if at <= self._clock]
        units.serving += len(ready)
        units.starting = [at for at in units.starting if at > self._clock]
        units.draining = [at for at in units.draining if at > self._clock]
        stopped = self._scale(phase, units, used)
        per_unit = self.nodes_per_unit[phase]
        taken = units.serving + len(units.starting) + len(units.draining)
        return UnitCounts(units.serving, stopped, 0, units.serving * per_unit, taken * per_unit)

    def _scale(self, phase: Phase, units: _AutoscaledUnits, used: float) -> int:
        """Start or stop units of one phase, given the fraction of its capacity that is `used`.

        Return how many units stop; 0 if units start.
        """
        there = units.serving + len(units.starting)
        ratio = used / self.target
        wanted = there if abs(ratio - 1) <= TOLERANCE else ceil(units.serving * ratio - ROUNDING)
        wanted = max(1, min(wanted, MAX_RATE * there, self.max_units[phase]))
        units.desired = [*units.desired, wanted][-STABLE_MINUTES:]
        if wanted > there:
            units.starting += [self._clock + ceil(self.warm_up_s / MINUTE_S)] * (wanted - there)
            return 0
        stopped = min(max(there - max(units.desired), 0), units.serving - 1)
        units.serving -= stopped
        units.draining += [self._clock + ceil(self.drain_s / MINUTE_S)] * stopped
        return stopped
