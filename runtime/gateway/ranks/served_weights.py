"""The weights that a deployment serves with, and the ranks that loaded other weights.

    until the first unit is ready    nobody is refused
    afterwards                       ranks with the same weights serve, ranks with others are refused

A checkpoint may change while a deployment runs. Then a unit that restarts loads weights that differ from those in use.
Its answers would come from another model, and units of the other phase would exchange no KV with it. Such a unit stays
up, gets no requests and reports why. It does not load again, because it would find the same files.

On one machine the first weights count even when no rank with them is left: gateways keep the digest in a file, for each
other and for those that restart. Elsewhere a gateway goes by the ranks that serve. It forgets the weights with the last
rank that serves with them. Otherwise one wrong unit that came first would keep out all others for ever. A refused rank
reports for a while that it is not ready, so a rank that served before decides first.

If the plan names the weights, ranks do not report theirs, because each has compared them with the manifest.
"""

import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from runtime.errors import RuntimeFailure
from runtime.gateway.ranks.rank_connection import Rank

__all__ = ["DIGEST_CHARACTERS", "ServedWeights", "keep_first", "read_kept", "restart_hint"]

SERVING = ("ready", "draining")  # states of a rank
DIGEST_CHARACTERS = 19  # `sha256:` and twelve digits

log = logging.getLogger(__name__)


class ServedWeights:
    """The KV digest of the weights that ranks must have loaded. The digest is None until the first unit is ready."""

    def __init__(self, file: Path | None = None) -> None:
        """Keep the digest in `file`, if given, and begin with the digest that the file has already.

        Raises RuntimeFailure if the file cannot be read.
        """
        self._file = file
        self._refused: set[Rank] = set()
        self._digest = None if file is None else read_kept(file)

    def check(self, rank: Rank, ranks: Iterable[Rank], *, unit_is_ready: bool) -> None:
        """Refuse a rank whose weights differ from the first ready unit's.

        If there is no digest yet, a ready unit sets it.
        """
        if rank.loaded_digest is None:
            return
        if self._digest is not None:
            self._compare(rank)
            self._forget_if_nobody_serves(ranks)
        elif unit_is_ready:
            self._adopt(rank.loaded_digest)
            for each in ranks:
                self._compare(each)

    def mark_lost(self, rank: Rank, ranks: Iterable[Rank]) -> None:
        """Record that a rank is lost. Forget the weights if no rank serves with them any more."""
        self._refused.discard(rank)
        self._forget_if_nobody_serves(ranks)

    def _forget_if_nobody_serves(self, ranks: Iterable[Rank]) -> None:
        """Forget the weights if no rank serves with them; then refused ranks may serve. Do nothing if a file has them.

        Ranks that another gateway refuses count as not serving. Otherwise two gateways with different weights would
        refuse each other's ranks for ever.
        """
        if self._file is not None or self._digest is None:
            return
        if any(each.loaded_digest == self._digest and each.state in SERVING for each in ranks):
            return
        log.warning("no rank serves with the weights %s any more: others may", self._digest[:DIGEST_CHARACTERS])
        self._digest = None
        refused, self._refused = self._refused, set()
        for each in refused:  # it connects again, and is not refused
            each.hang_up(f"{each} may serve now")

    def _compare(self, rank: Rank) -> None:
        if rank.loaded_digest in (None, self._digest) or rank.refusal is not None:
            return
        assert rank.loaded_digest is not None
        assert self._digest is not None
        self._refused.add(rank)
        digest = rank.loaded_digest[:DIGEST_CHARACTERS]
        rank.refuse(
            f"it loaded other weights ({digest}) than this deployment serves with: its checkpoint"
            f" was changed; put it back and start {restart_hint(rank)}, or serve with it as it is:"
            " start all units and gateways again (here: tidemill down, tidemill up)"
        )
        log.warning("%s is refused: %s; those are %s", rank, rank.refusal, self._digest[:DIGEST_CHARACTERS])

    def _adopt(self, digest: str) -> None:
        """Serve with the weights of `digest` from now on, and write the digest to the file, if there is one.

        If another gateway has written other weights there first, serve with those.
        """
        self._digest = digest
        if self._file is not None:
            try:
                self._digest = keep_first(self._file, digest)
            except OSError as error:  # such as a full disk: then only this gateway remembers, until it ends
                log.warning("cannot remember the weights in %s: %s", self._file, error.strerror)


def restart_hint(rank: Rank) -> str:
    """Return the name of the rank's unit and the commands that restart it.

    To end one process or pod is enough, because a unit restarts as a whole. The first pod of a unit has the unit's name
    plus `-0`, whether a LeaderWorkerSet or a StatefulSet makes it.
    """
    unit = rank.hello.unit
    return f"{unit} again (here: kill {rank.hello.pid}; in a cluster: kubectl delete pod {unit}-0)"


def read_kept(file: Path) -> str | None:
    """Return the content that the first writer put into the file (`keep_first`); None if there is no file.

    Raises RuntimeFailure if the file cannot be read.
    """
    try:
        return file.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise RuntimeFailure(f"cannot read what this deployment serves with from {file}: {error}") from None


def keep_first(file: Path, content: str) -> str:
    """Write `content` to the file atomically, unless the file exists. Return the file's content.

    Raises OSError if it can be neither written nor read.
    """
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.write_text(content)
        with suppress(FileExistsError):
            os.link(temporary, file)
        return file.read_text()
    finally:
        temporary.unlink(missing_ok=True)
