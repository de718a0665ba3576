"""Metrics of each phase's load and of units with a straggler, for autoscalers and operators.

The sums are over the ranks of ready units, in the balancers' quantities (`rank_load.py`). The event loop samples them,
because a scrape runs on a thread of its own.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from runtime.gateway.ranks.rank_load import sum_works
from runtime.gateway.ranks.registry import Unit

__all__ = ["PhaseLoads"]

LOOK_S = 1.0  # assumed: scrapes come every few seconds
PHASE_METRICS = {
    "phase_ready_units": "Units that are ready.",
    "phase_requests": "Requests of their ranks; of prefill, those without a token yet.",
    "phase_prompt_tokens": "Prompt tokens of these requests that are not computed yet.",
    "phase_kv_tokens": "Tokens of KV that these requests are expected to need, in whole pages.",
}
STRAGGLER = "unit_straggler"
REFUSED = "unit_refused"


class PhaseLoads(Collector):
    """The loads of one model's phases, as last sampled."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._phases: dict[str, Sequence[float]] = {}  # in the order of PHASE_METRICS
        self._stragglers: dict[str, float] = {}  # unit -> how many times longer its slow rank takes
        self._refused: dict[str, float] = {}  # unit -> 1

    async def follow(self, units: Callable[[], Iterable[Unit]]) -> None:
        """Sample the loads of the units at intervals, until cancelled."""
        while True:
            self.sample(units())
            await asyncio.sleep(LOOK_S)

    def sample(self, units: Iterable[Unit]) -> None:
        """Sum up the present load of each phase with ready units, and find the units with a straggler."""
        units = list(units)
        ready = [unit for unit in units if unit.is_ready]
        self._phases = {
            phase: _sum_loads([unit for unit in ready if unit.phase == phase])
            for phase in sorted({unit.phase for unit in ready})
        }
        slow = {unit.name: unit.straggler for unit in ready}
        self._stragglers = {name: straggler[1] for name, straggler in slow.items() if straggler is not None}
        self._refused = {unit.name: 1.0 for unit in units if unit.refusal is not None}

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the loads as last sampled."""
        phases, stragglers, refused = self._phases, self._stragglers, self._refused
        for index, (name, meaning) in enumerate(PHASE_METRICS.items()):
            yield self._family(name, meaning, "phase", {phase: values[index] for phase, values in phases.items()})
        yield self._family(STRAGGLER, "How many times longer than its peers a slow rank takes.", "unit", stragglers)
        yield self._family(
            REFUSED,
            "1 for a unit that gets no requests: it loaded other weights or another tokenizer.",
            "unit",
            refused,
        )

    def _family(self, name: str, meaning: str, label: str, values: dict[str, float]) -> Metric:
        family = GaugeMetricFamily(f"tidemill_{name}", meaning, labels=["model_name", label])
        for key, value in values.items():
            family.add_metric([self._model_name, key], value)
        return family


def _sum_loads(units: Sequence[Unit]) -> Sequence[float]:
    work = sum_works(rank.load.work for unit in units for rank in unit.ranks)
    return len(units), work.num_requests, work.prompt_tokens, work.kv_tokens
