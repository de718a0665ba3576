"""What the gateway says of its ranks, and what that makes of a unit."""

import http.client
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stacks.local.layout import Layout
from stacks.local.processes import GONE, state_of
from stacks.local.record import ORDER, UnitRecord

__all__ = ["RankReport", "as_reported", "ask_gateway", "has_living_lost"]

ASK_S = 2


@dataclass(frozen=True)
class RankReport:
    """One rank as the gateway knows it. `loaded` is the part of its tensors, of 1.

    `slow` is a sentence about a rank that holds up its unit.
    """

    state: str
    loaded: float
    pid: int
    slow: str | None = None


def ask_gateway(layout: Layout, pids: Sequence[int]) -> dict[str, list[RankReport]] | None:
    """Return the ranks of each known unit; None while our gateway, one of `pids`, does not answer.

    An answer on its port from any other program does not count.
    """
    connection = http.client.HTTPConnection(layout.gateway_host, layout.http_port, timeout=ASK_S)
    try:
        connection.request("GET", "/readyz")
        report: dict[str, Any] = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    if report.get("pid") not in pids:
        return None
    return {unit["unit"]: _rank_reports(unit) for unit in report["units"]}


def as_reported(unit: UnitRecord, ranks: Sequence[RankReport]) -> UnitRecord:
    """Return the unit at its slowest rank's stage. When a rank is lost or ends, so is the whole unit.

    How a unit that drains has ended, its nodes tell. One that is down, or starts again, stays so until all ranks of its
    next start call.
    """
    states = [rank.state for rank in ranks]
    if "lost" in states:
        if unit.state in ("starting", "draining", "ended", "failed"):
            return unit
        return replace(
            unit, state="failed", reason=f"{unit.name} lost {states.count('lost')} of its {unit.ranks} ranks"
        )
    unit = replace(unit, reason=None)
    if "draining" in states:
        return replace(unit, state="draining")
    if len(states) < unit.ranks:
        return replace(unit, state="starting")
    slow = next((rank.slow for rank in ranks if rank.slow), None)
    return replace(unit, state=min(states, key=ORDER.index), loaded=min(rank.loaded for rank in ranks), reason=slow)


def has_living_lost(report: Mapping[str, Sequence[RankReport]], unit: str) -> bool:
    """Return whether the gateway has lost a rank of the unit whose process is still there: it is stopped, or hangs."""
    return any(rank.state == "lost" and state_of(rank.pid) != GONE for rank in report.get(unit, ()))


def _rank_reports(unit: Mapping[str, Any]) -> list[RankReport]:
    slow = unit.get("straggler", {"pid": None})
    return [
        RankReport(rank["state"], rank["loaded"], rank["pid"], _slowness(slow) if rank["pid"] == slow["pid"] else None)
        for rank in unit["ranks"]
    ]


def _slowness(rank: Mapping[str, Any]) -> str:
    return f"rank {rank['rank']} on {rank['node']} takes {rank['times']:g} times as long a step as its peers"
