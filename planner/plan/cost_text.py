"""A day's cost and income in the plan's text."""

from collections.abc import Iterator

from planner.cost.cost import DayCost, StateCost
from planner.cost.income import MILLION
from planner.plan.columns import filled, table
from planner.plan.plan import Plan

__all__ = ["cost_text"]

TOKENS_OF = {"prefill": "per million input tokens", "decode": "per million output tokens"}


def cost_text(plan: Plan) -> str:
    """Return the bill of a day, state by state, and what it brings in; empty where the spec says no cost."""
    cost = plan.cost
    if cost is None:
        return ""
    spares = len(plan.spec.cluster.spares)
    parts = ["\n".join([table(list(_rows(cost, spares))), *_notes(cost)])]
    if len(cost.states) > 1:
        parts.append(_states(cost))
    return "\n\n".join(parts)


def _rows(cost: DayCost, spares: int) -> Iterator[tuple[str, ...]]:
    yield "cost", "US$ per day", "mean nodes", "US$"
    for each in cost.phases:
        unit = (
            "" if each.usd_per_million_tokens is None else f"{each.usd_per_million_tokens:.4f} {TOKENS_OF[each.phase]}"
        )
        yield each.phase, f"{each.usd:,.0f}", f"{each.mean_nodes:.2f}", unit
    if cost.spares_usd:
        yield "spares", f"{cost.spares_usd:,.0f}", f"{spares:.2f}", ""
    if cost.idle_usd:
        yield "own, off", f"{cost.idle_usd:,.0f}", "", ""
    mean_nodes = sum(each.mean_nodes for each in cost.phases) + spares  # which are held all day
    yield "all", f"{cost.usd:,.0f}", f"{mean_nodes:.2f}", _of_all(cost)


def _of_all(cost: DayCost) -> str:
    """The whole bill over one kind of token, as services compare themselves."""
    return f"{cost.usd / cost.tokens.output_tokens * MILLION:.4f} {TOKENS_OF['decode']}" if cost.tokens else ""


def _notes(cost: DayCost) -> Iterator[str]:
    tokens, hits = cost.tokens, cost.hits
    if cost.idle_usd:
        yield from filled("own, off: nodes of cost.supplies that are your own are paid while they are off, too.")
    if tokens and tokens.revenue_usd is not None:
        other = ""
        if cost.currency:
            other = f" ({cost.currency.code} {tokens.revenue_usd * cost.currency.per_usd:,.0f})"
        margin = "" if cost.margin is None else f", a margin of {100 * cost.margin:.0f} % on the cost"
        yield from filled(f"Income ${tokens.revenue_usd:,.0f} a day{other}{margin}.")
    if hits:
        less = (
            ""
            if hits.given_up_usd is None
            else f"; charged as misses, the same tokens would bring in ${hits.given_up_usd:,.0f} more"
        )
        saved = f"${hits.saved_usd:,.0f} of prefill a day ({hits.saved_nodes:,.1f} nodes on average)"
        yield from filled(f"Cache hits save {saved}{less}. The disks of the cache are not counted.")
    if cost.freed_node_hours:
        hours, worth = f"{cost.freed_node_hours:,.1f} node-hours a day", f"${cost.freed_usd:,.0f}"
        yield from filled(f"The schedule frees {hours}, worth {worth} if other work uses them.")


def _states(cost: DayCost) -> str:
    spot = ("of spot",) if any(each.spot_nodes for each in cost.states) else ()
    head = ("state", "hours", "nodes", *spot, "US$/hour", "US$", "M input", "M output", "income", "margin")
    return table([head, *(_state_row(each, has_spot=bool(spot)) for each in cost.states)])


def _state_row(state: StateCost, *, has_spot: bool) -> tuple[str, ...]:
    return (
        state.at,
        f"{state.minutes / 60:.2f}",
        str(state.nodes),
        *((str(state.spot_nodes),) if has_spot else ()),
        f"{state.usd_per_hour:,.0f}",
        f"{state.usd:,.0f}",
        "-" if state.input_tokens is None else f"{state.input_tokens / MILLION:,.0f}",
        "-" if state.output_tokens is None else f"{state.output_tokens / MILLION:,.0f}",
        "-" if state.revenue_usd is None else f"{state.revenue_usd:,.0f}",
        "-" if state.margin is None else f"{100 * state.margin:.0f} %",
    )
