"""Several ranks on one GPU: what NCCL needs for it, and the ranks' processes.

NCCL refuses two ranks on one GPU unless it is told otherwise, and it may hang if their kernels do not fit on the GPU
together: so each rank gets few CTAs. They run at the same time by MPS (`mps.py`), or in turns.

On a CPU (`--device cpu`) the same ranks meet over gloo, so that a part can be tried where no GPU is.

Sources: NVIDIA/nccl 5067397c docs/userguide/source/env.rst, "NCCL_MULTI_RANK_GPU_ENABLE" (since 2.30, experimental),
"NCCL_MAX_CTAS", "NCCL_NVLS_ENABLE".
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from runtime.expert_parallel.group import Group
from runtime.expert_parallel.rendezvous import MeetingPoint
from runtime.kernels.device import CPU, use_device
from tests.gpu.quarter_hour.machine import nccl_loaded
from tests.gpu.quarter_hour.mps import shared_gpu
from tests.gpu.quarter_hour.pair import ADDRESS, end, until_one_fails
from tests.gpu.quarter_hour.parts import MISSING
from tests.ports import free_port

__all__ = [
    *("SHARED", "Figures", "RanksFailed", "device", "environment", "finish", "join", "nccl_version", "options"),
    *("part", "reserved_gb", "run_ranks", "why_missing"),
]

SHARED = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_MAX_CTAS": "4",  # of one rank: four ranks take 16 of an H100's 132 multiprocessors while they wait
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_DEBUG": "WARN",
}
OWN = {"OMP_NUM_THREADS": "1"}
FIRST_NCCL = (2, 30)
JOINED: list[
    Group
] = []  # kept until the process ends: a process group that ends earlier warns that nobody destroyed it
TIMES_ON_CPUS = 5  # as long: ranks that only try the part there share two cores with others


class RanksFailed(Exception):
    """A rank ended with an error, or did not end in time."""


class Figures(dict[str, Any]):
    """What a part found, written with every change so that it outlives the part."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def add(self, **found: Any) -> None:
        """Keep, print and write these."""
        self.update(found)
        for name, value in found.items():
            print(f"{name}: {value}", flush=True)
        self._path.write_text(json.dumps(self))


def options(description: str | None) -> argparse.ArgumentParser:
    """Return the options of a part whose ranks are processes that run the same module."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", type=Path, dest="output", help="where the figures go")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="sizes of the units that are tried")
    own = parser.add_argument_group("one rank's own")
    own.add_argument("--rank", type=int)
    own.add_argument("--size", type=int)
    own.add_argument("--port", type=int)
    own.add_argument("--folder", type=Path)
    return parser


def part(main: Callable[..., int], rank: Callable[..., None], description: str | None) -> int:
    """Run a module as a rank if it is told which, else as the part. Return its exit status."""
    arguments = options(description).parse_args()
    if arguments.rank is not None:
        sys.excepthook = _end_at_once
        rank(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # as a worker ends: NCCL would wait for graphs that hold its exchanges
    if (reason := why_missing(arguments.device)) is not None:
        print(reason)
        return MISSING
    return main(arguments)


@contextlib.contextmanager
def environment(device: str) -> Iterator[dict[str, str]]:
    """Give the environment of ranks that share a GPU.

    Each unit gets an MPS of its own, since a client that is killed may take the others of its MPS along.
    """
    if device == "cpu":
        yield OWN | os.environ
        return
    with shared_gpu() as variables:
        yield OWN | SHARED | os.environ | variables


def run_ranks(module: str, size: int, folder: Path, device: str, seconds: float) -> list[dict[str, Any]]:
    """Run `module` as each rank of a unit, and return the figures of each. Raise RanksFailed."""
    with environment(device) as variables:
        _run(module, size, folder, device, variables, seconds * (1 if device == "cuda" else TIMES_ON_CPUS))
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


def device(arguments: argparse.Namespace) -> torch.device:
    """Return the device of a rank: GPU 0 for all where there is one."""
    if arguments.device == "cpu":
        torch.set_num_threads(1)
        return CPU
    return use_device("cuda", arguments.rank % torch.cuda.device_count())


def join(group: Group, port: int) -> Group:
    """Let the group meet on loopback, and return it."""
    group.join(MeetingPoint(ADDRESS, port, group.rank == 0, ADDRESS))
    JOINED.append(group)
    return group


def finish(device: torch.device) -> None:
    """Wait for all that the device has to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reserved_gb(device: torch.device) -> float:
    """Return what torch holds of the device's memory, without what it only keeps for later."""
    if device.type == "cpu":
        return 0.0
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(device) / 1e9


def nccl_version(device: torch.device) -> str:
    """Return the version that this process calls; torch's own function says with which one it was built."""
    return nccl_loaded() or "none" if device.type == "cuda" else "gloo"


def why_missing(device: str) -> str | None:
    """Return what several ranks on this machine's GPU lack, or None."""
    if device == "cpu":
        return None
    if not torch.cuda.is_available():
        return "no GPU"
    loaded = nccl_loaded() or ""
    if not loaded[:1].isdigit() or tuple(map(int, loaded.split(".")[:2])) < FIRST_NCCL:
        return f"several ranks on one GPU need NCCL {'.'.join(map(str, FIRST_NCCL))} (LD_PRELOAD), and this is {loaded}"
    return None


def _run(module: str, size: int, folder: Path, device: str, variables: dict[str, str], seconds: float) -> None:
    """Run the ranks, and end those that are left when one failed or time is over."""
    command = [sys.executable, "-m", module, "--device", device, "--folder", str(folder)]
    command += ["--size", str(size), "--port", str(free_port())]
    ranks = [subprocess.Popen([*command, "--rank", str(rank)], env=variables) for rank in range(size)]
    try:
        statuses = until_one_fails(ranks, seconds)
        if any(statuses):
            raise RanksFailed(f"of {size} ranks one failed: {statuses}")
        if None in statuses:
            raise RanksFailed(f"{size} ranks did not end in {seconds} s: {statuses}")
    finally:
        end(ranks)


def _end_at_once(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show what a rank failed with and end it. Python's own end might wait for peers."""
    sys.__excepthook__(kind, error, trace)
    sys.stderr.flush()
    os._exit(1)
