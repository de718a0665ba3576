"""Run `fused.py` through Triton's interpreter: `interpreted_fused.py FILE`, in a process with TRITON_INTERPRET=1."""

import sys

import torch

DTYPES = (torch.bfloat16, torch.float32)
ROTATED = {"heads": (3, 18, 8), "one vector": (5, 64)}  # tokens, heads if there are some, channels
CHOSEN = {  # experts, groups, best of a group that count, groups that are chosen, experts that are chosen
    "DeepSeek-V3": (256, 8, 2, 4, 8),
    "one group": (64, 1, 1, 1, 6),
    "every group": (32, 4, 1, 4, 3),
}
GENERATOR = torch.Generator().manual_seed(0)


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
    for case, (num_experts, *sizes) in CHOSEN.items():
        scores = torch.rand(7, num_experts, generator=GENERATOR)
        found[f"chosen {case}"] = (scores, fused.chosen_experts(scores, *sizes))
    found["none"] = (fused.chosen_experts(torch.empty(0, 32), 4, 1, 2, 3),)
    torch.save(found, path)


if __name__ == "__main__":
    main(sys.argv[1])
