"""What a search for layouts found, in the plan's text: the fastest, why another was taken, and what was out."""

from collections.abc import Iterator, Sequence

from planner.facts.terms import Phase
from planner.plan.columns import filled, table, wrapped
from planner.plan.estimated import Estimated
from planner.search.front import FrontPoint
from planner.search.layouts import PhaseSearch, Ranked
from planner.search.speed import Numbers

__all__ = ["search_text"]

LATENCIES: dict[Phase, tuple[str, ...]] = {"prefill": ("TTFT",), "decode": ("TPOT",), "mixed": ("TPOT", "TTFT")}
MAX_FRONT = 8  # points of a front; of more, some between are left out


def search_text(plan: Estimated) -> str:
    """Return the candidates of each phase that speed decided; empty where it decided none."""
    return "\n\n".join(_phase(each) for each in plan.search.phases) if plan.search else ""


def _phase(search: PhaseSearch) -> str:
    names = LATENCIES[search.phase]
    head = ("EP x TP", "redundant", "requests", "node tokens/s", *names, "why not")
    rows = [(search.phase, *head), *(_row(each, names) for each in search.ranked)]
    return "\n".join([wrapped(rows), *_lost(search), *_front(search)])


def _row(ranked: Ranked, names: Sequence[str]) -> tuple[str, ...]:
    numbers, speed = ranked.candidate.numbers, ranked.candidate.speed
    latencies = {"TPOT": speed.tpot_ms, "TTFT": speed.ttft_ms}
    return (
        "chosen" if ranked.why_not is None else "",
        f"{numbers['ep_size']} x {numbers['attention_tp']}",
        f"+{numbers['redundant_experts']}",
        str(numbers["max_requests"]),
        f"{ranked.candidate.tokens_per_s_per_node:,.0f}",
        *(_ms(latencies[name]) for name in names),
        ranked.why_not or "",
    )


def _ms(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:,.1f}" if milliseconds < 1000 else f"{milliseconds:,.0f}"


def _lost(search: PhaseSearch) -> Iterator[str]:
    out = [
        f"{number} by {why} (EP{each.numbers['ep_size']}: {each.detail})" for why, (number, each) in search.lost.items()
    ]
    told = f"; rejected: {', '.join(out)}" if out else ""
    tried = "1 layout was" if search.tried == 1 else f"{search.tried} layouts were"
    yield from filled(
        f"{tried} tried{told}. Latencies are in ms; requests are the most of a GPU or attention group. Speeds are"
        " foreseen at the operating point, before expert maps are made; those further below are predicted with them."
    )


def _front(search: PhaseSearch) -> Iterator[str]:
    """Return the lines that set each speed beside its latency."""
    if len(search.front) > 1:
        latency = "TTFT" if search.phase == "prefill" else "TPOT"
        rows: list[tuple[str, ...]] = [("fastest at a latency", f"{latency} ms", "GPU tokens/s", "requests")]
        rows += [
            (
                _size(each.numbers),
                _ms(each.latency_ms),
                f"{each.tokens_per_s_per_gpu:,.0f}",
                str(each.numbers["max_requests"]),
            )
            for each in _thinned(search.front)
        ]
        yield ""
        yield table(rows)


def _size(numbers: Numbers) -> str:
    return f"{numbers['ep_size']} x {numbers['attention_tp']} +{numbers['redundant_experts']}"


def _thinned(front: Sequence[FrontPoint]) -> list[FrontPoint]:
    """Return both ends and some points between."""
    if len(front) <= MAX_FRONT:
        return list(front)
    step = (len(front) - 1) / (MAX_FRONT - 1)
    return [front[round(step * number)] for number in range(MAX_FRONT)]
