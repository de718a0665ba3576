"""DeepEP's normal kernels between two ranks that share one GPU, behind the product's own dispatcher.

    rows       dispatch, a function of row and slot, combine: BF16, and FP8 with a scale for 128 channels. Ranks have
               one token to thousands, different numbers of them, or none.
    both       two dispatches under way at once, as the halves of a dual batch have them
    model      prompts through a small model of DeepSeek-V3's widths, in a dual batch
    experts    the same as rows, with DeepGEMM's grouped matmuls as the experts, in FP8

Each result is compared with that of one rank which has all the slots, `LocalDispatcher` or EP1. Both ranks open each
other's buffer by CUDA IPC, which works between processes on one GPU as between GPUs. Nothing crosses a link: the tokens
a second say nothing of NVLink.

DeepEP's low-latency kernels are not tried. They begin with NVSHMEM and IBGDA, which need an InfiniBand NIC.

On a CPU (`--device cpu`) a slow reference takes DeepEP's place, so that the part itself can be tried.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from runtime.expert_parallel.deep_ep import NormalDispatcher
from runtime.expert_parallel.dispatcher import ContiguousRows, DispatchedRows, LocalDispatcher, PlainRows, RowFormat
from runtime.expert_parallel.factory import new_group
from runtime.expert_parallel.rendezvous import MeetingPoint
from runtime.kernels.fp8 import BLOCK, E4M3, ExpertCodes, Quantised
from runtime.kernels.gpu.ops import GpuOps
from runtime.kernels.gpu.packages import HOPPER, Packages, find_packages
from runtime.model.fp8 import Fp8Rows
from tests.gpu.quarter_hour.mps import shared_gpu
from tests.gpu.quarter_hour.pair import ADDRESS, end, until_one_fails
from tests.gpu.quarter_hour.parts import MISSING
from tests.ports import free_port

RANKS, TOLERANCE = 2, 0.01
SECONDS, BEGINS_NOTHING_AFTER_S = 85, 70  # of the 90 that the part has
TIMED = 5
WITHOUT_JIT = {"EP_NCCL_ROOT_DIR": "/nowhere"}  # where DeepEP's own compiler would look for NCCL's headers

Experts = Callable[[ContiguousRows, int], Tensor]  # rows, and the first slot that is here


@dataclass(frozen=True)
class Sizes:
    """The shapes that are tried; `numbers` are the tokens of each rank."""

    hidden: int
    intermediate: int
    top_k: int
    slots: tuple[int, ...]  # of a rank
    numbers: tuple[tuple[int, int], ...]
    timed: int


ON_GPU = Sizes(
    hidden=7168,
    intermediate=2048,
    top_k=8,
    slots=(16, 128),
    numbers=((1, 1), (5, 0), (0, 7), (0, 0), (128, 128), (333, 2050), (4096, 1), (4096, 4096)),
    timed=4096,
)
ON_CPU = Sizes(hidden=256, intermediate=128, top_k=3, slots=(3,), numbers=((5, 8), (1, 0), (0, 0)), timed=8)


def main() -> int:
    """Run both ranks, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", type=Path, dest="output", required=True)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--port", type=int)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        return Rank(arguments.rank, arguments.port, torch.device(arguments.device), arguments.output).try_all()
    if (reason := why_missing(arguments.device)) is not None:
        print(reason)
        return MISSING
    if arguments.device == "cpu":
        return run_ranks(arguments, {})
    with shared_gpu() as variables:
        return run_ranks(arguments, variables | WITHOUT_JIT)


def why_missing(device: str) -> str | None:
    """Return what this machine lacks, or None."""
    if device == "cpu":
        return None
    if not torch.cuda.is_available():
        return "no GPU"
    found = find_spec("deep_ep")
    return "deep_ep is not installed" if found is None else why_another_torch(Path(str(found.origin)))


def why_another_torch(module: Path) -> str | None:
    """Return why SGLang's build does not fit this torch, or None.

    Its C++ reads a tensor's fields where its own torch has them: 2.13 moved them by 8 bytes (c10's PyObjectSlot.h).
    """
    if "_build_info" not in module.read_text():
        return None  # built from DeepEP's own source, for this torch
    pinned = next((each for each in requires("sgl-deep-ep") or () if each.startswith("torch==")), "")
    running = f"torch=={torch.__version__.partition('+')[0]}"
    return None if pinned in ("", running) else f"this deep_ep was built for {pinned}, and here is {running}"


def run_ranks(arguments: argparse.Namespace, variables: dict[str, str]) -> int:
    """Run both to their ends, and say how it was."""
    arguments.output.unlink(missing_ok=True)
    command = [sys.executable, "-m", __spec__.name, "-o", str(arguments.output), "--device", arguments.device]
    command += ["--port", str(free_port())]
    ranks = [subprocess.Popen([*command, "--rank", str(rank)], env=os.environ | variables) for rank in range(RANKS)]
    try:
        statuses = until_one_fails(ranks, SECONDS)
    finally:
        end(ranks)
    if MISSING in statuses:
        print("deep_ep is here and cannot be used: see above")
        return MISSING
    found = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    errors = [case["error"] for case in found.get("cases", [])]
    how = f"{len(errors)} cases, off by {max(errors, default=0):.2%} at most"
    if statuses == [0] * RANKS:
        print(f"DeepEP's normal kernels: {how}")
        return 0
    print(f"not all is right (statuses {statuses}, None for a rank that did not end in {SECONDS} s): {how}")
    return 1


class Rank:
    """One of the two ranks. Rank 0 keeps the figures."""

    def __init__(self, rank: int, port: int, device: torch.device, output: Path) -> None:
        self.rank, self._port, self._output = rank, port, output
        self.device = device if device.type == "cpu" else torch.device("cuda", 0)
        self.sizes = ON_CPU if device.type == "cpu" else ON_GPU
        self._figures: dict[str, Any] = {"mps": "CUDA_MPS_PIPE_DIRECTORY" in os.environ, "cases": []}
        self._is_right, self._began = True, time.monotonic()
        self._dispatchers: list[NormalDispatcher] = []  # kept: their buffers end with the process, as a rank's do

    @torch.inference_mode()
    def try_all(self) -> int:
        """Return 0, 1 if a result is wrong, or MISSING."""
        sys.setdlopenflags(os.RTLD_LAZY)  # DeepEP names functions of an NCCL newer than torch's, and calls none here
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.group = new_group(self.rank, RANKS, None, self.device)
        self.group.join(MeetingPoint(ADDRESS, self._port, self.rank == 0, ADDRESS))
        self.ops = self._new_ops()
        if self.ops.packages.deep_ep is None:
            return MISSING
        for slots in self.sizes.slots:
            for name, row_format in self._formats().items():
                self._try_rows(slots, name, row_format)
        self._try_model()
        self._try_experts(self.sizes.slots[0])  # last, since DeepGEMM compiles for tens of seconds
        self.group.any(False)  # nobody ends before everybody is done
        sys.stdout.flush()
        os._exit(0 if self._is_right else 1)  # as a rank of the product ends

    def _new_ops(self) -> GpuOps:
        if self.device.type == "cuda":
            return GpuOps(self.device, find_packages(self.device))
        from tests.gpu.quarter_hour.played import ComputingDeepGemm, PlayedOps, played_deep_ep

        return PlayedOps(Packages(HOPPER, ComputingDeepGemm(4), None, played_deep_ep(self.group)))

    def _formats(self) -> dict[str, RowFormat]:
        return {"BF16": PlainRows(torch.bfloat16), "FP8": Fp8Rows(self.sizes.hidden, False, self.ops)}

    def _try_rows(self, slots: int, name: str, row_format: RowFormat) -> None:
        """Try each pair of numbers, two dispatches at once, and how long the largest take."""
        dispatcher = self._new_dispatcher(slots, row_format)
        for numbers in self.sizes.numbers:
            self._compare(f"{name}, {RANKS * slots} slots, tokens {numbers}", dispatcher, [numbers], by_slot)
        halves = [self.sizes.numbers[-1], self.sizes.numbers[-2]]
        self._compare(f"{name}, {RANKS * slots} slots, two at once {halves}", dispatcher, halves, by_slot)
        self._time(f"{name}, {RANKS * slots} slots", dispatcher)

    def _try_model(self) -> None:
        from tests.gpu.quarter_hour.deep_ep_model import prompts_of_a_dual_batch

        for name, own in prompts_of_a_dual_batch(self.group, self.device):
            self._judge(name, own)

    def _try_experts(self, slots: int) -> None:
        """Let DeepGEMM be the experts, where it is."""
        if self.ops.packages.deep_gemm is None:
            self._keep(experts="deep_gemm is missing")
            return
        codes = self._codes(RANKS * slots)
        dispatcher = self._new_dispatcher(slots, Fp8Rows(self.sizes.hidden, False, self.ops))

        def experts(rows: ContiguousRows, first: int) -> Tensor:
            last = first + len(rows.counts)
            own = [Quantised(each.codes[first:last], each.scales[first:last]) for each in (codes.gate_up, codes.down)]
            return self.ops.fp8_experts(rows.rows_RD, rows.counts, rows.counts_M, ExpertCodes(*own, False))

        for numbers in self.sizes.numbers:
            self._compare(f"DeepGEMM's experts, tokens {numbers}", dispatcher, [numbers], experts)

    def _new_dispatcher(self, slots: int, row_format: RowFormat) -> NormalDispatcher:
        dispatcher = NormalDispatcher(self.group, slots, self.sizes.hidden, row_format, self.ops)
        self._dispatchers.append(dispatcher)
        return dispatcher

    def _compare(
        self, name: str, dispatcher: NormalDispatcher, numbers: list[tuple[int, int]], experts: Experts
    ) -> None:
        """Dispatch each batch, then compute and combine each; compare with one rank that has all slots."""
        if self.group.any(time.monotonic() - self._began > BEGINS_NOTHING_AFTER_S):
            self._say(f"  left out, for want of time: {name}")
            return
        num_slots = dispatcher.num_slots
        batches = [self._tokens(number[self.rank], num_slots, seed) for seed, number in enumerate(numbers)]
        dispatcher.begin_step(max(len(batch[0]) for batch in batches))
        found = both_at_once(dispatcher, batches, experts, self.rank * dispatcher.slots_per_rank)
        local = LocalDispatcher(num_slots, dispatcher.row_format, self.ops)
        expected = [both_at_once(local, [batch], experts, 0)[0] for batch in batches]
        errors = [error(one, other) for one, other in zip(found, expected, strict=True)]
        self._judge(name, max(errors))

    def _time(self, name: str, dispatcher: NormalDispatcher) -> None:
        """Time dispatch and combine alone: results are copies of a row each, of the right shape."""
        x_TD, slots_TK, weights_TK = self._tokens(self.sizes.timed, dispatcher.num_slots, 0)
        seconds = []
        for _ in range(TIMED):
            self.group.any(False)
            began = time.perf_counter()
            dispatched = dispatcher.dispatch(x_TD, slots_TK, weights_TK).wait()
            results = x_TD.new_zeros(sum(dispatched.rows.counts), x_TD.shape[1])
            dispatcher.combine(results, dispatched).wait().sum()
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            seconds.append(time.perf_counter() - began)
        median = statistics.median(seconds)
        self._keep(**{f"seconds: {name}": median})
        self._say(f"        {self.sizes.timed / median:,.0f} tokens/s a rank: {name}, on one GPU and no link")

    def _tokens(self, number: int, num_slots: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return what this rank dispatches: activations, slots and weights."""
        generator = torch.Generator(self.device).manual_seed(1000 * self.rank + seed)
        options: dict[str, Any] = {"generator": generator, "device": self.device}
        x_TD = torch.randn(number, self.sizes.hidden, **options).bfloat16()
        slots_TK = torch.rand(number, num_slots, **options).topk(self.sizes.top_k).indices
        weights_TK = torch.rand(number, self.sizes.top_k, **options)
        return x_TD, slots_TK, weights_TK

    def _codes(self, num_slots: int) -> ExpertCodes:
        """Return the matrices of all experts, the same on each rank."""
        hidden, intermediate = self.sizes.hidden, self.sizes.intermediate
        shapes = (num_slots, 2, intermediate, hidden), (num_slots, hidden, intermediate)
        return ExpertCodes(*(self._matrices(*shape) for shape in shapes), False)

    def _matrices(self, *shape: int) -> Quantised:
        """Draw slot by slot: randn of all would be four times the codes."""
        generator = torch.Generator(self.device).manual_seed(shape[-1])
        codes = torch.empty(shape, dtype=E4M3, device=self.device)
        for slot in codes:
            slot.copy_(torch.randn(slot.shape, generator=generator, device=self.device))
        blocks = (*shape[:-2], *(-(-side // BLOCK) for side in shape[-2:]))
        return Quantised(codes, torch.full(blocks, shape[-1] ** -0.5, device=self.device))

    def _judge(self, name: str, own: float) -> None:
        """Keep the larger of both ranks' errors, and whether it is small."""
        worst = max(json.loads(told) for told in self.group.gather(json.dumps(own).encode()))
        is_right = worst < TOLERANCE  # false for NaN
        self._is_right &= is_right
        self._figures["cases"].append({"case": name, "error": worst})
        self._keep()
        self._say(f"  {'ok   ' if is_right else 'WRONG'} {worst:.3%}  {name}")

    def _say(self, line: str) -> None:
        if self.rank == 0:
            print(line, flush=True)

    def _keep(self, **found: Any) -> None:
        self._figures.update(found)
        if self.rank == 0:
            self._output.write_text(json.dumps(self._figures))


def both_at_once(dispatcher: Any, batches: list[Any], experts: Experts, first: int) -> list[Tensor]:
    """Begin all dispatches, then all combines, as the flows of a dual batch do; return the sums."""
    under_way = [dispatcher.dispatch(*batch) for batch in batches]
    combining = []
    for pending in under_way:
        dispatched: DispatchedRows = pending.wait()
        results = experts(dispatched.rows, first)
        combining.append(dispatcher.combine(results, dispatched.drop_rows()))
    return [pending.wait().sum() for pending in combining]


def by_slot(rows: ContiguousRows, first: int) -> Tensor:
    """Return the rows times a factor that tells their slots apart."""
    x_RD = dequantised(rows.rows_RD)
    slots_M = torch.arange(len(rows.counts), device=x_RD.device)
    counts = torch.tensor(rows.counts, device=x_RD.device)
    slot_of_row_R = slots_M.repeat_interleave(counts, output_size=len(x_RD))
    return (x_RD * (1 + (first + slot_of_row_R[:, None]) % 7)).bfloat16()


def dequantised(rows: Tensor | Quantised) -> Tensor:
    """Return them in FP32."""
    if isinstance(rows, Quantised):
        return rows.codes.float() * rows.scales.repeat_interleave(BLOCK, -1)
    return rows.float()


def error(found: Tensor, expected: Tensor) -> float:
    """Return the error of the worst token, in its norm: one that is lost among thousands must show."""
    assert found.shape == expected.shape
    if not len(found):
        return 0.0
    found, expected = found.double(), expected.double()
    return ((found - expected).norm(dim=-1) / expected.norm(dim=-1)).max().item()


if __name__ == "__main__":
    sys.exit(main())
