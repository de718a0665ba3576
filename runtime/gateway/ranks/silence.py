"""Ranks that serve and say nothing: asked after a while, and given up when they do not answer.

    process    stopped, or its machine frozen: it does not answer Ping, which a thread beside its steps does
    steps      stand still: the rank answers Ping, but neither says a token nor repeats its state

A step may take minutes, so only the launch file's long time tells that it hangs. A process that lives answers at once.

Silence is counted in looks, not in seconds: if the gateway itself was stopped, that is one look, and not every rank's
end.
"""

import asyncio
from collections.abc import Callable, Iterable

from runtime.gateway.ranks.rank_connection import Rank
from runtime.protocol.messages import Ping

__all__ = ["ASK_LOOKS", "GIVE_UP_LOOKS", "check_ranks", "watch_ranks"]

LOOK_S = 0.5
ASK_LOOKS = 3
GIVE_UP_LOOKS = 8  # assumed: 4 s, of which a busy machine has 2.5 s to let a thread answer


async def watch_ranks(
    ranks: Callable[[], Iterable[Rank]], stall_timeout_s: float, report: Callable[[str], None]
) -> None:
    """Look at the ranks, for ever. `report` hears why each is given up."""
    while True:
        await asyncio.sleep(LOOK_S)
        for reason in check_ranks(ranks(), stall_timeout_s):
            report(reason)


def check_ranks(ranks: Iterable[Rank], stall_timeout_s: float) -> list[str]:
    """Look at each rank once: ask it, or give it up. Return why, of those that were given up.

    A rank that loads, or waits for its peers, has no requests and may be silent.
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
