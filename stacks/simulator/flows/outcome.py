"""The totals of a played day: tokens, latencies, node-hours, cost and income.

Nodes cost while they are on, as in the plan (`planner/cost`), so a day without failures costs what the plan says.
`node_hours_taken` also has the hours of units that warm up or drain. Admitted prompts and tokens made bring income;
refused requests bring none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from planner.compiler import Compiled
from planner.cost.cost import profit_margin
from planner.facts.day import DAY_MINUTES, HOUR_MINUTES
from planner.facts.terms import Phase
from planner.schedule.stretches import Stretch, demand_shares
from stacks.simulator.flows.curves import Curves
from stacks.simulator.flows.latency import Latencies, compute_latencies
from stacks.simulator.flows.service import Service

__all__ = ["Outcome", "compute_outcome", "demand_by_minute"]


@dataclass(frozen=True)
class Outcome:
    """A simulated day's totals. Money is in US dollars, or None if the spec has no costs or no prices."""

    requests: float
    refused: float  # answered with 429
    restarted: float  # requests computed again after a failure
    cut: float  # requests not yet answered when their unit's drain ended
    output_tokens: float
    latencies: Latencies
    peak_queue: float  # the most requests that waited for their first token
    peak_kv: float  # the largest used share of the room for KV
    node_hours: float
    node_hours_taken: float
    peak_nodes: float
    usd: float | None
    revenue_usd: float | None

    @property
    def mean_nodes(self) -> float:
        """The mean number of nodes that are on."""
        return self.node_hours * HOUR_MINUTES / DAY_MINUTES

    @property
    def margin(self) -> float | None:
        """(income - cost) / income; None if there is no income."""
        return profit_margin(self.revenue_usd, self.usd)


def demand_by_minute(plan: Compiled, scale: float = 1.0, date: str | None = None) -> list[float]:
    """Return each minute's requests as a share of a typical day's requests, `[minutes]`, times `scale`.

    `date` is a date or a weekday; None is a typical day.
    """
    traffic = plan.spec.traffic
    assert traffic is not None
    scale *= traffic.day_scale(date)
    minutes = [Stretch(minute, 1) for minute in range(DAY_MINUTES)]
    return [scale * share for share in demand_shares(traffic.profile_on(date), minutes)]


def compute_outcome(plan: Compiled, service: Service, curves: Curves) -> Outcome:
    """Return the totals of a simulated day of `plan`, whose minutes are `curves`."""
    usd, revenue = _cost_and_income(plan, service, curves)
    return Outcome(
        requests=float(curves.asked.sum()),
        refused=float(curves.refused.sum()),
        restarted=float(curves.restarted.sum()),
        cut=float(curves.cut.sum()),
        output_tokens=float(curves.tokens.sum()),
        latencies=compute_latencies(service, curves, plan.spec.slo),
        peak_queue=float(curves.queued_prompts.max()),
        peak_kv=float(curves.kv_used.max()),
        node_hours=float(curves.nodes_on.sum()) / HOUR_MINUTES,
        node_hours_taken=float(curves.nodes_taken.sum()) / HOUR_MINUTES,
        peak_nodes=float(curves.nodes_on.max()),
        usd=usd,
        revenue_usd=revenue,
    )


def _cost_and_income(plan: Compiled, service: Service, curves: Curves) -> tuple[float | None, float | None]:
    """Return the day's (cost, income) in US dollars, added up minute by minute; None for an amount without prices."""
    cost = plan.spec.cost
    if cost is None:
        return None, None
    per_node = plan.spec.cluster.gpus_per_node / HOUR_MINUTES
    usd = fsum(
        number * cost.rate_of(gpu) * per_node
        for counts in _nodes_by_gpu(plan, service, curves)
        for gpu, number in counts.items()
    )
    if cost.prices is None:
        return usd, None
    prompts = (curves.asked - curves.refused) * service.request.prompt
    hits = prompts * service.cache_hit_rate
    return usd, fsum(map(cost.prices.income_usd, hits, prompts - hits, curves.tokens))


def _gpus(plan: Compiled) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*plan.spec.gpu_names, plan.spec.cluster.gpu_name)))


def _nodes_by_gpu(plan: Compiled, service: Service, curves: Curves) -> Sequence[dict[str, int]]:
    """Return GPU type -> number of paid nodes, for each minute. Spares are paid for all day."""
    common, spares = plan.spec.cluster.gpu_name, len(plan.spec.cluster.spares)
    gpus: dict[Phase, str] = {phase: plan.spec.gpu_name(phase) for phase in plan.spec.phases}
    found = []
    for prompts, whole in zip(curves.prompt_nodes_taken, curves.nodes_taken, strict=True):
        counts = dict.fromkeys(_gpus(plan), 0)
        counts[gpus[service.prompts.phase]] += round(prompts)
        counts[gpus[service.tokens.phase]] += round(whole - prompts)
        counts[common] += spares
        found.append(counts)
    return found
