"""A day's cost and income in the plan's JSON; US dollars, and null where the spec leaves out what it takes."""

from typing import Any

from planner.cost.cost import DayCost, PhaseCost, StateCost

__all__ = ["cost_json"]


def cost_json(cost: DayCost) -> dict[str, Any]:
    """Return the plan's `cost`."""
    tokens = cost.tokens
    return {
        "usd_per_day": cost.usd,
        "idle_usd_per_day": cost.idle_usd,
        "spares_usd_per_day": cost.spares_usd,
        "usd_per_million_input_tokens": cost.usd_per_million_input_tokens,
        "usd_per_million_output_tokens": cost.usd_per_million_output_tokens,
        "answered_share": tokens.answered if tokens else None,
        "speed_unknown": list(tokens.unknown) if tokens else [],
        "revenue_usd_per_day": tokens.revenue_usd if tokens else None,
        "revenue_if_all_answered_usd_per_day": tokens.asked_usd if tokens else None,
        "margin": cost.margin,
        "markup": cost.markup,
        "phases": {each.phase: _phase_json(each) for each in cost.phases},
        "states": [_state_json(each) for each in cost.states],
        "freed": {"node_hours_per_day": cost.freed_node_hours, "usd_per_day": cost.freed_usd},
        "cache_hits": None
        if cost.hits is None
        else {
            "saved_nodes": cost.hits.saved_nodes,
            "saved_usd_per_day": cost.hits.saved_usd,
            "given_up_usd_per_day": cost.hits.given_up_usd,
        },
        "currency": {"code": cost.currency.code, "per_usd": cost.currency.per_usd} if cost.currency else None,
    }


def _phase_json(phase: PhaseCost) -> dict[str, Any]:
    return {
        "usd_per_day": phase.usd,
        "mean_nodes": phase.mean_nodes,
        "usd_per_million_tokens": phase.usd_per_million_tokens,
    }


def _state_json(state: StateCost) -> dict[str, Any]:
    return {
        "at": state.at,
        "minutes": state.minutes,
        "nodes": state.nodes,
        "spot_nodes": state.spot_nodes,
        "usd": state.usd,
        "usd_per_hour": state.usd_per_hour,
        "input_tokens": state.input_tokens,
        "output_tokens": state.output_tokens,
        "answered_share": state.answered,
        "revenue_usd": state.revenue_usd,
        "margin": state.margin,
    }
