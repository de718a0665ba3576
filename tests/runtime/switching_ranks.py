"""The ranks of a unit that switches epochs: `switching_ranks.py SIZE PORT CHECKPOINT FOLDER`, with a `Job` in FOLDER.

Each rank answers its prompts again and again while the unit goes from map to map. After each switch, each slot must
hold its expert byte for byte as in a fresh load. Then come windows in threes: in the second of them the unit switches
all the time, in the others never. Each rank writes `FOLDER/RANK.json`:

    answers    prompt number -> the different lists of [token id, logprob], which must be one
    num_asked, num_answered
    endings    what the first rank was told
    rows       for each switch, the rows that slots with a new expert have counted until the next
    totals     experts and bytes received
    windows    a list for each window, in order: whether the unit switched in it, and the seconds between tokens
    stall_s    the longest time that a switch has held up a step
"""

import json
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
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
from runtime.protocol.messages import Token
from tests.runtime.identical_ranks import MAX_REQUEST_TOKENS, ids_and_logprobs, wishes
from tests.runtime.launch_documents import UNIT, seal
from tests.runtime.one_rank import Limits, Rank
from tests.runtime.rank_processes import fork_ranks

ADDRESS = "127.0.0.1"
TURNS_BETWEEN = 12  # from the end of a switch to the next proposal, so that moved slots get rows


@dataclass(frozen=True)
class Job:
    """What ranks do: `streams` has each rank's prompts by number. `faults`: switch, from 1 -> where a byte is wrong."""

    dtype: str
    prompts: list[list[int]]
    streams: list[list[int]]
    initial: list[list[int]]
    maps: list[list[list[int]]]
    faults: dict[str, str] = field(default_factory=dict)
    num_triples: int = 0
    window_turns: int = 0

    def write(self, folder):
        """Write it where the ranks read it."""
        (folder / "job.json").write_text(json.dumps(asdict(self)))


def unit_launch(size, physical_to_logical):
    """Return the launch file of a unit of `size` ranks in one place."""
    ranks = [{"place": 0, "local_rank": rank, "rank": rank} for rank in range(size)]
    num_experts = max(physical_to_logical[0]) + 1
    slots = {"sha256": "", "num_logical_experts": num_experts, "physical_to_logical": physical_to_logical}
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

    def __init__(self, engine, expected, group, job):
        self.group, self.job, self.launch = group, job, unit_launch(group.size, job.initial)
        self.layers, self.expected = engine.model.moe_layers(), expected.model.moe_layers()
        standing = first_standing(self.launch)
        self.switch, self.load = Switch(self.launch, group, self.layers, standing), engine.model.load
        self.served = Rank(engine, "mixed", Limits(4, MAX_REQUEST_TOKENS, 100, 4096))
        self.say, self.served.say = self.served.say, self.note_token
        self.wishes = {wish.id: wish for wish in wishes(job.prompts) if int(wish.id) in job.streams[group.rank]}
        self.answers, self.num_asked, self.num_answered = {number: [] for number in self.wishes}, Counter(), 0
        self.endings, self.rows, self.held = [], [], standing.physical_to_logical
        self.num_tried, self.stall_s = 1, 0.0
        self.moved = (
            None  # before the first switch; then (layer, slot, expert) -> the rows that it had counted when it moved
        )
        self.windows, self.is_timed, self.last_said = [], False, {}

    def run(self):
        """Answer until the first rank's script is over and the last answers are complete."""
        for wish in self.wishes.values():
            self.ask(wish)
        script, noted = self.lead() if self.group.rank == 0 else iter(()), self.switch.slots
        while True:
            goes_on, is_timed, switches = next(script, (False, False, False))
            votes = self.served.has_work(), goes_on, is_timed, switches, *self.switch.votes()
            has_work, goes_on, is_timed, switches, lags, fails = self.group.vote(*votes)
            if is_timed and not self.is_timed:
                self.windows.append((switches, []))
            self.is_timed = is_timed
            began = time.monotonic()
            self.switch.turn(lags, fails)
            self.stall_s = max(self.stall_s, time.monotonic() - began)
            if not is_timed and noted is not self.switch.slots:
                noted, self.num_tried = self.switch.slots, self.num_tried + 1
                self.note_switch()
            if not has_work and not goes_on:
                self.count_rows()
                return
            self.served.step()
            self.take_answers(goes_on)

    def lead(self):
        """Yield, for each turn, whether ranks go on, whether they note times, and whether they switch."""
        untimed = True, False, False
        for each in self.job.maps:
            yield from [untimed] * TURNS_BETWEEN
            yield from self.switch_to(each, untimed)
        yield from [untimed] * TURNS_BETWEEN
        for switches in (False, True, False) * self.job.num_triples:
            yield from self.window(switches)
            yield untimed
        yield from [untimed] * TURNS_BETWEEN

    def window(self, switches):
        """Yield the turns of a window in which ranks note times."""
        if not switches:
            yield from [(True, True, False)] * self.job.window_turns
            return
        num_turns = 0
        while num_turns < self.job.window_turns:
            num_turns += yield from self.switch_to(self.job.maps[len(self.endings) % len(self.job.maps)], (True,) * 3)

    def switch_to(self, physical_to_logical, turn):
        """Propose a map, and yield `turn` until the switch has ended. Return the number of turns."""
        content = epoch_document(self.launch, self.switch.standing, physical_to_logical)
        num_before, num_turns = len(self.endings), 0
        self.switch.propose(Proposal(content, self.endings.append))
        while len(self.endings) == num_before:
            num_turns += 1
            yield turn
        return num_turns

    def ask(self, wish):
        """Ask for an answer once more."""
        self.served.ask(replace(wish, id=f"{wish.id}-{self.num_asked[wish.id]}"))
        self.num_asked[wish.id] += 1

    def note_token(self, said):
        """Pass on what the rank says, and keep the seconds between two tokens of one window."""
        self.say(said)
        if self.is_timed and isinstance(said, Token):
            window, now = self.windows[-1], time.monotonic()
            last_window, before = self.last_said.get(said.request_id, (None, 0.0))
            if last_window is window:
                window[1].append(now - before)
            self.last_said[said.request_id] = window, now

    def take_answers(self, goes_on):
        """Keep what is complete, and ask again."""
        for request_id in list(self.served.done):
            number = request_id.partition("-")[0]
            answer = ids_and_logprobs(self.served.said.pop(request_id))
            self.served.done.remove(request_id)
            self.last_said.pop(request_id, None)
            self.num_answered += 1
            if answer not in self.answers[number]:
                self.answers[number].append(answer)
            if goes_on:
                self.ask(self.wishes[number])

    def note_switch(self):
        """Check all slots, and note which have new experts."""
        self.count_rows()
        size = self.load.rows.shape[1]
        first = self.group.rank * size
        before, self.held = self.held, self.switch.slots
        for number, (layer, expected) in enumerate(zip(self.layers, self.expected, strict=True)):
            for slot in range(size):
                expert = self.held[number][first + slot]
                fresh = expected.expert_tensors(expert)
                for name, tensor in layer.expert_tensors(slot).items():
                    assert torch.equal(tensor.view(torch.uint8), fresh[name].view(torch.uint8)), (number, slot, name)
                if before[number][first + slot] != expert:
                    self.moved[number, slot, expert] = self.counted()[number, slot, expert]

    def count_rows(self):
        """Keep the rows that the slots moved by the last switch have counted since."""
        if self.moved is not None:
            counted = self.counted()
            self.rows.append(sum(counted[place] - rows for place, rows in self.moved.items()))
        self.moved = {}

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
        fault = served.job.faults.get(str(served.num_tried))
        is_due = fault == "document" or (fault == "arrival" and is_last(served.switch._walk))
        if tensors and fault not in hit and is_due:
            hit.append(fault)
            tensors[-1][-1] ^= 1

    def take_effect_wrongly(staging, layer, round_, checksums):
        if (
            served.job.faults.get(str(served.num_tried)) == "staging"
            and staging.own_moves(round_)
            and is_last(served.switch._walk)
        ):
            as_bytes(staging._room[0])[0][7] ^= "staging" not in hit
            hit.append("staging")
        take_effect(staging, layer, round_, checksums)

    def is_last(walk):
        return walk.fetched is not None and not any(walk.staging.own_moves(later) for _, later in walk.rounds)

    group.trade, Staging.take_effect = trade_wrongly, take_effect_wrongly


def main(rank, size, port, checkpoint, folder):
    group, job = new_group(rank, size), Job(**json.loads((folder / "job.json").read_text()))
    engine = Engine(EngineConfig(checkpoint, job.initial, getattr(torch, job.dtype), True), group)
    plain = [sorted(set(layer)) for layer in job.initial]
    expected = Engine(EngineConfig(checkpoint, plain, getattr(torch, job.dtype), True), SoloGroup())
    group.join(MeetingPoint(ADDRESS, port, rank == 0, ADDRESS))
    served = SwitchingRank(engine, expected, group, job)
    if rank == 1:
        corrupt(group, served)
    served.run()
    found = {
        "answers": served.answers,
        "num_asked": served.num_asked.total(),
        "num_answered": served.num_answered,
        "endings": [msgspec.to_builtins(ending) for ending in served.endings],
        "rows": served.rows,
        "totals": asdict(served.switch.totals),
        "windows": served.windows,
        "stall_s": served.stall_s,
    }
    (folder / f"{rank}.json").write_text(json.dumps(found))
    group.any(False)  # nobody leaves while a peer still exchanges


if __name__ == "__main__":
    fork_ranks(main, *map(int, sys.argv[1:3]), *map(Path, sys.argv[3:5]))
