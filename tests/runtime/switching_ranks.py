"""The ranks of a unit that switches epochs: `switching_ranks.py SIZE PORT CHECKPOINT FOLDER DTYPE NUM_SWITCHES`.

Each rank answers its prompts of `FOLDER/prompts.json` again and again, until NUM_SWITCHES maps have been proposed, each
drawn at random. `FAULTS` says in which switches one byte is wrong at rank 1. After each switch, each slot must hold its
expert byte for byte as in a fresh load. Each rank writes `FOLDER/RANK.json`:

    answers    prompt number -> the different lists of [token id, logprob], which must be one
    endings    what the first rank was told
    rows       for each switch, the rows that slots with a new expert have counted until the next
    totals     experts and bytes received
"""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import msgspec
import torch

from runtime.expert_parallel.epochs.checksums import as_bytes
from runtime.expert_parallel.epochs.document import first_standing
from runtime.expert_parallel.epochs.staging import Staging
from runtime.expert_parallel.epochs.switch import Proposal, Switch
from runtime.expert_parallel.factory import new_group
from runtime.expert_parallel.group import SoloGroup
from runtime.expert_parallel.rendezvous import MeetingPoint
from runtime.launch import UnitLaunch, canonical_digest
from runtime.model.engine import Engine, EngineConfig
from tests.runtime.identical_ranks import MAX_REQUEST_TOKENS, NUM_EXPERTS, expert_map, ids_and_logprobs, wishes
from tests.runtime.launch_documents import UNIT, seal
from tests.runtime.one_rank import Limits, Rank
from tests.runtime.rank_processes import fork_ranks

ADDRESS = "127.0.0.1"
REDUNDANT = 8
TURNS_BETWEEN = 12  # from the end of a switch to the next proposal, so that moved slots get rows
FAULTS = {2: "document", 3: "arrival", 4: "staging"}  # switch, counted from 1 -> where one byte is wrong


def unit_launch(size, physical_to_logical):
    """Return the launch file of a unit of `size` ranks in one place."""
    ranks = [{"place": 0, "local_rank": rank, "rank": rank} for rank in range(size)]
    slots = {"sha256": "", "num_logical_experts": NUM_EXPERTS, "physical_to_logical": physical_to_logical}
    return msgspec.convert(seal(UNIT, ranks=ranks, places=["node-0"], expert_map=slots), UnitLaunch)


def epoch_document(launch, standing, expert_map, **changes):
    """Return the document of the epoch after `standing`, with `changes` that its digest covers."""
    document = {
        "version": 1,
        "unit": launch.unit,
        "unit_digest": launch.unit_digest,
        "number": standing.number + 1,
        "predecessor": standing.digest,
        "places": launch.places,
        "physical_to_logical": expert_map,
    } | changes
    return json.dumps({"digest": canonical_digest(document)} | document).encode()


class SwitchingRank:
    """One rank with requests. `expected` holds every expert, each in the slot of its own number."""

    def __init__(self, engine, expected, group, launch, prompts):
        self.group, self.launch = group, launch
        self.layers, self.expected = engine.model.moe_layers(), expected.model.moe_layers()
        self.switch, self.load = Switch(launch, group, self.layers, first_standing(launch)), engine.model.load
        self.served = Rank(engine, "mixed", Limits(4, MAX_REQUEST_TOKENS, 100, 4096))
        self.wishes = {wish.id: wish for wish in wishes(prompts)}
        self.answers = {number: [] for number in self.wishes}
        self.endings, self.rows, self.held = [], [], self.switch.standing.physical_to_logical
        self.num_tried = 1
        self.moved = {}  # (layer, slot, expert) -> the rows that it had counted when it moved

    def run(self, num_switches):
        """Answer until the unit has tried so many switches and the last answers are complete."""
        maps = [expert_map(REDUNDANT, seed) for seed in range(1, num_switches + 1)]
        for wish in self.wishes.values():
            self.ask(wish, 0)
        standing, turns = self.switch.standing, 0
        while True:
            turns += 1
            is_ended = len(self.endings) + len(maps) == num_switches
            if self.group.rank == 0 and maps and is_ended and turns > TURNS_BETWEEN:
                self.propose(maps.pop(0))
            goes_on = self.group.rank == 0 and (len(self.endings) < num_switches or turns <= TURNS_BETWEEN)
            has_work, goes_on, lags, fails = self.group.vote(self.served.has_work(), goes_on, *self.switch.votes())
            self.switch.turn(lags, fails)
            if standing is not self.switch.standing:
                standing, turns, self.num_tried = self.switch.standing, 0, self.num_tried + 1
                self.note_switch()
            if not has_work and not goes_on:
                self.count_rows()
                return
            self.served.step()
            self.take_answers(goes_on)

    def propose(self, physical_to_logical):
        """Propose the next epoch."""
        content = epoch_document(self.launch, self.switch.standing, physical_to_logical)
        self.switch.propose(Proposal(content, self.endings.append))

    def ask(self, wish, number):
        """Ask for an answer once more."""
        self.served.ask(replace(wish, id=f"{wish.id}-{number}"))

    def take_answers(self, goes_on):
        """Keep what is complete, and ask again."""
        for request_id in list(self.served.done):
            number, _, asked = request_id.partition("-")
            answer = ids_and_logprobs(self.served.said.pop(request_id))
            self.served.done.remove(request_id)
            if answer not in self.answers[number]:
                self.answers[number].append(answer)
            if goes_on:
                self.ask(self.wishes[number], int(asked) + 1)

    def note_switch(self):
        """Check all slots, and note which have new experts."""
        self.count_rows()
        size = self.load.rows.shape[1]
        first = self.group.rank * size
        before, self.held = self.held, self.switch.standing.physical_to_logical
        for number, (layer, expected) in enumerate(zip(self.layers, self.expected, strict=True)):
            for slot in range(size):
                expert = self.held[number][first + slot]
                fresh = expected.expert_tensors(expert)
                for name, tensor in layer.expert_tensors(slot).items():
                    assert torch.equal(tensor.view(torch.uint8), fresh[name].view(torch.uint8)), (number, slot, name)
                if before[number][first + slot] != expert:
                    self.moved[number, slot, expert] = self.counted()[number, slot, expert]

    def count_rows(self):
        """Keep the rows that moved slots have counted since they moved."""
        if self.moved:
            counted = self.counted()
            self.rows.append(sum(counted[place] - rows for place, rows in self.moved.items()))
            self.moved.clear()

    def counted(self):
        """Return (layer, slot, expert) -> rows."""
        return {(layer, slot, expert): rows for layer, slot, expert, rows in self.load.counted_rows()}


def corrupt(group, served):
    """Let one byte be wrong of a document, of an expert that arrives, and of one that is staged and compared.

    The experts are of the last round with one, so others have taken effect.
    """
    trade, take_effect, hit = group.trade, Staging.take_effect, []

    def trade_wrongly(sends, receives):
        trade(sends, receives)
        tensors = [tensor for _, tensor in receives if tensor.dtype == torch.uint8]
        fault = FAULTS.get(served.num_tried)
        is_due = fault == "document" or (fault == "arrival" and is_last(served.switch._walk))
        if tensors and fault not in hit and is_due:
            hit.append(fault)
            tensors[-1][7] ^= 1

    def take_effect_wrongly(staging, layer, round_, checksums):
        if FAULTS.get(served.num_tried) == "staging" and staging.own_moves(round_) and is_last(served.switch._walk):
            as_bytes(staging._room[0])[0][7] ^= "staging" not in hit
            hit.append("staging")
        take_effect(staging, layer, round_, checksums)

    def is_last(walk):
        return walk.fetched is not None and not any(walk.staging.own_moves(later) for _, later in walk.rounds)

    group.trade, Staging.take_effect = trade_wrongly, take_effect_wrongly


def main(rank, size, port, checkpoint, folder, dtype, num_switches):
    group = new_group(rank, size)
    initial = expert_map(REDUNDANT, seed=0)
    engine = Engine(EngineConfig(checkpoint, initial, getattr(torch, dtype), True), group)
    plain = [list(range(NUM_EXPERTS)) for _ in initial]
    expected = Engine(EngineConfig(checkpoint, plain, getattr(torch, dtype), True), SoloGroup())
    group.join(MeetingPoint(ADDRESS, port, rank == 0, ADDRESS))
    prompts = json.loads((folder / "prompts.json").read_text())
    served = SwitchingRank(engine, expected, group, unit_launch(size, initial), prompts)
    if rank == 1:
        corrupt(group, served)
    served.run(num_switches)
    endings = [msgspec.to_builtins(ending) for ending in served.endings]
    found = {"answers": served.answers, "endings": endings, "rows": served.rows}
    (folder / f"{rank}.json").write_text(json.dumps(found | {"totals": asdict(served.switch.totals)}))
    group.any(False)  # nobody leaves while a peer still exchanges


if __name__ == "__main__":
    fork_ranks(main, *map(int, sys.argv[1:3]), *map(Path, sys.argv[3:5]), sys.argv[5], int(sys.argv[6]))
