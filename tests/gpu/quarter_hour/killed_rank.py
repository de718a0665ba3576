"""How a rank ends when its peer is killed (SIGKILL): between steps, in the middle of an exchange, and in a replay.

Two ranks share one GPU over NCCL and turn the product's own loop (`run_step_loop`), its steps made of a dispatcher's
exchanges. One kills itself at a chosen place. Measured is how long the other goes on, and what ends it:

    vote            gloo notices that the peer is gone: PeerLost, at once
    watchdog        torch's, when an exchange that was issued takes longer than STEP_TIMEOUT: it aborts the process, but
                    first writes down what it knows, for over half a minute
    step deadline   `worker/step_deadline.py`, when the loop has not turned for DEADLINE_S
    nothing         the rank was still there after the part's patience: a hang

STEP_TIMEOUT is 10 s here instead of 120, DEADLINE_S 14 instead of 150. The cases run side by side, without MPS: a
client that is killed may take MPS's other clients along, and no unit of ours runs under MPS.

On a CPU (`--device cpu`) rows travel over gloo, nothing is recorded, and every case should end at once.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from runtime.errors import RuntimeFailure
from runtime.expert_parallel import group as host_group
from runtime.expert_parallel import nccl
from runtime.expert_parallel.dispatcher import AllToAllDispatcher, MaskedRows, PlainRows
from runtime.expert_parallel.factory import new_group
from runtime.expert_parallel.masked import MaskedDispatcher
from runtime.expert_parallel.rendezvous import MeetingPoint
from runtime.expert_parallel.traffic import ExchangeTime
from runtime.kernels.device import CudaRecorder, HostLink, PinnedLink
from runtime.kernels.ops import Ops
from runtime.worker import step_deadline
from runtime.worker.children import PEER_LOST, QUIET
from runtime.worker.io_thread import Inbox
from runtime.worker.leaving import Leaving
from runtime.worker.pulse import Pulse
from runtime.worker.step_times import StepTimes
from runtime.worker.worker import run_step_loop
from tests.gpu.quarter_hour.one_gpu import SHARED, why_missing
from tests.gpu.quarter_hour.pair import ADDRESS, end
from tests.gpu.quarter_hour.parts import MISSING
from tests.ports import free_port
from tests.runtime.one_rank import NO_SWITCH

STEP_TIMEOUT_S, DEADLINE_S = 10, 14
PATIENCE_S = 52  # of the 60 that the part has
POLL_S = 0.02
VICTIM, DIES_AT = 1, 20  # the rank, and the step in which it dies
CASES = {
    "between": "between two steps",
    "exchange": "in a step, when its rows have come and before it sends results",
    "replay": "before it replays a recorded step that its peer replays",
}
ENDS = {PEER_LOST: "PeerLost", 1: "the step deadline", -signal.SIGABRT: "torch's watchdog (SIGABRT)"}
TOKENS, HIDDEN, TOP_K, SLOTS, CAPACITY = 8, 1024, 4, 8, 8


def main() -> int:
    """Run all cases, or be a rank of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", type=Path, dest="output", required=True)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--port", type=int)
    arguments = parser.parse_args()
    if arguments.case is not None:
        return rank_until_the_end(arguments)
    if (reason := why_missing(arguments.device)) is not None:
        print(reason)
        return MISSING
    return run_cases(arguments)


def run_cases(arguments: argparse.Namespace) -> int:
    """Start all ranks of all cases, and watch the survivors."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ranks = {case: start(case, folder, arguments.device) for case in CASES}
        try:
            found = watch(ranks, folder, arguments.output)
        finally:
            end([rank for both in ranks.values() for rank in both])
    wrong = [
        case
        for case, what in found.items()
        if what["by"] not in ENDS.values() or None in (what["said"], what["seconds"])
    ]
    if wrong:
        print(f"no end with a reason: {', '.join(wrong)}")
        return 1
    print(
        "every survivor ended: "
        + "; ".join(f"{case} {what['seconds']} s by {what['by']}" for case, what in found.items())
    )
    return 0


def start(case: str, folder: Path, device: str) -> list[subprocess.Popen[bytes]]:
    """Start both ranks of a case; what they say goes to files."""
    command = [sys.executable, "-m", __spec__.name, "--case", case, "--device", device, "--port", str(free_port())]
    ranks = []
    for rank in range(2):
        died = folder / f"{case}.died"
        with (folder / f"{case}.{rank}").open("wb") as log:
            arguments = [*command, "--rank", str(rank), "-o", str(died)]
            environment = os.environ | QUIET | {"OMP_NUM_THREADS": "1"} | (SHARED if device == "cuda" else {})
            ranks.append(subprocess.Popen(arguments, env=environment, stdout=log, stderr=log))
    return ranks


def watch(ranks: dict[str, list[subprocess.Popen[bytes]]], folder: Path, output: Path) -> dict[str, dict[str, Any]]:
    """Return how each survivor ended, as they end; write it each time."""
    found: dict[str, dict[str, Any]] = {}
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < len(ranks):
        is_late = time.monotonic() > deadline
        for case, (survivor, _) in ranks.items():
            status = survivor.poll()
            if case not in found and (status is not None or is_late):
                found[case] = how_it_ended(case, status, folder)
                output.write_text(json.dumps(found))
        time.sleep(POLL_S)
    return found


def how_it_ended(case: str, status: int | None, folder: Path) -> dict[str, Any]:
    """Say it, with the seconds since the peer died, and the survivor's last words."""
    died = folder / f"{case}.died"
    seconds = round(time.time() - float(died.read_text()), 1) if died.exists() else None
    lines = [line for line in (folder / f"{case}.0").read_text(errors="replace").splitlines() if line.strip()]
    said = reason(lines)
    by = "nothing" if status is None else ENDS.get(status, f"status {status}")
    if status == 1 and "has taken over" not in (said or ""):
        by = "an error"
    print(f"killed {CASES[case]}: the other ended {seconds} s later by {by}", flush=True)
    print(f"   it said: {said or 'nothing'}", flush=True)
    if seconds is None or by not in ENDS.values():
        print("\n".join(f"   {each}: {line}" for each in "01" for line in tail(folder / f"{case}.{each}")), flush=True)
    return {"by": by, "status": status, "seconds": seconds, "said": said, "last": lines[-8:]}


def reason(lines: list[str]) -> str | None:
    """Return the line that names why, the runtime's before torch's."""
    marks = ("tidemill: ", "Watchdog caught collective operation timeout", "NCCL error")
    return next((line[:300] for mark in marks for line in reversed(lines) if mark in line), None)


def tail(log: Path) -> list[str]:
    """Return its last lines."""
    return log.read_text(errors="replace").splitlines()[-15:]


def rank_until_the_end(arguments: argparse.Namespace) -> int:
    """Be a rank as `python -m runtime rank` is one: a lost peer is one sentence and a status of its own."""
    host_group.STEP_TIMEOUT = nccl.STEP_TIMEOUT = timedelta(seconds=STEP_TIMEOUT_S)
    step_deadline.DEADLINE_S = DEADLINE_S
    try:
        step_as_a_rank(arguments)
        status = 0
    except RuntimeFailure as error:
        print(f"tidemill: {error}", file=sys.stderr)
        status = PEER_LOST
    sys.stderr.flush()
    os._exit(status)


@torch.inference_mode()
def step_as_a_rank(arguments: argparse.Namespace) -> None:
    """Join the peer, and step until one of the two dies."""
    device = torch.device("cpu") if arguments.device == "cpu" else torch.device("cuda", 0)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    group = new_group(arguments.rank, 2, None, device)
    group.join(MeetingPoint(ADDRESS, arguments.port, arguments.rank == 0, ADDRESS))
    die = (lambda: die_now(arguments.output)) if arguments.rank == VICTIM else (lambda: None)
    phase = Phase(arguments.case, group, device, die)
    pulse = Pulse()
    step_deadline.start_step_deadline(pulse, f"rank {arguments.rank}")
    run_step_loop(phase, group, NO_SWITCH, Inbox(), Leaving(NoGateway()), pulse, StepTimes(ExchangeTime()))


def die_now(died: Path) -> None:
    """Note the time, then die as by the kernel's hand."""
    died.write_text(str(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)


class Phase:
    """Has work always; a step is one layer's exchanges, and its result is read on the host as logits are."""

    def __init__(self, case: str, group: Any, device: torch.device, die: Callable[[], None]) -> None:
        self._case, self._die, self._num_steps = case, die, 0
        self._link = PinnedLink(device) if device.type == "cuda" else HostLink()
        self._step = Recorded(group, device) if case == "replay" else OneByOne(group, device, self._die_in_exchange)

    def has_work(self) -> bool:
        """Say yes. The loop asks between two steps."""
        self._die_in("between")
        return True

    def step(self) -> None:
        """Exchange, and wait for the result."""
        self._num_steps += 1
        self._die_in("replay")
        self._link.to_host(self._step())

    def receive(self, message: object) -> None:
        """Nobody sends any."""

    def _die_in_exchange(self) -> None:
        self._die_in("exchange")

    def _die_in(self, case: str) -> None:
        if case == self._case and self._num_steps == DIES_AT:
            self._die()


class NoGateway:
    """A line to nobody."""

    def say_draining(self) -> None:
        """Nobody listens."""

    def is_dismissed(self) -> bool:
        """Nobody waits."""
        return True

    def is_handing_over(self) -> bool:
        """Nothing is."""
        return False


class OneByOne:
    """Exchanges that are issued one by one, as a prefill unit's: the host waits for sizes."""

    def __init__(self, group: Any, device: torch.device, in_the_middle: Callable[[], None]) -> None:
        self._dispatcher = AllToAllDispatcher(group, SLOTS, PlainRows(torch.bfloat16), Ops(device))
        self._tokens, self._in_the_middle = tokens(device), in_the_middle

    def __call__(self) -> torch.Tensor:
        """Dispatch, return the rows as they came, and combine."""
        dispatched = self._dispatcher.dispatch(*self._tokens).wait()
        results = dispatched.rows.rows_RD
        self._in_the_middle()
        return self._dispatcher.combine(results, dispatched).wait().sum()


class Recorded:
    """The exchanges of a decode unit: recorded once on a GPU, and replayed."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self._dispatcher = MaskedDispatcher(group, SLOTS, CAPACITY, PlainRows(torch.bfloat16), Ops(device))
        self._tokens = tokens(device)
        self._recording: Any = None
        if device.type == "cuda":
            self._compute()  # connects NCCL, which cannot be captured
            self._recording, self._result = CudaRecorder(device).record(self._compute)

    def __call__(self) -> torch.Tensor:
        """Replay, or compute where nothing is recorded."""
        if self._recording is None:
            return self._compute()
        self._recording.replay()
        return self._result

    def _compute(self) -> torch.Tensor:
        dispatched = self._dispatcher.dispatch(*self._tokens).wait()
        assert isinstance(dispatched.rows, MaskedRows)
        return self._dispatcher.combine(dispatched.rows.rows_MZD, dispatched).wait().sum()


def tokens(device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a step's tokens, with slots on both ranks."""
    generator = torch.Generator().manual_seed(0)
    x_TD = torch.randn(TOKENS, HIDDEN, generator=generator).bfloat16()
    slots_TK = torch.rand(TOKENS, 2 * SLOTS, generator=generator).topk(TOP_K).indices
    weights_TK = torch.rand(TOKENS, TOP_K, generator=generator)
    return x_TD.to(device), slots_TK.to(device), weights_TK.to(device)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
