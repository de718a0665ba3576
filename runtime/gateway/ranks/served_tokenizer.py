"""The tokenizer that this gateway serves with, and the ranks that read another one.

Ranks read tokenizer.json to hold answers to JSON schemas, and send its digest once they have loaded it. A rank that
read another file than this gateway gets no requests from it. The gateway may be the one that is wrong. So the rank is
told only while more units agree with the gateway than disagree. Until then it serves with other gateways.

Which files a gateway may start with is the business of `tokenizer_files.py`.
"""

import logging
from collections.abc import Collection, Iterable

from runtime.gateway.ranks.rank_connection import Rank
from runtime.gateway.ranks.served_weights import SHOWN, how_to_restart

__all__ = ["RANKS_FILE", "ServedTokenizer"]

RANKS_FILE = "tokenizer.json"  # the one that ranks read as well

log = logging.getLogger(__name__)


class ServedTokenizer:
    """The digest of this gateway's tokenizer.json, and the ranks that have heard that theirs is another."""

    def __init__(self, digest: str) -> None:
        self._digest = digest
        self._told: set[Rank] = set()

    def heed(self, rank: Rank, ranks: Collection[Rank]) -> None:
        """Refuse the rank here if it has read another file, and tell those that have if most units agree with us."""
        if rank.tokenizer_digest not in (None, self._digest):
            rank.refusal = self._reason(rank)
            log.warning("%s is refused: %s", rank, rank.refusal)
        self._tell(ranks)

    def lose(self, rank: Rank, ranks: Collection[Rank]) -> None:
        """Let the ranks that heard of it go on with other gateways, if no majority is left that agrees with us."""
        self._told.discard(rank)
        self._tell(ranks)

    def _tell(self, ranks: Collection[Rank]) -> None:
        agree = [each for each in ranks if each.state != "lost" and each.tokenizer_digest == self._digest]
        differ = [each for each in ranks if each.state != "lost" and each.tokenizer_digest not in (None, self._digest)]
        if _num_units(agree) > _num_units(differ):
            for rank in differ:
                if rank not in self._told:
                    self._told.add(rank)
                    rank.refuse(self._reason(rank))
            return
        told, self._told = self._told, set()
        for rank in told:  # it calls again, and hears nothing
            rank.hang_up(f"{rank} may serve with other gateways")

    def _reason(self, rank: Rank) -> str:
        assert rank.tokenizer_digest is not None
        return (
            f"its {RANKS_FILE} ({rank.tokenizer_digest[:SHOWN]}) is another than this gateway's"
            f" ({self._digest[:SHOWN]}), so answers in JSON would be wrong; give both the same file, and start"
            f" {how_to_restart(rank)}, or this gateway if its file was the wrong one"
        )


def _num_units(ranks: Iterable[Rank]) -> int:
    return len({rank.hello.unit for rank in ranks})
