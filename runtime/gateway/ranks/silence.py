"""Find serving ranks that have fallen silent: ping them after a while, and give up those that do not answer.

    process    it is stopped, or its machine is frozen: it does not answer Ping, for which it has a thread of its own
    steps      they stand still: the rank answers Ping, but it neither sends tokens nor repeats its state

A living process answers at once. A step may take minutes, so only after the launch file's long timeout does it count as
hanging.

Silence is counted in looks, not in seconds. If the gateway itself was stopped, that is one look, and no rank is given
up for it.
"""

import asyncio
from collections.abc import Callable, Iterable

from runtime.gateway.ranks.rank_connection import Rank
from runtime.protocol.messages import Ping

__all__ = ["ASK_LOOKS", "GIVE_UP_LOOKS", "check_ranks", "watch_ranks"]

LOOK_S = 0.5
ASK_LOOKS = 3
GIVE_UP_LOOKS = 8  # assumed: 4 s, which gives a thread on a busy machine 2.5 s to answer


async def watch_ranks(
    ranks: Callable[[], Iterable[Rank]], stall_timeout_s: float, report: Callable[[str], None]
) -> None:
    """Check the ranks until cancelled. `report` is called with the reason for each rank that is given up."""
    while True:
        await asyncio.sleep(LOOK_S)
        for reason in check_ranks(ranks(), stall_timeout_s):
            report(reason)


def check_ranks(ranks: Iterable[Rank], stall_timeout_s: float) -> list[str]:
    """Check each rank once: ping it if it is silent, or give it up if it has been silent for too long.

    A rank with requests is given up, too, after `stall_timeout_s` without a step. Return a reason for each rank given
    up. A rank that loads or waits for its peers has no requests and may be silent.
    """
    reasons = []
    for rank in [rank for rank in ranks if rank.state in ("ready", "draining")]:
        rank.looks_since_message += 1
        rank.looks_since_step += 1
        reason = _find_failure(rank, stall_timeout_s)
        if reason is not None:
            rank.hang_up(reason)
            reasons.append(reason)
        elif rank.looks_since_message == ASK_LOOKS:
            rank.send(Ping())
    return reasons


def _find_failure(rank: Rank, stall_timeout_s: float) -> str | None:
    if rank.looks_since_message >= GIVE_UP_LOOKS:
        return f"{rank} has said nothing for {GIVE_UP_LOOKS * LOOK_S:g} s, and did not answer when it was asked"
    if rank.looks_since_step * LOOK_S >= stall_timeout_s:
        return f"the steps of {rank} have stood still for {stall_timeout_s:g} s"
    return None
