"""Two ranks that share a GPU change their expert map between replays of one recorded step.

The ranks hold layers of DeepSeek-V3's width (`wide_layers.py`) and replay the same step of the same requests, over and
over. While a switch moves experts of some layers and while the next one moves them back, each replay must say the bits
that the first one said, and after each switch each slot must hold its expert byte for byte. So must the rows that moved
slots have counted be more than before: a switch that moves nothing would pass too.

How long a round takes effect does not depend on the link between ranks; how long it travels does, and here nothing
leaves the machine.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from runtime.expert_parallel.epochs.document import first_standing
from runtime.expert_parallel.epochs.switch import Ending, Proposal, Switch
from tests.gpu.quarter_hour import one_gpu
from tests.gpu.quarter_hour.wide_layers import SMALL, WIDE, Requests, WideRank, median_ms
from tests.runtime.switching_ranks import epoch_document, unit_launch

SIZE, SECONDS = 2, 70
MOVED_LAYERS = 2
QUIET_REPLAYS = 20


def main(arguments: argparse.Namespace) -> int:
    """Let both ranks switch there and back, and keep what they say."""
    figures = one_gpu.Figures(arguments.output)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(WIDE if arguments.device == "cuda" else SMALL))
        try:
            found = one_gpu.run_ranks(__spec__.name, SIZE, folder, arguments.device, SECONDS)
        except one_gpu.RanksFailed as failed:
            print(failed)
            return 1
    figures.add(ranks=found)
    wrong = [what for each in found for what in each["wrong"]]
    print("\n".join(wrong) if wrong else "replays beside two switches say what they said before")
    return int(bool(wrong))


def rank(arguments: argparse.Namespace) -> None:
    """Be one rank of the unit."""
    with torch.inference_mode():
        switching = SwitchingRank(WideRank(arguments, one_gpu.device(arguments)))
        found = switching.run()
        (arguments.folder / f"{arguments.rank}.json").write_text(json.dumps(found))
        switching.wide.group.any(False)  # nobody leaves while a peer still exchanges


class SwitchingRank:
    """A rank that replays one step, and what it finds wrong."""

    def __init__(self, wide: WideRank) -> None:
        self.wide, self.wrong = wide, wide.wrong
        wide.capture()
        requests = Requests(wide.group.rank, wide.cache, wide.config.vocab_size)
        wide.take_prompts(requests)
        texts = [[1] for _ in requests.prompts()]
        self.step = requests.chunks(list(range(len(texts))), texts)
        self.launch, self.layers = unit_launch(SIZE, wide.maps), wide.model.moe_layers()
        link = wide.backend.ops.link
        self.switch = Switch(self.launch, wide.group, self.layers, first_standing(self.launch), link)
        self.endings: list[Ending] = []
        self.expected = self.replay()[1]

    def run(self) -> dict[str, Any]:
        """Switch to other experts in some layers and back, and return what it took."""
        quiet = [self.replay()[0] for _ in range(QUIET_REPLAYS)]
        there, back = self.turned(self.wide.maps), self.wide.maps
        found = {"quiet_ms": median_ms(quiet), "switches": [self.follow(each) for each in (there, back)]}
        return found | {"wrong": self.wrong}

    def follow(self, maps: list[list[int]]) -> dict[str, Any]:
        """Switch to `maps` beside replays."""
        rows = self.wide.model.load.rows.sum().item()
        content = epoch_document(self.launch, self.switch.standing, maps)
        if self.wide.group.rank == 0:
            self.switch.propose(Proposal(content, self.endings.append))
        replays, turns, began = [], [], time.monotonic()
        number = self.switch.standing.number
        while self.wide.group.any(self.switch.standing.number == number and not self.has_failed()):
            lags, fails = self.wide.group.vote(*self.switch.votes())
            at = time.monotonic()
            self.switch.turn(lags, fails)
            turns.append(time.monotonic() - at)
            seconds, logits = self.replay()
            replays.append(seconds)
            if not torch.equal(logits, self.expected):
                self.wrong.append(f"rank {self.wide.group.rank}: replay {len(replays)} beside a switch differs")
        took = time.monotonic() - began
        self.check_slots()
        counted = self.wide.model.load.rows.sum().item() - rows
        if not counted and self.step:
            self.wrong.append("no rows were counted")
        totals = self.switch.totals
        return {
            "seconds": round(took, 2),
            "moves": totals.moves,
            "gb": round(totals.num_bytes / 1e9, 3),
            "replays": len(replays),
            "replay_ms": median_ms(replays),
            "longest_replay_ms": round(1e3 * max(replays), 2),
            "longest_turn_ms": round(1e3 * max(turns), 2),
            "ending": [each.reason or each.number for each in self.endings],
        }

    def has_failed(self) -> bool:
        """Return whether the first rank was told that the last switch led back."""
        return bool(self.endings) and self.endings[-1].reason is not None

    def turned(self, maps: list[list[int]]) -> list[list[int]]:
        """Return the maps with the slots of the first layers turned by one rank's."""
        turn = len(maps[0]) // SIZE
        return [[*slots[turn:], *slots[:turn]] if layer < MOVED_LAYERS else slots for layer, slots in enumerate(maps)]

    def replay(self) -> tuple[float, torch.Tensor]:
        """Replay the step, and return the seconds and the logits."""
        began = time.monotonic()
        logits = self.wide.replayed(self.step).to("cpu", copy=True)
        return time.monotonic() - began, logits

    def check_slots(self) -> None:
        """Compare the experts of the layers that moved with what is drawn for them."""
        size = self.wide.model.load.rows.shape[1]
        for number in range(MOVED_LAYERS):
            for slot in range(size):
                expert = self.switch.slots[number][self.wide.group.rank * size + slot]
                if not self.wide.holds(number, slot, expert):
                    self.wrong.append(f"rank {self.wide.group.rank}: layer {number} slot {slot} is not {expert}")


if __name__ == "__main__":
    sys.exit(one_gpu.part(main, rank, __doc__))
