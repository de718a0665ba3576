"""What a played day comes to: tokens, latencies, node-hours, cost and income.

Nodes cost while they are on, as the plan counts (`planner/cost`), so that a day without failures costs what the plan
says. `node_hours_taken` has those of units that warm up or drain besides. Income is that of prompts that were admitted
and of tokens that were made: requests that are refused bring none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from planner.cost.bill import bill, supplies_of
from planner.cost.cost import margin_of
from planner.cost.day import Stretch, demand_shares
from planner.cost.income import sales_of
from planner.facts.day import DAY_MINUTES, HOUR_MINUTES
from planner.facts.terms import Phase
from planner.plan.estimated import Estimated
from stacks.simulator.curves import Curves
from stacks.simulator.latency import Latencies, latencies_of
from stacks.simulator.service import Service

__all__ = ["Outcome", "demand_of", "outcome_of"]


@dataclass(frozen=True)
class Outcome:
    """A day's totals. Money is US dollars, None where the spec says no cost or no prices."""

    requests: float
    refused: float  # answered with 429
    restarted: float  # computed again after a failure
    cut: float  # whose unit ended its drain before their answer
    output_tokens: float
    latencies: Latencies
    peak_queue: float  # requests that wait for their first token, at most
    peak_kv: float  # share of the KV room, at most
    node_hours: float
    node_hours_taken: float
    peak_nodes: float
    usd: float | None
    revenue_usd: float | None

    @property
    def mean_nodes(self) -> float:
        """Return the nodes that are on, on average."""
        return self.node_hours * HOUR_MINUTES / DAY_MINUTES

    @property
    def margin(self) -> float | None:
        """Return the share of the income that is left after the cost; None without income."""
        return margin_of(self.revenue_usd, self.usd)


def demand_of(plan: Estimated, scale: float = 1.0, date: str | None = None) -> list[float]:
    """Return each minute's share of the requests of a day like most, times `scale`; `date` may be a weekday."""
    traffic = plan.spec.traffic
    assert traffic is not None
    scale *= traffic.day_scale(date)
    minutes = [Stretch(minute, 1) for minute in range(DAY_MINUTES)]
    return [scale * share for share in demand_shares(traffic.profile_on(date), minutes)]


def outcome_of(plan: Estimated, service: Service, curves: Curves) -> Outcome:
    """Return the totals of a day of `plan`."""
    usd, revenue = _money(plan, service, curves)
    return Outcome(
        requests=float(curves.asked.sum()),
        refused=float(curves.refused.sum()),
        restarted=float(curves.restarted.sum()),
        cut=float(curves.cut.sum()),
        output_tokens=float(curves.tokens.sum()),
        latencies=latencies_of(service, curves, plan.spec.slo),
        peak_queue=float(curves.queued_prompts.max()),
        peak_kv=float(curves.kv_used.max()),
        node_hours=float(curves.nodes_on.sum()) / HOUR_MINUTES,
        node_hours_taken=float(curves.nodes_taken.sum()) / HOUR_MINUTES,
        peak_nodes=float(curves.nodes_on.max()),
        usd=usd,
        revenue_usd=revenue,
    )


def _money(plan: Estimated, service: Service, curves: Curves) -> tuple[float | None, float | None]:
    """Return the day's cost and income, minute by minute."""
    cost = plan.spec.cost
    if cost is None:
        return None, None
    minutes = [Stretch(minute, 1) for minute in range(len(curves.asked))]
    supplies = supplies_of(cost, _gpus(plan), plan.spec.cluster.gpu_name)
    nodes = _nodes_by_gpu(plan, service, curves)
    per_node = plan.spec.cluster.gpus_per_node
    usd = fsum(bill(each, nodes[each.start], supplies, per_node).usd for each in minutes)
    if cost.prices is None:
        return usd, None
    prompts = (curves.asked - curves.refused) * service.request.prompt
    hits = prompts * service.cache_hit_rate
    sales = sales_of(cost)
    revenue = fsum(
        each.usd(minute, hits[minute.start], (prompts - hits)[minute.start], curves.tokens[minute.start])
        for minute in minutes
        for each in sales
    )
    return usd, revenue


def _gpus(plan: Estimated) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*plan.spec.gpu_names, plan.spec.cluster.gpu_name)))


def _nodes_by_gpu(plan: Estimated, service: Service, curves: Curves) -> Sequence[dict[str, int]]:
    """Count the nodes of each GPU type that are paid for at each minute; spares are held all day."""
    common, spares = plan.spec.cluster.gpu_name, len(plan.spec.cluster.spares)
    gpus: dict[Phase, str] = {phase: plan.spec.gpu_name(phase) for phase in plan.spec.phases}
    found = []
    for prompts, whole in zip(curves.prompt_nodes_on, curves.nodes_on, strict=True):
        counts = dict.fromkeys(_gpus(plan), 0)
        counts[gpus[service.prompts.phase]] += round(prompts)
        counts[gpus[service.tokens.phase]] += round(whole - prompts)
        counts[common] += spares
        found.append(counts)
    return found
