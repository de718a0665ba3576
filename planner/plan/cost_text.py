"""A day's cost in the plan's text, and the income of what is answered."""

from collections.abc import Iterator

from planner.cost.cost import DayCost, StateCost, TokensSold
from planner.cost.income import MILLION
from planner.plan.columns import filled, table
from planner.plan.estimated import Estimated

__all__ = ["cost_text"]

ALMOST_ALL = 0.999
TOKENS_OF = {"prefill": "per million input tokens", "decode": "per million output tokens"}


def cost_text(plan: Estimated) -> str:
    """Return the bill of a day, state by state, and what it brings in; empty where the spec says no cost."""
    cost = plan.cost
    if cost is None:
        return ""
    spares = len(plan.spec.cluster.spares)
    parts = ["\n".join([table(list(_rows(cost, spares))), *_which_day(plan), *_notes(cost)])]
    if len(cost.states) > 1:
        parts.append(_states(cost))
    return "\n\n".join(parts)


def _which_day(plan: Estimated) -> list[str]:
    """Say which day is billed, where days differ."""
    differ = any(section is not None and section.other_days for section in (plan.spec.traffic, plan.spec.schedule))
    return filled("This is a day like most: other_days are not billed.") if differ else []


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
    each = cost.usd_per_million_output_tokens
    return "" if each is None else f"{each:.4f} {TOKENS_OF['decode']}"


def _notes(cost: DayCost) -> Iterator[str]:
    tokens, hits = cost.tokens, cost.hits
    if cost.idle_usd:
        yield from filled("own, off: nodes of cost.supplies that are your own are paid while they are off, too.")
    if tokens:
        yield from filled(" ".join([*_answered(tokens), *_income(cost, tokens)]))
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


def _answered(tokens: TokensSold) -> Iterator[str]:
    """Say which part of the traffic is answered, where that is not all of it or not known."""
    if tokens.unknown:
        yield (
            f"The speed of {' and '.join(tokens.unknown)} is not known, so all tokens count as answered that come "
            "while a unit of each phase is on."
        )
    if tokens.answered < 1:
        yield (
            f"Of the day's tokens {_share(tokens.answered)} are answered; the others come when units are full or off, "
            "and are refused. Costs per token are of those that are answered."
        )


def _share(answered: float) -> str:
    """Return a share in per cent; less than all is never 100.0%."""
    return f"{answered:.1%}" if answered == 1 or answered < ALMOST_ALL else f">{ALMOST_ALL:.1%}"


def _income(cost: DayCost, tokens: TokensSold) -> Iterator[str]:
    if tokens.revenue_usd is None or tokens.asked_usd is None:
        return
    other = f" ({cost.currency.code} {tokens.revenue_usd * cost.currency.per_usd:,.0f})" if cost.currency else ""
    yield f"Income is ${tokens.revenue_usd:,.0f} a day{other}."
    if tokens.answered < 1:
        yield f"All of the traffic would bring in ${tokens.asked_usd:,.0f}."
    if cost.margin is not None and cost.markup is not None:
        yield f"The margin is {cost.margin:.1%} of the income; the markup is {cost.markup:.0%} of the cost."


def _states(cost: DayCost) -> str:
    spot = ("of spot",) if any(each.spot_nodes for each in cost.states) else ()
    is_full = any(each.answered < 1 for each in cost.states)
    answered = ("answered",) if is_full else ()
    head = ("state", "hours", "nodes", *spot, "US$", "M in", "M out", *answered, "income", "margin")
    rows = [head, *(_state_row(each, has_spot=bool(spot), is_full=is_full) for each in cost.states)]
    of_them = "; answered is the share of them that is not refused" if is_full else ""
    return "\n".join(
        [table(rows), *filled(f"M in and M out are millions of input and output tokens that are asked for{of_them}.")]
    )


def _state_row(state: StateCost, *, has_spot: bool, is_full: bool) -> tuple[str, ...]:
    return (
        state.at,
        f"{state.minutes / 60:.2f}",
        str(state.nodes),
        *((str(state.spot_nodes),) if has_spot else ()),
        f"{state.usd:,.0f}",
        "-" if state.input_tokens is None else f"{state.input_tokens / MILLION:,.0f}",
        "-" if state.output_tokens is None else f"{state.output_tokens / MILLION:,.0f}",
        *((_share(state.answered),) if is_full else ()),
        "-" if state.revenue_usd is None else f"{state.revenue_usd:,.0f}",
        "-" if state.margin is None else f"{state.margin:.1%}",
    )
