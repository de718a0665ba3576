"""The socket for documents of epochs, and the document that a unit begins with when it starts again."""

import asyncio
import json

import pytest

from runtime.expert_parallel.epochs.document import Standing, first_standing
from runtime.expert_parallel.epochs.switch import Ending
from runtime.worker.control import Control, last_standing
from tests.runtime.switching_ranks import epoch_document, unit_launch

MAP = [[*range(16)], [*reversed(range(16))]]
OTHER = [MAP[1], MAP[0]]
LAUNCH = unit_launch(2, MAP)
FIRST = first_standing(LAUNCH)
THIRD = Standing(3, FIRST.digest, OTHER)


class PlayedSwitch:
    """A switch that ends at once, with a reason or without one."""

    def __init__(self, reason):
        self.standing, self.reason = FIRST, reason

    def propose(self, proposal):
        proposal.tell(Ending(1, "sha256:1", reason=self.reason))


def hand_in(content, folder, reason):
    """Hand a document to a control socket in `folder`. Return the rank's second line."""

    async def call():
        control = Control(LAUNCH, PlayedSwitch(reason), folder)
        server = await asyncio.start_unix_server(control.serve, folder / "socket")
        reader, writer = await asyncio.open_unix_connection(folder / "socket")
        writer.write(content + b"\n")
        lines = [await reader.readline(), await reader.readline()]
        writer.close()
        server.close()
        return json.loads(lines[1])

    return asyncio.run(call())


def test_a_unit_begins_with_the_epoch_that_it_was_in(tmp_path):
    """The document of an epoch that has been adopted is there when its caller is told, and a later start reads it."""
    content = epoch_document(LAUNCH, FIRST, OTHER)
    said = hand_in(content, tmp_path, reason=None)
    standing = last_standing(LAUNCH, tmp_path)

    assert "reason" not in said
    assert (standing.number, standing.digest) == (1, json.loads(content)["digest"])
    assert standing.physical_to_logical == OTHER


def test_a_unit_does_not_begin_with_what_it_did_not_adopt(tmp_path):
    """A document whose switch led back is not kept; without a kept one, or a folder, a unit begins in epoch 0."""
    hand_in(epoch_document(LAUNCH, FIRST, OTHER), tmp_path, reason="a rank had other bytes")

    assert last_standing(LAUNCH, tmp_path) == last_standing(LAUNCH, None) == FIRST


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda whole: whole[:-9], "is not a JSON object"),
        (lambda whole: whole.replace(b'"number": 4', b'"number": 5'), "was changed"),
        (lambda _: epoch_document(LAUNCH, THIRD, OTHER, unit="demo-prefill-0"), "it is for another unit"),
        (lambda _: epoch_document(LAUNCH, THIRD, OTHER, unit_digest="sha256:" + "0" * 64), "another plan or model"),
        (lambda _: epoch_document(LAUNCH, THIRD, [MAP[0]]), "has 1 MoE layers, the unit 2"),
    ],
)
def test_a_unit_does_not_begin_with_a_wrong_document(tmp_path, capfd, change, said):
    """A torn, forged or foreign document in the folder is refused, the log says why, and the unit begins in epoch 0."""
    (tmp_path / f"{LAUNCH.unit}.epoch.json").write_bytes(change(epoch_document(LAUNCH, THIRD, OTHER)))

    assert last_standing(LAUNCH, tmp_path) == FIRST
    assert said in capfd.readouterr().err


def test_a_caller_who_leaves_changes_nothing(tmp_path):
    """A caller that is killed after it has sent a document leaves a unit that is in the new epoch, and begins in it."""

    async def call_and_leave():
        control = Control(LAUNCH, PlayedSwitch(None), tmp_path)
        server = await asyncio.start_unix_server(control.serve, tmp_path / "socket")
        reader, writer = await asyncio.open_unix_connection(tmp_path / "socket")
        await reader.readline()
        writer.write(epoch_document(LAUNCH, FIRST, OTHER) + b"\n")
        await writer.drain()
        writer.transport.abort()
        while last_standing(LAUNCH, tmp_path) == FIRST:
            await asyncio.sleep(0.01)
        server.close()

    asyncio.run(asyncio.wait_for(call_and_leave(), 20))

    assert last_standing(LAUNCH, tmp_path).number == 1
