"""Epochs in a cluster: the first rank takes the next one's document from a file, and every rank shows its present one.

    file     the document that somebody wants the unit to follow next, such as a mounted ConfigMap's. It may be absent
    page     {"unit", "unit_digest", "number", "digest", "places", "physical_to_logical"}: the epoch that the unit is in

Whoever may write the file may move experts; whoever may read metrics sees where they are. The file is a wish: nobody
learns a map in service from it, so ranks whose nodes see it at different times agree nevertheless.
"""

import sys
from pathlib import Path

import msgspec

from runtime.errors import EpochError
from runtime.expert_parallel.epochs.switch import Ending, Proposal, Switch
from runtime.launch import UnitLaunch

__all__ = ["LOOK_S", "NextEpoch", "epoch_page"]

LOOK_S = 2.0  # assumed: kubelets bring a changed ConfigMap within a minute or so


class NextEpoch:
    """Proposes the document in a file whenever the file has changed. For the first rank."""

    def __init__(self, file: Path, switch: Switch) -> None:
        self._file, self._switch = file, switch
        self._content = b""  # as last proposed or refused

    def look(self) -> None:
        """Propose the document to the unit if it has changed since the last look.

        Do nothing while there is no document. A document that the unit cannot follow now is refused and logged once.
        """
        try:
            content = self._file.read_bytes()
        except OSError:
            return  # none yet, or it is being replaced
        if content in (self._content, b""):
            return
        self._content = content
        try:
            self._switch.propose(Proposal(content, self._log))
        except EpochError as error:
            print(f"tidemill: {self._file} is refused: {error}", file=sys.stderr, flush=True)

    def _log(self, ending: Ending) -> None:
        said = f"is in epoch {ending.number}" if ending.reason is None else f"stays in epoch {ending.number}"
        print(f"tidemill: the unit {said} ({self._file})", file=sys.stderr, flush=True)


def epoch_page(launch: UnitLaunch, switch: Switch) -> bytes:
    """Return the JSON about the epoch that the unit is in: its number, digest, places and map."""
    standing = switch.standing
    return msgspec.json.encode(
        {
            "unit": launch.unit,
            "unit_digest": launch.unit_digest,
            "number": standing.number,
            "digest": standing.digest,
            "places": launch.places,
            "physical_to_logical": standing.physical_to_logical,
        }
    )
