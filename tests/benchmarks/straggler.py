"""A decode rank of the running demo sleeps in each step: how soon does `tidemill status` name it?

    python -m tests.benchmarks.straggler [--sleeps 0.02 0.05 0.2 1]

Two callers ask without a pause. For some seconds nobody sleeps, and each look at which somebody is named is a false
one. Then ranks sleep in turn, until `status` names them and until it no longer does; seconds are of the wall clock, and
those of the command itself are among them. The sleep is planted at the start of the ranks' Python (`planted_sleep/`).

Exits with 1 when a rank was not named within `LIMIT_S`, or was still named so long after it slept.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks.faults import Load, expected_texts, hosts_of
from tests.stacks.deployments import HOSTS, Tidemill

LIMIT_S = 10.0
GIVEN_UP_S = 60.0
QUIET_S = 20.0
SETTLED_S = 8.0  # after the first request, and after a rank has slept
PLANTED = Path(__file__).with_name("planted_sleep")
REPOSITORY = Path(__file__).parents[2]
RANKS = [(0, 0), (1, 1), (0, 1), (1, 0)]  # place and local rank


def named(tidemill: Tidemill) -> str:
    """What `status` says of the decode unit."""
    (unit,) = [unit for unit in tidemill.status()["units"] if unit["phase"] == "decode"]
    return str(unit.get("reason", ""))


def seconds_until(condition: Callable[[], bool]) -> float:
    """The seconds until it holds, or `GIVEN_UP_S`."""
    began = time.monotonic()
    while not condition() and time.monotonic() - began < GIVEN_UP_S:
        time.sleep(0.1)
    return time.monotonic() - began


def false_looks(tidemill: Tidemill) -> tuple[int, int]:
    """The looks at which a rank was named though none sleeps, and all looks."""
    looks, until = [], time.monotonic() + QUIET_S
    while time.monotonic() < until:
        looks.append(bool(named(tidemill)))
        time.sleep(0.5)
    return sum(looks), len(looks)


def slept(tidemill: Tidemill, folder: Path, turn: int, sleep_s: float) -> bool:
    """Let a rank sleep, and print how soon it was named and forgotten. Return whether both were soon enough."""
    place, local_rank = RANKS[turn % len(RANKS)]
    number = place * 2 + local_rank
    planted = folder / f"{place}.{local_rank}"
    planted.write_text(str(sleep_s))
    named_s = seconds_until(lambda: named(tidemill).startswith(f"rank {number} "))
    said = named(tidemill)
    planted.unlink()
    forgotten_s = seconds_until(lambda: not named(tidemill))
    load = os.getloadavg()[0]
    print(f"{number:>4}{sleep_s * 1e3:>9.0f}{named_s:>9.1f}{forgotten_s:>13.1f}{load:>7.1f}  {said}", flush=True)
    time.sleep(SETTLED_S)
    return max(named_s, forgotten_s) <= LIMIT_S


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sleeps", type=float, nargs="+", default=[0.02, 0.05, 0.2, 1.0], metavar="SECONDS")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ |= {"PLANTED_SLEEPS": name, "PYTHONPATH": f"{PLANTED}:{REPOSITORY}"}
        tidemill = Tidemill(next(HOSTS), folder / "state")
        done = tidemill.up()
        if done.returncode:
            raise SystemExit(done.stderr)
        try:
            with Load(hosts_of(tidemill), expected_texts(tidemill.host, 2)) as load:
                time.sleep(SETTLED_S)
                print("nobody sleeps: a rank is named at {} of {} looks".format(*false_looks(tidemill)))
                print(f"{'rank':>4}{'ms more':>9}{'named s':>9}{'forgotten s':>13}{'load':>7}  said", flush=True)
                in_time = [slept(tidemill, folder, *each) for each in enumerate(arguments.sleeps)]
        finally:
            tidemill.run("down")
    print(f"{load.findings.num_answers} answers, {len(load.findings.wrong)} wrong")
    return 0 if all(in_time) and not load.findings.wrong else 1


if __name__ == "__main__":
    sys.exit(main())
