"""The weights that a deployment serves with, and the ranks that loaded others.

    until the first unit is ready    nobody is refused
    afterwards                       a rank that loaded the same weights serves; one that loaded others is refused

A checkpoint may change while a deployment runs. A unit that starts again then has loaded other weights than those that
serve: its answers would be another model's, and units of the other phase would take no KV from it and give it none.
Such a unit stays up, gets no requests and says why. It does not load again, as it would find the same.

On one machine the first weights count even when no rank is left that loaded them: gateways keep the digest in a file,
for each other and for those that start again. Elsewhere a gateway goes by the ranks that serve. It forgets the weights
with the last rank that serves with them, lest one wrong unit that was first keeps out all others for ever. A rank that
was refused says for a while that it is not ready, so a rank that served decides before it does.

Where the plan names the weights, ranks say nothing of theirs: each has compared them with the manifest.
"""

import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from runtime.errors import RuntimeFailure
from runtime.gateway.ranks.rank_connection import Rank

__all__ = ["DIGEST_CHARACTERS", "ServedWeights", "keep_first", "read_first", "restart_hint"]

SERVING = ("ready", "draining")  # states of ranks
DIGEST_CHARACTERS = 19  # characters of a digest: `sha256:` and twelve

log = logging.getLogger(__name__)


class ServedWeights:
    """The KV digest of the units that loaded them; none before the first unit is ready."""

    def __init__(self, file: Path | None = None) -> None:
        """Remember the digest in `file`, where one that stands there already is heeded. Raise RuntimeFailure."""
        self._file = file
        self._refused: set[Rank] = set()
        self._digest = None if file is None else read_first(file)

    def check(self, rank: Rank, ranks: Iterable[Rank], *, unit_is_ready: bool) -> None:
        """Compare what the rank loaded, once it has said so. The first ready unit's weights are compared by all."""
        if rank.loaded_digest is None:
            return
        if self._digest is not None:
            self._compare(rank)
            self._forget_if_nobody_serves(ranks)
        elif unit_is_ready:
            self._adopt(rank.loaded_digest)
            for each in ranks:
                self._compare(each)

    def lose(self, rank: Rank, ranks: Iterable[Rank]) -> None:
        """Note that the rank is lost."""
        self._refused.discard(rank)
        self._forget_if_nobody_serves(ranks)

    def _forget_if_nobody_serves(self, ranks: Iterable[Rank]) -> None:
        """Forget the weights with the last rank that serves with them, unless a file remembers them.

        One that another gateway refused serves no more either: two gateways that took different weights agree anew.
        """
        if self._file is not None or self._digest is None:
            return
        if any(each.loaded_digest == self._digest and each.state in SERVING for each in ranks):
            return
        log.warning("no rank serves with the weights %s any more: others may", self._digest[:DIGEST_CHARACTERS])
        self._digest = None
        refused, self._refused = self._refused, set()
        for each in refused:  # it calls again, and is not refused
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
        """Serve with these weights, unless another gateway of this deployment has just decided."""
        self._digest = digest
        if self._file is not None:
            try:
                self._digest = keep_first(self._file, digest)
            except OSError as error:  # a full disk: this gateway remembers until it ends
                log.warning("cannot remember the weights in %s: %s", self._file, error.strerror)


def restart_hint(rank: Rank) -> str:
    """Return the rank's unit and the commands that start it again: it comes back as a whole when one process ends.

    The first pod of a unit is called after it, whether a LeaderWorkerSet or a StatefulSet makes it.
    """
    unit = rank.hello.unit
    return f"{unit} again (here: kill {rank.hello.pid}; in a cluster: kubectl delete pod {unit}-0)"


def read_first(file: Path) -> str | None:
    """Return what the file says, or None where there is none. Raise RuntimeFailure."""
    try:
        return file.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise RuntimeFailure(f"cannot read what this deployment serves with from {file}: {error}") from None


def keep_first(file: Path, content: str) -> str:
    """Write `content` whole if nothing stands there, and return what does. Raise OSError."""
    own = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        own.write_text(content)
        with suppress(FileExistsError):
            os.link(own, file)
        return file.read_text()
    finally:
        own.unlink(missing_ok=True)
