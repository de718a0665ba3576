"""Tracks the prompts that a rank computes or receives, to predict which blocks of later prompts it has in its cache.

    send    from now on the rank has the prompt's blocks; those that it did not have are on their way
    found   the rank says how many of the prompt's tokens it had
    end     it has the whole prompt. If it had fewer tokens than expected, it has lost blocks

Of a tenant's blocks, a rank gives up the one first that was not used for the longest time (`kv/idle.py`). So when a
block is gone, the tenant's with an earlier last use are gone too. It says nothing of other tenants' blocks. A missing
block that another prompt was still computing proves nothing, because that prompt may have been given up.

A decode rank says nothing of what it found. It keeps blocks in its cache alone, whose size the gateway knows: its index
has as many hashes as the cache has pages.

What is known of a rank dies with its connection, so a rank that comes again begins with nothing.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.gateway.ranks.prefix_index import BlockHashes, PrefixIndex
from runtime.gateway.ranks.rank_load import NOTHING_HELD, HeldPrefix
from runtime.protocol.counting import PAGE_TOKENS

__all__ = ["SentPrompts", "find_held"]


@dataclass
class _Sent:
    """A prompt that was sent and has no token yet.

    `lost_time` is the time in ns at which the rank last used the last of the prompt's blocks that were computed
    already.
    """

    hashes: BlockHashes
    num_prompt_tokens: int
    num_held_blocks: int
    num_ready_tokens: int
    lost_time: int
    num_found_tokens: int = 0


class SentPrompts:
    """The prompts sent to one rank. All ranks of a phase share one prefix index."""

    def __init__(self, index: PrefixIndex, *, says_found: bool) -> None:
        """Begin without prompts.

        `says_found` says that the rank reports how much of each prompt it found in its cache.
        """
        self.index, self._says_found = index, says_found
        self.place: int | None = None  # the rank's place in the index, from the first prompt on
        self._sent: dict[str, _Sent] = {}
        self._computing: set[int] = set()  # hashes of the blocks that the rank is computing

    def describe_held(self, hashes: BlockHashes, num_blocks: int, num_prompt_tokens: int) -> HeldPrefix:
        """Return how much of a prompt the rank has in its cache if, by the index, it has the first `num_blocks` blocks.

        The prompt's last token never counts: it is always computed.
        """
        num_ready = bisect_left(range(num_blocks), True, key=lambda number: int(hashes[number]) in self._computing)
        num_tokens = min(num_blocks, (num_prompt_tokens - 1) // PAGE_TOKENS) * PAGE_TOKENS
        return HeldPrefix(num_tokens, max(num_tokens - num_ready * PAGE_TOKENS, 0))

    def record_sent(self, request_id: str, hashes: BlockHashes, num_prompt_tokens: int) -> HeldPrefix:
        """Record that a prompt is sent to the rank. Return how much of it the rank is expected to have in its cache."""
        index = self.index
        if self.place is None:
            self.place = index.add_rank()
        (num_blocks,) = index.find(hashes, [self.place])
        held = self.describe_held(hashes, num_blocks, num_prompt_tokens) if num_blocks else NOTHING_HELD
        num_ready = held.num_ready // PAGE_TOKENS
        lost_time = index.last_use(self.place, hashes[:num_ready]) if num_ready else 0
        self._sent[request_id] = _Sent(hashes, num_prompt_tokens, num_blocks, held.num_ready, lost_time)
        index.use(self.place, hashes)
        self._computing.update(hashes[num_blocks:].tolist())
        return held

    def note_found(self, request_id: str, num_tokens: int) -> None:
        """Record how many of the prompt's tokens the rank found in its cache, as it reports."""
        sent = self._sent.get(request_id)
        if sent is not None:
            sent.num_found_tokens = min(num_tokens, sent.num_prompt_tokens - 1)

    def end(self, request_id: str) -> None:
        """Record that the rank has computed or received the whole prompt.

        If the rank found less of the prompt in its cache than expected, forget the blocks that it has lost.
        """
        sent = self._sent.pop(request_id, None)
        if sent is None or self.place is None:
            return
        self._computing.difference_update(sent.hashes[sent.num_held_blocks :].tolist())
        if self._says_found and sent.num_found_tokens < sent.num_ready_tokens:
            self.index.forget_unused_since(self.place, sent.lost_time, sent.hashes)

    def give_up(self, request_id: str) -> None:
        """Record that the rank will not compute the whole prompt, unless it has done so already."""
        sent = self._sent.pop(request_id, None)
        if sent is None or self.place is None:
            return
        new = sent.hashes[sent.num_held_blocks :]
        self._computing.difference_update(new.tolist())
        self.index.forget(self.place, new)

    def close(self) -> None:
        """Forget all that is known of the rank."""
        self._sent.clear()
        self._computing.clear()
        if self.place is not None:
            self.index.remove_rank(self.place)
            self.place = None


def find_held(ranks: Sequence[SentPrompts], hashes: BlockHashes, num_prompt_tokens: int) -> Sequence[HeldPrefix]:
    """Return for each of `ranks`, all of one phase, how much of a prompt the rank has in its cache.

    There must be at least one rank.
    """
    places = [rank.place for rank in ranks if rank.place is not None]
    found = dict(zip(places, ranks[0].index.find(hashes, places), strict=True))
    return [
        rank.describe_held(hashes, num_blocks, num_prompt_tokens)
        if rank.place is not None and (num_blocks := found[rank.place])
        else NOTHING_HELD
        for rank in ranks
    ]
