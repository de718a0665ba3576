"""The tokenizer's files that a deployment serves with: a gateway or a rank that reads others does not serve.

A checkpoint may change while a deployment runs. A gateway that starts again would then answer the same prompt
differently, and differently from the gateway beside it. So it ends with a sentence. Whoever watches it starts it again,
and it serves once the files are back.

The gateways of a deployment remember the digests of the first files, in a file as for the weights
(`served_weights.py`).

Ranks read tokenizer.json to hold answers to JSON schemas, and say its digest once they have loaded. A rank that read
another file than this gateway gets no requests from it. The gateway may be the one that is wrong. So a rank hears of it
only while more units agree with the gateway than do not; until then it goes on with other gateways.
"""

import logging
from collections.abc import Collection, Iterable
from pathlib import Path

from runtime.checkpoint import digest_of_file
from runtime.errors import RuntimeFailure
from runtime.gateway.rank_connection import Rank
from runtime.gateway.served_weights import SHOWN, how_to_restart, keep_first, read_first
from runtime.gateway.tokenizer import TOKENIZER_FILES, Tokenizer, load_tokenizer

__all__ = ["ServedTokenizer", "load_served_tokenizer"]

RANKS_FILE = "tokenizer.json"  # the one that ranks read as well

log = logging.getLogger("runtime.gateway.registry")  # as users know who takes ranks


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


def load_served_tokenizer(folder: Path, memory: Path | None) -> tuple[Tokenizer, ServedTokenizer]:
    """Read a checkpoint folder's tokenizer, whose files must be the first that `memory`, if given, has seen.

    Raise RuntimeFailure.
    """
    before = _digests(folder)
    first = _lines(before) if memory is None else _first(memory, "\n".join(_lines(before))).splitlines()
    _compare(folder, before, first)
    tokenizer = load_tokenizer(folder)
    _compare(folder, _digests(folder), first)  # a file may have changed between its digest and its use
    return tokenizer, ServedTokenizer(before[RANKS_FILE])


def _compare(folder: Path, found: dict[str, str], first: list[str]) -> None:
    changed = [name for name, line in zip(found, _lines(found), strict=True) if line not in first]
    if changed:
        raise RuntimeFailure(
            f"this deployment serves with other files than are now in {folder}: {', '.join(changed)} changed; put back"
            " what was there and the gateway starts by itself, or `tidemill down` and `tidemill up` to serve with these"
        )


def _first(memory: Path, found: str) -> str:
    """Return what `memory` says, which is `found` where it said nothing before. Raise RuntimeFailure."""
    first = read_first(memory)
    if first is not None:
        return first
    try:
        return keep_first(memory, found)
    except OSError as error:  # a full disk: the next gateway tries again
        log.warning("cannot remember the tokenizer's files in %s: %s", memory, error.strerror)
        return found


def _digests(folder: Path) -> dict[str, str]:
    """Return the digest of each of the tokenizer's files, by name."""
    paths = [folder / name for name in TOKENIZER_FILES]
    return {path.name: digest_of_file(path) if path.exists() else "missing" for path in paths}


def _lines(digests: dict[str, str]) -> list[str]:
    return [f"{name} {digest}" for name, digest in digests.items()]
