"""The figures of a played day, in order: each one's name in JSON, its name for people, and how it is written."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Generic, TypeVar

from planner.facts.quantities import MS_PER_S
from stacks.simulator.flows.latency import QUANTILES
from stacks.simulator.flows.outcome import Outcome

__all__ = ["FIGURES", "GIGA", "Figure", "format_figure", "shorten_titles", "table_rows"]

GIGA = 1e9
NEVER, NO_VALUE = "never", "-"
MAX_TITLE = 24  # characters
Subject = TypeVar("Subject")


@dataclass(frozen=True)
class Figure(Generic[Subject]):
    """One row of a table of results: its name in JSON, its title, and how its value is computed and written."""

    name: str
    title: str
    value: Callable[[Subject], float | None]
    form: str  # a format specification, as `.1f`
    factor: float = 1.0  # turns the JSON's unit into the table's
    has_zeros: bool = False  # whether a row of zeros is shown, as for a promise that is never kept

    def is_shown(self, values: Sequence[float | None]) -> bool:
        """Return whether to show the row: some value is not 0, or only some columns have a value.

        If `has_zeros`, a row in which every column has a value is shown too, even if all are 0.
        """
        return any(values) or 0 < values.count(None) < len(values) or (self.has_zeros and None not in values)


def _latency(kind: str, place: int, unit_ms: bool) -> Figure[Outcome]:
    percentile = f"p{QUANTILES[place] * 100:g}"
    return Figure(
        name=f"{kind}_{percentile}_ms",
        title=f"{kind.upper()} {percentile}, {'ms' if unit_ms else 's'}",
        value=lambda one: _ms(getattr(one.latencies, kind)[place]),
        form=",.1f" if unit_ms else ",.2f",
        factor=1.0 if unit_ms else 1e-3,
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * MS_PER_S


FIGURES: tuple[Figure[Outcome], ...] = (
    Figure("ttft_mean_ms", "TTFT mean, s", lambda one: _ms(one.latencies.ttft_mean), ",.2f", 1e-3),
    *(_latency("ttft", place, unit_ms=False) for place in range(len(QUANTILES))),
    *(_latency("tpot", place, unit_ms=True) for place in range(len(QUANTILES))),
    Figure("ttft_kept", "TTFT kept", lambda one: one.latencies.ttft_kept, ".2%", has_zeros=True),
    Figure("tpot_kept", "TPOT kept", lambda one: one.latencies.tpot_kept, ".2%", has_zeros=True),
    Figure("requests", "requests, M", lambda one: one.requests, ",.2f", 1e-6),
    Figure("refused", "refused with 429", lambda one: one.refused / one.requests if one.requests else 0.0, ".2%"),
    Figure("restarted", "computed again", lambda one: one.restarted, ",.0f"),
    Figure("cut", "cut by a drain's end", lambda one: one.cut, ",.0f"),
    Figure("output_tokens", "output tokens, G", lambda one: one.output_tokens, ",.2f", 1 / GIGA, has_zeros=True),
    Figure("peak_queue", "prompts in queue, most", lambda one: one.peak_queue, ",.0f"),
    Figure("peak_kv", "KV in use, most", lambda one: one.peak_kv, ".1%"),
    Figure("peak_nodes", "nodes, most", lambda one: one.peak_nodes, ",.0f"),
    Figure("mean_nodes", "nodes, mean", lambda one: one.mean_nodes, ",.2f"),
    Figure("node_hours", "node-hours on", lambda one: one.node_hours, ",.1f"),
    Figure("node_hours_taken", "with warm-up, drain", lambda one: one.node_hours_taken, ",.1f"),
    Figure("usd", "cost, US$", lambda one: one.usd, ",.0f"),
    Figure("revenue_usd", "income, US$", lambda one: one.revenue_usd, ",.0f", has_zeros=True),
    Figure("margin", "margin, of income", lambda one: one.margin, ".1%"),
)


def table_rows(
    figures: Sequence[Figure[Subject]], titles: Sequence[str], outcomes: Sequence[Subject]
) -> Iterator[tuple[str, ...]]:
    """Yield a table's rows: the columns' titles, then each figure that is worth showing, with a value per outcome."""
    yield "", *titles
    for figure in figures:
        values = [figure.value(each) for each in outcomes]
        if figure.is_shown(values):
            yield figure.title, *(format_figure(figure, each) for each in values)


def shorten_titles(titles: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return (titles over the columns, notes).

    If a title is long, the columns are `[1]`, `[2]`, and notes are `[1] TITLE`.
    """
    if len(titles) == 1 or max(map(len, titles)) <= MAX_TITLE:
        return list(titles), []
    numbers = [f"[{number}]" for number in range(1, len(titles) + 1)]
    return numbers, [f"{number} {title}" for number, title in zip(numbers, titles, strict=True)]


def format_figure(figure: Figure[Subject], value: float | None) -> str:
    """Return a value of `figure` as the table writes it: `-` for None, `never` for infinity."""
    if value is None:
        return NO_VALUE
    return format(value * figure.factor, figure.form) if isfinite(value) else NEVER
