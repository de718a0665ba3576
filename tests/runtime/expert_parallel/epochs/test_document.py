"""An epoch's document is good for one unit in one epoch, as it was written."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import EpochError
from runtime.expert_parallel.epochs.document import Standing, first_standing, read_epoch
from tests.runtime.switching_ranks import epoch_document, unit_launch

NUM_EXPERTS = 16
MAP = [[*range(NUM_EXPERTS)], [*reversed(range(NUM_EXPERTS))]]
OTHER = [MAP[1], MAP[0]]
LAUNCH = unit_launch(2, MAP)
FIRST = first_standing(LAUNCH)
ZERO = "sha256:" + "0" * 64


def test_the_next_epoch_of_this_unit_is_read():
    """A document of this unit that follows its epoch is read, and another one can follow it."""
    epoch = read_epoch(epoch_document(LAUNCH, FIRST, OTHER), LAUNCH, FIRST)
    after = Standing(epoch.number, epoch.digest, epoch.physical_to_logical)

    assert (epoch.number, epoch.physical_to_logical) == (1, OTHER)
    assert read_epoch(epoch_document(LAUNCH, after, MAP), LAUNCH, after).number == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"unit": "demo-prefill-0"}, "unit .demo-prefill-0. must be demo-decode-0: it is for another unit"),
        ({"unit_digest": ZERO}, "unit_digest .* must be .*: it is for another plan or model"),
        ({"predecessor": ZERO}, "predecessor .* must be .*: the unit is in epoch 0, and this is not the next"),
        ({"number": 2}, "number .2. must be 1: the unit is in epoch 0"),
        ({"places": [None]}, "places .* must be .*: this runtime serves a unit with all its places or not at all"),
        ({"version": 2}, "Invalid enum value 2"),
        ({"reason": "better"}, "contains unknown field `reason`"),
        ({"physical_to_logical": [MAP[0]]}, "has 1 MoE layers, the unit 2"),
        ({"physical_to_logical": [[*MAP[0], 0, 1], MAP[1]]}, "has 18 slots in MoE layer 0, the unit 16"),
        ({"physical_to_logical": [MAP[0], [0, *MAP[1][1:]]]}, "leaves expert 15 of MoE layer 1 without a slot"),
        ({"physical_to_logical": [MAP[0], [*range(1, 17)]]}, "leaves expert 0 of MoE layer 1 without a slot"),
    ],
)
def test_a_document_for_something_else_is_refused(changes, said):
    """A document of another unit, plan, epoch or form is refused, and the message names what is wrong."""
    with pytest.raises(EpochError, match=said):
        read_epoch(epoch_document(LAUNCH, FIRST, OTHER, **changes), LAUNCH, FIRST)


@pytest.mark.parametrize("name", ["unit", "unit_digest", "digest", "places", "an unknown field"])
def test_a_reason_does_not_repeat_megabytes(name):
    """The reason goes to the caller, to status and to logs."""
    long = "u" * 2**20
    changes = {long: 1} if name.startswith("an ") else {name: [long] if name == "places" else long}
    content = json.dumps(json.loads(epoch_document(LAUNCH, FIRST, OTHER)) | changes).encode()
    if name not in ("digest", "an unknown field"):
        content = epoch_document(LAUNCH, FIRST, OTHER, **changes)
    with pytest.raises(EpochError) as caught:
        read_epoch(content, LAUNCH, FIRST)

    assert len(str(caught.value)) < 400


def test_a_document_from_before_another_change_is_refused():
    """Of two documents that follow one epoch, the second is refused once the first is in service."""
    stale = epoch_document(LAUNCH, FIRST, MAP)
    epoch = read_epoch(epoch_document(LAUNCH, FIRST, OTHER), LAUNCH, FIRST)

    with pytest.raises(EpochError, match="predecessor"):
        read_epoch(stale, LAUNCH, Standing(epoch.number, epoch.digest, OTHER))


@given(st.data())
def test_a_torn_or_edited_document_is_refused(data):
    """A document that was cut off or edited is refused, wherever that was."""
    whole = epoch_document(LAUNCH, FIRST, OTHER)
    place = data.draw(st.integers(0, len(whole) - 1))
    torn, edited = whole[:place], bytearray(whole)
    edited[place] = data.draw(st.integers(0, 255).filter(lambda byte: byte != whole[place]))
    for content in (torn, bytes(edited)):
        if _loads(content) != json.loads(whole):  # other spaces say the same
            with pytest.raises(EpochError):
                read_epoch(content, LAUNCH, FIRST)


def _loads(content):
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
