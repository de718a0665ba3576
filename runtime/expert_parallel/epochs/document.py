"""The document of an epoch: the map that a unit is to follow next, read and checked before any rank moves a weight.

    epoch      a unit's places and the map of each MoE layer, under one number. The unit starts in epoch 0, which its
               launch file describes and whose digest is therefore the unit's
    standing   the epoch that a unit is in

A document is good for one unit in one epoch: it names the unit, the digest of its launch file's part, and the digest of
the epoch that it follows. So a document that was made before another change is refused, and so is a torn or edited one.
A digest proves no author: whoever may hand in a document may move experts.

Places may be None, which says that nobody has the place. This runtime serves no unit with such a hole, and refuses it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from runtime.errors import EpochError
from runtime.launch import UnitLaunch, canonical_digest, find_slot_fault

__all__ = ["MAX_DOCUMENT_BYTES", "Epoch", "Standing", "first_standing", "read_adopted_epoch", "read_epoch"]

MAX_DOCUMENT_BYTES = 2**26  # as for a launch file, which holds such a map too
SHOWN_CHARACTERS = 100  # assumed: a digest has 71, and a unit's name at most 63


class Epoch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An epoch's document.

    `digest` is the digest of all other fields; `places` names the planned node of each place.
    """

    version: Literal[1]
    digest: str
    unit: str
    unit_digest: str
    number: Annotated[int, msgspec.Meta(ge=1)]
    predecessor: str
    places: list[str | None]
    physical_to_logical: list[list[int]]


@dataclass(frozen=True)
class Standing:
    """The epoch that a unit is in. Slots hold what `physical_to_logical` says, in any order within a rank."""

    number: int
    digest: str
    physical_to_logical: list[list[int]]


def first_standing(launch: UnitLaunch) -> Standing:
    """Return epoch 0, in which the unit starts."""
    return Standing(0, launch.unit_digest, launch.expert_map.physical_to_logical)


def read_epoch(content: bytes, launch: UnitLaunch, standing: Standing) -> Epoch:
    """Return the epoch in a document.

    Raises EpochError if the document is damaged, is not of this unit, or is not the epoch after `standing`.
    """
    epoch = _read_of_unit(content, launch)
    _require(epoch, "predecessor", standing.digest, f"the unit is in epoch {standing.number}, and this is not the next")
    _require(epoch, "number", standing.number + 1, f"the unit is in epoch {standing.number}")
    return epoch


def read_adopted_epoch(content: bytes, launch: UnitLaunch) -> Standing:
    """Return the epoch that a unit was in when it ended, from its document.

    Raises EpochError if the document is not of this unit, or is torn or changed.
    """
    epoch = _read_of_unit(content, launch)
    return Standing(epoch.number, epoch.digest, epoch.physical_to_logical)


def _read_of_unit(content: bytes, launch: UnitLaunch) -> Epoch:
    """Return the epoch in a document, whatever its number.

    Raises EpochError if the document is not of this unit, has no map of it, is too large, or is torn or changed.
    """
    if len(content) > MAX_DOCUMENT_BYTES:
        raise EpochError(f"the epoch has more than {MAX_DOCUMENT_BYTES} bytes, which no map needs")
    document = _decode(content)
    epoch = _convert(document)
    computed = canonical_digest({key: value for key, value in document.items() if key != "digest"})
    if epoch.digest != computed:
        raise EpochError(f"the epoch was changed: its digest says {_cut(epoch.digest)}, its content is {computed}")
    _require(epoch, "unit", launch.unit, "it is for another unit")
    _require(epoch, "unit_digest", launch.unit_digest, "it is for another plan or model")
    _require(epoch, "places", launch.places, "this runtime serves a unit with all its places or not at all")
    _check_map(epoch.physical_to_logical, launch.expert_map.physical_to_logical)
    return epoch


def _decode(content: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EpochError(f"the epoch is not a JSON object: {error}") from None


def _convert(document: dict[str, Any]) -> Epoch:
    try:
        return msgspec.convert(document, Epoch)
    except msgspec.ValidationError as error:
        raise EpochError(f"the epoch is refused: {_cut(error)}") from None


def _require(epoch: Epoch, name: str, expected: object, reason: str) -> None:
    found = getattr(epoch, name)
    if found != expected:
        raise EpochError(f"the epoch's {name} ({_cut(found)}) must be {_cut(expected)}: {reason}")


def _check_map(layers: Sequence[Sequence[int]], current: Sequence[Sequence[int]]) -> None:
    if len(layers) != len(current):
        raise EpochError(f"the epoch has {len(layers)} MoE layers, the unit {len(current)}")
    for layer, (slots, held) in enumerate(zip(layers, current, strict=True)):
        if len(slots) != len(held):
            raise EpochError(f"the epoch has {len(slots)} slots in MoE layer {layer}, the unit {len(held)}")
        if fault := find_slot_fault(layer, slots, held):
            raise EpochError(f"the epoch {fault}")


def _cut(found: object) -> str:
    """Return the beginning of what a document says, which may have megabytes."""
    said = str(found)
    return said if len(said) <= SHOWN_CHARACTERS else f"{said[:SHOWN_CHARACTERS]}..."
