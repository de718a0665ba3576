"""Run `fused.py` through Triton's interpreter: `interpreted_fused.py FILE`, in a process with TRITON_INTERPRET=1."""

import sys

import torch

from runtime.kernels import fp8
from runtime.kernels.gpu.ops import GpuOps
from runtime.kernels.gpu.packages import HOPPER, Packages
from runtime.kernels.ops import GateRule

DTYPES = (torch.bfloat16, torch.float32)
ROTATED = {"heads": (3, 18, 8), "one vector": (5, 64)}  # tokens, heads if there are some, channels
CHOSEN = {  # experts, whether there is a bias, and the rule
    "DeepSeek-V3": (256, True, GateRule(False, 8, 2, 4, 8, is_normalised=True, factor=2.5)),
    "one group": (64, False, GateRule(True, 1, 1, 1, 6, is_normalised=False, factor=1.0)),
    "every group": (32, False, GateRule(True, 4, 1, 4, 3, is_normalised=True, factor=16.0)),
}
TURNS = {"of a few": (7, 2, 1), "late": (300, 8, 2**31 - 5)}  # tokens, choices of each, the turn
PLACED = {  # tokens that came, choices of each, slots here, alignment of their first rows
    "DeepSeek-V3": (20, 8, 9, 32),
    "one slot, no tiles": (5, 3, 1, 1),
    "nothing came": (0, 8, 9, 32),
    "nothing is here": (7, 2, 0, 4),
}
WIDTH, SMALL = 384, 128  # channels: of codes, words for one program; of BF16 for two, and sums for three
GENERATOR = torch.Generator().manual_seed(0)


class Interpreting(GpuOps):
    """A table that uses Triton's kernels for CPU tensors too."""

    def _runs_triton(self, x):
        return True


def main(path):
    from runtime.kernels.gpu import fused

    found = {}
    for case, shape in ROTATED.items():
        for dtype in DTYPES:
            for neighbours in (True, False):
                wide = torch.randn(*shape[:-1], shape[-1] + 4, generator=GENERATOR).to(dtype)
                angles = 7 * torch.rand(shape[0], shape[-1] // 2, generator=GENERATOR)
                rotated = wide.clone()
                fused.rotate(rotated[..., 4:], angles.cos(), angles.sin(), neighbours)
                found[f"rotated {case} {dtype} {neighbours}"] = (wide, angles, rotated)
    kv, rope = torch.randn(5, 18, 24, generator=GENERATOR), torch.randn(5, 12, generator=GENERATOR)[:, 4:]
    found["joined"] = (kv[..., :16], rope, fused.joined_keys(kv[..., :16], rope))
    for case, (num_experts, is_biased, rule) in CHOSEN.items():
        logits = torch.randn(7, num_experts, generator=GENERATOR)
        bias = torch.randn(num_experts, generator=GENERATOR) / 10 if is_biased else None
        found[f"chosen {case}"] = (logits, bias, *fused.chosen_experts(logits, bias, rule))
    found["none"] = fused.chosen_experts(torch.empty(0, 32), None, rule)
    num_replicas = torch.randint(1, 4, (16,), generator=GENERATOR)
    table = torch.randperm(48, generator=GENERATOR), num_replicas.cumsum(0) - num_replicas, num_replicas
    for case, (num_tokens, top_k, turn) in TURNS.items():
        experts = torch.randint(16, (num_tokens, top_k), generator=GENERATOR)
        arguments = experts, *table, torch.tensor(turn)
        found[f"in turn {case}"] = (*arguments, fused.replicas_in_turn(*arguments))
    fused.PAIRS, fused.WORDS, fused.CHANNELS = SMALL // 8, SMALL, SMALL
    for case, sizes in PLACED.items():
        found |= place_and_add(case, *sizes)
    torch.save(found, path)


def place_and_add(case, num_tokens, top_k, num_slots, alignment):
    """Put tokens into their rows as GpuOps does, and add these up again."""
    ops = Interpreting(torch.device("cpu"), Packages(HOPPER))
    ops.row_alignment = alignment
    wanted_TK = torch.rand(num_tokens, max(num_slots + 3, top_k), generator=GENERATOR).argsort(1)[:, :top_k]
    slots_TK = wanted_TK.masked_fill(wanted_TK >= num_slots, -1)
    x_TD = torch.randn(num_tokens, WIDTH, generator=GENERATOR).bfloat16()
    weights_TK = torch.rand(num_tokens, top_k, generator=GENERATOR).masked_fill(slots_TK < 0, torch.nan)
    x = fp8.quantise_rows(x_TD)
    place_TK, counts_M = ops.place_rows(slots_TK, num_slots)
    num_rows = sum(-(-count // alignment) * alignment for count in counts_M.tolist())
    of_codes, rows_RD = ops.spread_rows(x, place_TK, num_rows), ops.spread_rows(x_TD, place_TK, num_rows)
    rows_RD.view(torch.int16)[
        torch.ones(num_rows, dtype=torch.bool).index_fill_(0, place_TK[place_TK >= 0], False)
    ] = -1
    return {
        f"arrived {case}": (slots_TK, x_TD, x.codes.view(torch.uint8), x.scales, weights_TK),
        f"placed {case}": (place_TK, counts_M),
        f"spread {case}": (of_codes.codes.view(torch.uint8), of_codes.scales, rows_RD),
        f"added {case}": (ops.add_rows(rows_RD, place_TK, weights_TK),),
    }


if __name__ == "__main__":
    main(sys.argv[1])
