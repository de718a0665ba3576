"""How long one rank takes for a step, of the decode, prefill or mixed unit of a shipped spec, at real sizes.

    python -m tests.gpu.one_rank decode|prefill|mixed [--layers N] [--device cuda|cpu] [-o measured.json]

One GPU is enough: the other ranks are played (`played_peers.py`), and nothing travels. Everything else is the product's
own: the plan's map with its replicas, dispatchers, recorded steps, the step loop, the draws, the copies of KV. So what
is printed is a rank's step without its links, of weights that mean nothing.

    turn             one turn of the step loop, from receiving to the tokens said; its host's part is what is neither
                     the step on the device nor the draws
    first, warm      the first turn of prompts of a length, for which kernels are chosen or compiled, and a later one,
                     both of the layers that were run; "all layers" is the warm one counted up to all of the model's
    stages           what each part of a step takes on the device, beside the least that it could take at the rates
                     that this GPU reaches in the same run (`roofline.py`)
    planned          the compute that the planner predicts for the same step
    in kernels       time in kernels of a step whose kernels are launched one by one

Steps of fewer than the model's layers are counted up to all of them. `-o` writes everything as JSON, piece by piece: a
piece that fails is named, the others go on, and the exit status is 1. A CPU gets a small model: a trial of this code.
"""

import argparse
import json
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from runtime.kernels.backend import choose_backend
from runtime.kernels.device import describe, use_device
from runtime.kernels.fp8 import E4M3
from tests.gpu import lone_turns
from tests.gpu.clock import Clock, EventClock, HostClock
from tests.gpu.decode_pieces import DECODE
from tests.gpu.lone_rank import HostKernels, LoneRank, launched, shrunk
from tests.gpu.prompt_pieces import MIXED, PREFILL
from tests.gpu.roofline import Rates, measured_rates
from tests.runtime.fake_device.deployments import Deployment, plan_deployment

PIECES = {"decode": DECODE, "prefill": PREFILL, "mixed": MIXED}
SPECS = {"decode": "deepseek-h800.yaml", "prefill": "deepseek-h800.yaml", "mixed": "h200-single-node.yaml"}
LAYERS = {"decode": 61, "prefill": 31, "mixed": 6}  # of which 3 are dense; all of the mixed unit's do not fit 80 GB
KNOWN = ("h100", "h200", "b200")  # of the catalog, by what the driver calls a GPU
SMALL = {"max_requests": 8, "max_request_tokens": 1024, "max_batch_tokens": 512, "kv_tokens": 4096}
SMALL_RATES = {"size": 256, "copied": 2**20}


def main(phase: str | None = None) -> int:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    if phase is None:
        parser.add_argument("phase", choices=list(PIECES))
    parser.add_argument("--layers", type=int, help=f"of the model's 61; if not given: {LAYERS}")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("-o", type=Path, dest="output")
    arguments = parser.parse_args()
    phase = phase or arguments.phase
    run = prepared(phase, arguments.device, arguments.layers or LAYERS[phase], arguments.output)
    for name, measure in PIECES[phase].items():
        run.take(name, measure)
    print(f"{phase}: {len(run.failed)} of {len(PIECES[phase])} pieces failed{': ' if run.failed else ''}", end="")
    print(", ".join(run.failed))
    return int(bool(run.failed))


def prepared(phase: str, kind: str, layers: int, output: Path | None) -> "Run":
    """Measure what the device reaches, and make the rank."""
    began = time.monotonic()
    device, is_gpu = use_device(kind, 0), kind == "cuda"
    name = describe(device) if is_gpu else "a CPU, a small model"
    print(f"{name}, {phase}, {layers} layers, torch {torch.__version__}", flush=True)
    ops = choose_backend(device, E4M3, deterministic=False).ops if is_gpu else HostKernels()
    clock = EventClock(device) if is_gpu else HostClock()
    rates = measured_rates(ops, clock, **({} if is_gpu else SMALL_RATES))
    show_rates(rates)
    deployment = plan_deployment(SPECS[phase], phase, catalog_name(device) if is_gpu and phase != "mixed" else None)
    launch = launched(deployment)
    if not is_gpu:
        deployment, launch = shrunk(deployment, launch, **SMALL)
    memory = GpuMemory(device) if is_gpu else NoMemory()
    memory.give_back()
    before = memory.reserved_bytes()
    rank = LoneRank(deployment.config, launch, ops, clock, layers)
    turns = lone_turns.Turns(rank)
    maps = launch.expert_map.physical_to_logical
    figures = {
        "device": name,
        "torch": torch.__version__,
        "phase": phase,
        "layers": layers,
        "all_layers": deployment.config.num_hidden_layers,
        "ranks": len(launch.ranks),
        "slots_per_rank": rank.slots,
        "replicas_at_most": max(slots.count(expert) for slots in maps for expert in set(slots)),
        "limits": {name: getattr(launch.limits, name) for name in SMALL},
        "rates": asdict(rates),
        "allocated_before": before,
    }
    print(f"-- the rank is there: at {time.monotonic() - began:.1f} s", flush=True)
    return Run(rank, turns, deployment, rates, clock, memory, output, began, figures)


def catalog_name(device: torch.device) -> str | None:
    """Return what the planner's catalog calls this GPU."""
    called = torch.cuda.get_device_name(device).lower()
    return next((name for name in KNOWN if name in called), None)


def show_rates(rates: Rates) -> None:
    """Print what the device reaches."""
    print(
        f"{rates.copy_bytes_per_s / 1e12:.2f} TB/s copied, {rates.bf16_flop_per_s / 1e12:.0f} TFLOP/s in BF16,"
        f" {rates.fp8_flop_per_s / 1e12:.0f} in FP8 by {rates.fp8_by},"
        f" {rates.to_host_bytes_per_s / 1e9:.1f} GB/s to the host, {rates.from_host_bytes_per_s / 1e9:.1f} from it",
        flush=True,
    )


class GpuMemory:
    """The memory of a GPU, in bytes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def give_back(self) -> None:
        """Let go of what torch keeps for later."""
        torch.cuda.empty_cache()

    def held(self) -> int:
        """Return what is allocated, and forget the peak."""
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        return torch.cuda.memory_allocated(self._device)

    def peak(self) -> int:
        """Return the most that was allocated since `held`."""
        return torch.cuda.max_memory_allocated(self._device)

    def free(self) -> int:
        """Return what the driver could still give."""
        torch.cuda.synchronize(self._device)
        return torch.cuda.mem_get_info(self._device)[0]


class NoMemory:
    """A CPU's, which nobody counts here."""

    def give_back(self) -> None:
        """Do nothing."""

    def reserved_bytes(self) -> int:
        """Return nothing."""
        return 0

    peak = free = reserved_bytes


@dataclass
class Run:
    """A rank, its phase, and what has been measured."""

    rank: LoneRank
    turns: lone_turns.Turns
    deployment: Deployment
    rates: Rates
    clock: Clock
    memory: GpuMemory | NoMemory
    output: Path | None
    began: float
    figures: dict[str, Any]
    failed: list[str] = field(default_factory=list)

    def take(self, name, measure):
        """Measure a piece, and write all that is there; what fails is named and leaves the others be."""
        print(f"\n-- {name}", flush=True)
        try:
            with torch.inference_mode():
                self.figures |= measure(self)
        except (RuntimeError, AssertionError, ValueError, TypeError, AttributeError, LookupError) as error:
            traceback.print_exc()
            self.failed.append(f"{name} ({type(error).__name__})")
        self.figures["failed"], self.figures["seconds"] = self.failed, time.monotonic() - self.began
        if self.output:
            self.output.write_text(json.dumps(self.figures, indent=1))
        print(f"-- {name}: at {self.figures['seconds']:.1f} s", flush=True)

    @property
    def device(self):
        """Where the rank computes."""
        return self.rank.ops.device

    def wall_s(self, function):
        """Call it, and return how long it took until the device was done."""
        self.clock.finish()
        began = time.perf_counter()
        function()
        self.clock.finish()
        return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
