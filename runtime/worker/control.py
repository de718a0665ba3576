"""The socket at which a unit's first rank takes the document of an epoch, from a user of its machine.

    rank   -> caller   {"unit", "unit_digest", "number", "digest", "places"}: the epoch that the unit is in
    caller -> rank     the document of the next epoch (`expert_parallel/epochs/document.py`)
    rank   -> caller   `Ending`, when the switch has ended, or at once with the reason why it does not begin

Each is one line of JSON. The socket is a file in a folder, so only those who may open that folder may move experts.
Beside it lies the document of the epoch that the unit is in, if it is not epoch 0. A unit that starts again begins with
it. The rank writes it before it tells the caller, so a caller who was told is right.
"""

import asyncio
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from runtime.errors import EpochError, RuntimeFailure
from runtime.expert_parallel.epochs.document import Standing, first_standing, read_adopted_epoch
from runtime.expert_parallel.epochs.switch import Ending, Proposal, Switch
from runtime.launch import UnitLaunch

__all__ = ["Control", "last_standing", "listen_in"]


def last_standing(launch: UnitLaunch, folder: Path | None) -> Standing:
    """Return the epoch in which a unit starts: the epoch whose document lies in `folder`, else epoch 0.

    A document that is torn, changed or of another unit is refused and logged.
    """
    if folder is None or not (kept := _kept_epoch(folder, launch.unit)).exists():
        return first_standing(launch)
    try:
        return read_adopted_epoch(kept.read_bytes(), launch)
    except (OSError, EpochError) as error:
        _log(f"unit {launch.unit} begins in epoch 0, because {kept} is refused: {error}")
        return first_standing(launch)


def listen_in(folder: Path, unit: str) -> socket.socket:
    """Return a socket that listens at `folder`/`unit`.epoch, however long the path is.

    Raises RuntimeFailure if it cannot.
    """
    listener, name = socket.socket(socket.AF_UNIX), f"{unit}.epoch"
    try:
        here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(FileNotFoundError):  # an earlier process's
                os.unlink(name, dir_fd=here)
            listener.bind(f"/proc/self/fd/{here}/{name}")  # the path of a socket has at most 107 characters (unix(7))
            listener.listen()
        finally:
            os.close(here)
    except OSError as error:
        listener.close()
        raise RuntimeFailure(f"cannot listen at {folder / name}: {str(error.strerror).lower()}") from None
    return listener


class Control:
    """Takes documents of epochs from the callers of the unit's control socket, on the rank's event loop."""

    def __init__(self, launch: UnitLaunch, switch: Switch, folder: Path) -> None:
        self._launch, self._switch = launch, switch
        self._kept = _kept_epoch(folder, launch.unit)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send one caller the unit's epoch, read the next epoch's document, and send how the switch to it ended."""
        try:
            writer.write(_line(self._standing()))
            writer.write(_line(await self._switch_to(await reader.readuntil())))
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # it left, or sent no document
        finally:
            writer.close()

    async def _switch_to(self, content: bytes) -> Ending:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Ending] = loop.create_future()

        def tell(ending: Ending) -> None:
            loop.call_soon_threadsafe(ended.set_result, ending)

        try:
            self._switch.propose(Proposal(content, tell))
        except EpochError as error:
            standing = self._switch.standing
            return Ending(standing.number, standing.digest, reason=str(error))
        ending = await ended
        if ending.reason is None:
            self._keep(content)
        return ending

    def _keep(self, content: bytes) -> None:
        """Write the document of the unit's present epoch to a file, so that a restart begins in this epoch."""
        partial = self._kept.with_suffix(".partial")
        try:
            partial.write_bytes(content)
            partial.replace(self._kept)
        except OSError as error:
            _log(f"a restart of unit {self._launch.unit} forgets its epoch: {self._kept} cannot be written: {error}")

    def _standing(self) -> dict[str, object]:
        launch, standing = self._launch, self._switch.standing
        return {
            "unit": launch.unit,
            "unit_digest": launch.unit_digest,
            "number": standing.number,
            "digest": standing.digest,
            "places": launch.places,
        }


def _kept_epoch(folder: Path, unit: str) -> Path:
    return folder / f"{unit}.epoch.json"


def _log(sentence: str) -> None:
    print(f"tidemill: {sentence}", file=sys.stderr, flush=True)


def _line(message: object) -> bytes:
    return msgspec.json.encode(message) + b"\n"
