"""What a switch moves, and how long it takes: promised before, and counted by the ranks.

    bytes     of the map's moved slots, which is what `max_bytes` limits
    seconds   from the document's arrival to the end of the switch
    stall     the time of these between steps, in which the unit does not compute

Seconds and stall are promised by the unit's former switch that is nearest in bytes: part of both is the same for every
switch. The plan promises those of the first one (`planner/estimate/switches.py`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite, nan

import urllib3

from planner.estimate.switches import predict_first_switch
from planner.plan.sections import LiveMap
from stacks.measured.epochs import Rows
from stacks.measured.samples import fetch, read_samples

__all__ = ["Moved", "Totals", "promise", "promise_of_plan", "read_totals"]

COUNTED = ("bytes", "seconds", "stall_seconds")
ASK_S = 10.0  # assumed: a rank's page has some hundred kB
MAX_PAGE_BYTES = 2**26  # as for the page of an epoch


@dataclass(frozen=True)
class Moved:
    """Bytes that all ranks receive, and the seconds and stall of the slowest rank, None where they are not known."""

    num_bytes: int
    seconds: float | None = None
    stall_s: float | None = None

    def beside(self, promised: "Moved") -> str:
        """Return what was seen, and what had been promised, as a person reads it."""
        rows = (
            ("moved", self.num_bytes / 1e6, promised.num_bytes / 1e6, ",.1f", "MB"),
            ("in", self.seconds, promised.seconds, ",.1f", "s"),
            ("with", _ms(self.stall_s), _ms(promised.stall_s), ",.0f", "ms between steps"),
        )
        return ", ".join(_beside(*row) for row in rows if row[1] is not None)


def promise_of_plan(rules: LiveMap, rows: Rows, num_ranks: int, num_bytes: int) -> Moved:
    """Return what a unit's first switch takes by the plan, if it moves `num_bytes` and leads to the map `rows`."""
    sizes = rules.expert_bytes, len(rows), len(rows[0]), num_ranks
    return Moved(num_bytes, *predict_first_switch(rules.device, num_bytes, *sizes))


def promise(former: Iterable[Moved], planned: Moved) -> Moved:
    """Return what a switch should take: in proportion to its bytes, what the `former` switch nearest in bytes took.

    Without a former switch whose times are known, it is what was `planned`.
    """
    num_bytes = planned.num_bytes
    nearest = min(former, key=lambda each: abs(each.num_bytes - num_bytes), default=None)
    if nearest is None or not nearest.num_bytes or nearest.seconds is None or nearest.stall_s is None:
        return planned
    share = num_bytes / nearest.num_bytes
    return Moved(num_bytes, nearest.seconds * share, nearest.stall_s * share)


@dataclass(frozen=True)
class Totals:
    """What each rank of a unit has counted so far: bytes, seconds and stall."""

    ranks: Sequence[tuple[float, ...]]

    def since(self, before: "Totals") -> Moved:
        """Return what was moved since `before`."""
        grown = [
            [after - earlier for after, earlier in zip(rank, former, strict=True)]
            for rank, former in zip(self.ranks, before.ranks, strict=True)
        ]
        num_bytes, seconds, stall = zip(*grown, strict=True)
        return Moved(round(sum(num_bytes)), max(seconds), max(stall))


def read_totals(urls: Sequence[str]) -> Totals:
    """Return what the ranks with metrics at `urls` have counted. Raises OSError or ValueError if one shows nothing."""
    return Totals([_read_rank(url) for url in urls])


def _read_rank(url: str) -> tuple[float, ...]:
    try:
        page = fetch(url, timeout_s=ASK_S, max_bytes=MAX_PAGE_BYTES).decode(errors="replace")
    except urllib3.exceptions.HTTPError as error:
        raise ValueError(f"{url} does not answer: {type(error).__name__}") from None
    counted = {each.name: float(each.written) for each in read_samples(page, "expert_moves_[a-z_]+_total")}
    found = tuple(counted.get(f"expert_moves_{name}_total", nan) for name in COUNTED)
    if not all(map(isfinite, found)):
        raise ValueError(f"{url} counts no switches")
    return found


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _beside(verb: str, seen: float | None, promised: float | None, form: str, unit: str) -> str:
    shown, said = (None if each is None else f"{each:{form}}" for each in (seen, promised))
    promise = "nothing promised" if said is None else "as promised" if said == shown else f"{said} promised"
    return f"{verb} {shown} {unit} ({promise})"
