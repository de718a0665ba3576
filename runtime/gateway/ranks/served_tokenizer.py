"""The tokenizer that this gateway serves with, and the ranks that read another one.

Ranks read tokenizer.json to hold answers to JSON schemas, and send its digest once they have loaded it. A rank that
read another file gets no requests from this gateway. The gateway may be the one that is wrong, so the rank is told only
while more units agree with the gateway than disagree. Until then it serves with other gateways.

Which files a gateway may start with is the business of `tokenizer_files.py`.
"""

import logging
from collections.abc import Collection, Iterable

from runtime.gateway.ranks.rank_connection import Rank
from runtime.gateway.ranks.served_weights import DIGEST_CHARACTERS, restart_hint

__all__ = ["RANKS_FILE", "ServedTokenizer"]

RANKS_FILE = "tokenizer.json"  # the file that ranks read, too

log = logging.getLogger(__name__)


class ServedTokenizer:
    """The digest of this gateway's tokenizer.json, and the ranks that were told that their tokenizer.json differs."""

    def __init__(self, digest: str) -> None:
        self._digest = digest
        self._notified: set[Rank] = set()

    def check(self, rank: Rank, ranks: Collection[Rank]) -> None:
        """Refuse a rank that read another tokenizer.json than this gateway.

        If more units agree with this gateway than disagree, notify the units that disagree.
        """
        if rank.tokenizer_digest not in (None, self._digest):
            rank.refusal = self._explain(rank)
            log.warning("%s is refused: %s", rank, rank.refusal)
        self._notify(ranks)

    def mark_lost(self, rank: Rank, ranks: Collection[Rank]) -> None:
        """Forget a lost rank.

        Once the units with this gateway's tokenizer are no longer the majority, hang up on the notified ranks, so that
        other gateways may take them.
        """
        self._notified.discard(rank)
        self._notify(ranks)

    def _notify(self, ranks: Collection[Rank]) -> None:
        agreeing = [each for each in ranks if each.state != "lost" and each.tokenizer_digest == self._digest]
        disagreeing = [
            each for each in ranks if each.state != "lost" and each.tokenizer_digest not in (None, self._digest)
        ]
        if _num_units(agreeing) > _num_units(disagreeing):
            for rank in disagreeing:
                if rank not in self._notified:
                    self._notified.add(rank)
                    rank.refuse(self._explain(rank))
            return
        notified, self._notified = self._notified, set()
        for rank in notified:  # it connects again, and is not told
            rank.hang_up(f"{rank} may serve with other gateways")

    def _explain(self, rank: Rank) -> str:
        assert rank.tokenizer_digest is not None
        rank_digest, own_digest = rank.tokenizer_digest[:DIGEST_CHARACTERS], self._digest[:DIGEST_CHARACTERS]
        return (
            f"its {RANKS_FILE} ({rank_digest}) is another than this gateway's"
            f" ({own_digest}), so answers in JSON would be wrong; give both the same file, and start"
            f" {restart_hint(rank)}, or this gateway if its file was the wrong one"
        )


def _num_units(ranks: Iterable[Rank]) -> int:
    return len({rank.hello.unit for rank in ranks})
