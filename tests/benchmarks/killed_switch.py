"""A decode rank of the running demo is killed or frozen at a stage of a switch: what does its unit serve afterwards?

    python -m tests.benchmarks.killed_switch [--kills 50] [--seed 0]

Callers ask without a pause, and every answer must be the text of a day without faults. Each time the unit is given a
map drawn at random, and one of its ranks, the leader in every other turn, strikes itself with SIGKILL or SIGSTOP at one
of the stages of `planted_kill/`. Then the unit must be started again, all its ranks must say the same epoch, which is
the one before or, always if the command has said so, the new one. The next map must go through: it compares every slot.
At the end documents that are torn, forged, stale, or of another unit or plan are handed in, and must be refused.

Exits with 1 when an answer was wrong, a unit did not come back, or its ranks disagreed.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest

from planner.facts.digest import digest_of
from stacks.local.hand_over import _connect, _read_line
from stacks.measured.epochs import next_document
from tests.benchmarks.faults import RECOVERED_S, Load, expected_texts, hosts_of, restarts
from tests.benchmarks.goals import Goals
from tests.benchmarks.planted_kill.sitecustomize import STAGES
from tests.stacks.deployments import HOSTS, Tidemill, decode_samples, wait_until
from tests.stacks.fire import launch_files

UNIT = "demo-decode-0"
PLANTED = Path(__file__).with_name("planted_kill")
REPOSITORY = Path(__file__).parents[2]
LEADER, OTHERS = "0.0", ["0.1", "1.0", "1.1"]  # place and local rank
REPEATED = ("fetching", "staged", "exchanged", "following")  # stages that a switch has many times
PASSES = 8  # at most, before a strike in one of these
SIGNALS = (signal.SIGKILL, signal.SIGSTOP)


def epochs(tidemill: Tidemill) -> list[tuple[int, str]]:
    """Return each rank's epoch and digest."""
    infos = [s for rank in decode_samples(tidemill) for s in rank if s.name == "tidemill_expert_map_info"]
    return [(int(each.labels["epoch"]), each.labels["digest"]) for each in infos]


@contextmanager
def planted_kills(folder: Path) -> Iterator[None]:
    """Let ranks that are started now look for files in `folder`, and strike themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLANTED_KILLS", str(folder))
        patch.setenv("PYTHONPATH", f"{PLANTED}:{REPOSITORY}")
        yield


class Maps:
    """Maps of the unit, drawn at random."""

    def __init__(self, tidemill: Tidemill, folder: Path, draw: random.Random) -> None:
        self._tidemill, self._file, self._draw = tidemill, folder / "map.json", draw
        self.layers = launch_files(tidemill)[UNIT]["expert_map"]["physical_to_logical"]

    def draw(self) -> list[list[int]]:
        """Return another map."""
        return [self._draw.sample(layer, len(layer)) for layer in self.layers]

    def apply(self) -> tuple[int, str]:
        """Hand one to the unit. Return the command's status and what it said."""
        self._file.write_text(json.dumps(self.draw()))
        done = self._tidemill.run("experts", "apply", self._file, "--unit", UNIT)
        return done.returncode, done.stdout + done.stderr


def strike(tidemill: Tidemill, maps: Maps, planted: Path, number: signal.Signals, passes: int) -> tuple[float, str]:
    """Strike in a switch. Return the seconds until all is ready again, and what was wrong."""
    times, before = restarts(tidemill.status()), epochs(tidemill)[0]
    planted.write_text(f"{number:d} {passes}")
    began = time.monotonic()
    status, said = maps.apply()
    if planted.exists():
        planted.unlink()
        return 0.0, f"nothing was struck: {said}"
    wait_until(lambda: is_ready_again(tidemill, times), RECOVERED_S)
    seconds, found = time.monotonic() - began, set(epochs(tidemill))
    number_after = max(found)[0]
    status_after, said_after = maps.apply()
    faults = {
        f"its ranks are in {found}": len(found) != 1,
        f"it was in {before}, is in {found}": before not in found and number_after != before[0] + 1,
        f"it is in {found}, and the command said {status} {said}": status == 0 and number_after != before[0] + 1,
        f"the command said {status} {said}": status not in (0, 1) or "Traceback" in said,
        f"the next map: {said_after}": status_after != 0,
    }
    return seconds, "; ".join(fault for fault, is_so in faults.items() if is_so)


def is_ready_again(tidemill: Tidemill, times: int) -> bool:
    """Whether the unit was started again, and everything is ready."""
    status = tidemill.status()
    return restarts(status) > times and all(each["state"] == "ready" for each in status["units"])


def accepted(tidemill: Tidemill, layers: Sequence[Sequence[int]]) -> list[str]:
    """Hand in documents that are not for the unit's next epoch. Return those that were not refused."""
    (folder,) = (tidemill.state / "tidemill").glob("*/launch")
    found = []
    for name in ("torn", "forged", "stale", "another unit's", "another plan's", "no JSON"):
        with _connect(folder, f"{UNIT}.epoch") as rank, rank.makefile("rb") as said:
            standing = _read_line(said)
            rank.sendall(broken(name, standing, layers) + b"\n")
            if "reason" not in _read_line(said):
                found.append(name)
    return found


def broken(name: str, standing: dict, layers: Sequence[Sequence[int]]) -> bytes:
    """Return a document that the unit must refuse."""
    document = next_document(standing, layers)
    match name:
        case "torn":
            return json.dumps(document)[:-9].encode()
        case "forged":
            return json.dumps(document | {"digest": digest_of({})}).encode()
        case "stale":
            return json.dumps(next_document(standing | {"digest": digest_of({})}, layers)).encode()
        case "another unit's":
            return json.dumps(next_document(standing | {"unit": "demo-decode-1"}, layers)).encode()
        case "another plan's":
            return json.dumps(next_document(standing | {"unit_digest": digest_of({})}, layers)).encode()
    return b"moves"


def main() -> int:
    """Strike, print a table, and hold it against the goals."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw, goals, wrong = random.Random(arguments.seed), Goals(), 0
    took: dict[tuple[str, str], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tidemill = Tidemill(next(HOSTS), folder / "state")
        with planted_kills(folder):
            done = tidemill.up()
        if done.returncode:
            raise SystemExit(done.stderr)
        try:
            maps, kinds = Maps(tidemill, folder, draw), list(product(SIGNALS, STAGES))
            with Load(hosts_of(tidemill), expected_texts(tidemill.host)) as load:
                for turn in range(arguments.kills):
                    number, stage = kinds[turn % len(kinds)]
                    rank = LEADER if (turn + turn // len(kinds)) % 2 else draw.choice(OTHERS)
                    passes = draw.randrange(PASSES) if stage in REPEATED else 0
                    seconds, fault = strike(tidemill, maps, folder / f"{rank}.{stage}", number, passes)
                    took[number.name, "leader" if rank == LEADER else "another rank"].append(seconds)
                    wrong += bool(fault)
                    print(f"{turn + 1:>3} {number.name} {rank} {stage}: {seconds:.1f} s {fault}", flush=True)
                let_in = accepted(tidemill, maps.layers)
        finally:
            tidemill.run("down")
    for (number_name, who), seconds_of in sorted(took.items()):
        figures = f"median {statistics.median(seconds_of):.1f} s, worst {max(seconds_of):.1f} s"
        print(f"{number_name} of {who}: {len(seconds_of)} times, ready again after {figures}")
    print(f"load average {os.getloadavg()[0]:.1f}", *load.findings.wrong[:10], sep="\n")
    goals.check("kills after which the unit was wrong", wrong, "==", 0)
    goals.check("answers", load.findings.num_answers, ">=", arguments.kills)
    goals.check("wrong answers", len(load.findings.wrong), "==", 0)
    goals.check("wrong documents that were not refused", len(let_in), "==", 0)
    return goals.report()


if __name__ == "__main__":
    sys.exit(main())
