"""The gateways' reports of their ranks, and a unit's state derived from them."""

import json
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stacks.local.layout import GatewayProcess
from stacks.local.processes import GONE, process_state
from stacks.local.record import ORDER, UnitRecord

__all__ = [
    "GatewayReport",
    "RankReport",
    "ask_gateway",
    "has_hung_rank",
    "is_refused",
    "merge_reports",
    "update_unit",
]

QUESTION = b"GET /readyz HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n"
MAX_ANSWER_BYTES = 2**24  # assumed: a rank takes 100 bytes
ASK_S = 2
STATES = ("lost", *ORDER, "refused", "draining")  # states of a rank, from the least to the most advanced


@dataclass(frozen=True)
class RankReport:
    """A gateway's report of one rank. `loaded` is the fraction of the rank's tensors that are loaded.

    `slow` is a sentence about how the rank slows its unit down. `refusal` says why the gateway sends requests to no
    rank of its unit.
    """

    state: str
    loaded: float
    pid: int
    slow: str | None = None
    refusal: str | None = None


@dataclass(frozen=True)
class GatewayReport:
    """One gateway's report: whether it has ranks of every phase, and its ranks by unit and number."""

    is_ready: bool
    units: Mapping[str, Mapping[int, RankReport]]


def ask_gateway(gateway: GatewayProcess, pids: Sequence[int]) -> GatewayReport | None:
    """Return a gateway's report; None while it does not answer. `pids` are the process ids that the gateway may have.

    An answer of another program on the gateway's port is ignored. Raises OSError if this process cannot open a
    socket.
    """
    with socket.socket() as connection:
        try:
            report = json.loads(_fetch_report(connection, gateway))
        except (OSError, ValueError, RecursionError):
            return None
    if not isinstance(report, dict) or report.get("pid") not in pids:
        return None
    return GatewayReport(report["ready"], {unit["unit"]: _rank_reports(unit) for unit in report["units"]})


def merge_reports(reports: Sequence[GatewayReport]) -> dict[str, list[RankReport]]:
    """Return unit -> its ranks' reports. Of several reports of a rank, the one with the most advanced state is taken.

    A gateway that has just started knows few ranks, and losing the connection to one gateway does not mean a rank's
    end.
    """
    seen: dict[tuple[str, int], list[RankReport]] = {}
    for report in reports:
        for unit, ranks in report.units.items():
            for number, rank in ranks.items():
                seen.setdefault((unit, number), []).append(rank)
    found: dict[str, list[RankReport]] = {}
    for (unit, _), views in sorted(seen.items(), key=lambda each: each[0]):
        found.setdefault(unit, []).append(max(views, key=lambda rank: (STATES.index(rank.state), rank.slow or "")))
    return found


def update_unit(unit: UnitRecord, ranks: Sequence[RankReport]) -> UnitRecord:
    """Return a unit's record with the state of its least advanced rank, unless a rank is lost, refused or draining.

    A lost rank makes the unit failed. But a unit that is starting, draining, ended or failed stays so: its processes
    show how it ends. A refused rank makes the unit failed, too, and a draining rank makes it draining. A unit that
    restarts keeps the reason of its previous end until it is ready.
    """
    states = [rank.state for rank in ranks]
    if "lost" in states:
        if unit.state in ("starting", "draining", "ended", "failed"):
            return unit
        return replace(
            unit, state="failed", reason=f"{unit.name} lost {states.count('lost')} of its {unit.ranks} ranks"
        )
    refusal = next((rank.refusal for rank in ranks if rank.state == "refused"), None)
    if refusal is not None:
        return replace(unit, state="failed", reason=f"{unit.name} gets no requests: {refusal}")
    if "draining" in states:
        return replace(unit, state="draining", reason=None)
    last_end = None if unit.state == "ready" else unit.reason
    if len(states) < unit.ranks:
        return replace(unit, state="starting", reason=last_end)
    state, loaded = min(states, key=ORDER.index), min(rank.loaded for rank in ranks)
    slow = next((rank.slow for rank in ranks if rank.slow), None)
    return replace(unit, state=state, loaded=loaded, reason=slow if state == "ready" else last_end)


def has_hung_rank(report: Mapping[str, Sequence[RankReport]], unit: str) -> bool:
    """Return whether gateways lost a rank of the unit whose process still exists: the process is suspended or hangs.

    `report` maps each unit to its ranks' reports.
    """
    return any(rank.state == "lost" and process_state(rank.pid) != GONE for rank in report.get(unit, ()))


def is_refused(report: Mapping[str, Sequence[RankReport]], unit: str) -> bool:
    """Return whether a gateway sends the unit no requests until the unit's processes are restarted."""
    return any(rank.state == "refused" for rank in report.get(unit, ()))


def _rank_reports(unit: Mapping[str, Any]) -> dict[int, RankReport]:
    slow = unit.get("straggler", {"pid": None})
    return {
        rank["rank"]: RankReport(
            rank["state"],
            rank["loaded"],
            rank["pid"],
            _slowness(slow) if rank["pid"] == slow["pid"] else None,
            unit.get("refused"),
        )
        for rank in unit["ranks"]
    }


def _slowness(rank: Mapping[str, Any]) -> str:
    return f"rank {rank['rank']} on {rank['node']} takes {rank['times']:g} times as long a step as its peers"


def _fetch_report(connection: socket.socket, gateway: GatewayProcess) -> bytes:
    """Return the body of a gateway's HTTP answer.

    Raises OSError if no answer comes, or if the answer is too large or still incomplete after `ASK_S` seconds.
    """
    until = time.monotonic() + ASK_S
    connection.settimeout(ASK_S)
    connection.connect((gateway.host, gateway.http_port))
    connection.sendall(QUESTION)
    answer = bytearray()
    while chunk := connection.recv(2**16):
        answer += chunk
        left_s = until - time.monotonic()
        if left_s <= 0 or len(answer) > MAX_ANSWER_BYTES:
            raise TimeoutError
        connection.settimeout(left_s)
    return bytes(answer.partition(b"\r\n\r\n")[2])
