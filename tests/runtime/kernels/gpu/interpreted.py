"""Run rows through Triton's interpreter: `interpreted.py FILE`, in a process with TRITON_INTERPRET=1."""

import json
import sys

import torch


def _draw(*shape, seed=0):
    magnitudes = torch.logspace(-6, 3, shape[-1])
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * magnitudes).bfloat16()


# case -> rows, whether scales are powers of two, whether gate and up lie in the rows, how many of each slot's came
CASES = {
    "5 rows": lambda: (_draw(5, 384), False, False, None),
    "powers of two": lambda: (_draw(4, 1280, seed=1), True, False, None),
    "a row of zeros": lambda: (torch.zeros(1, 128, dtype=torch.bfloat16), False, False, None),
    "gated rows": lambda: (_draw(3, 512, seed=2), False, True, None),
    "3 slots of 6 rows": lambda: (_draw(3, 6, 512, seed=3), False, True, torch.tensor([6, 0, 2])),
}


def main(path):
    from runtime.kernels.gpu import quantise

    found, strides, empty = {}, {}, torch.empty

    def zeroed(*shape, dtype=None, device=None):
        return empty(*shape, dtype=dtype, device=device).view(torch.uint8).zero_().view(dtype or torch.float32)

    for case, make in CASES.items():
        x, power_of_two, is_gated, counts = make()
        found[f"{case} x"] = x  # torch draws it in another way on another number of threads
        for layout in ("by rows", "by columns"):
            by_columns = layout == "by columns"
            torch.empty = zeroed  # so that what is left alone shows
            if is_gated:
                counts_M = None if counts is None else counts.int()
                quantised = quantise.gated_rows(x, power_of_two, by_columns, counts_M)
            else:
                quantised = quantise.rows(x, power_of_two, by_columns)
            torch.empty = empty
            found[f"{case} {layout} codes"], found[f"{case} {layout} scales"] = quantised.codes, quantised.scales
            if by_columns:
                strides[case] = list(quantised.scales.stride())
    torch.save({**found, "strides": json.dumps(strides)}, path)


if __name__ == "__main__":
    main(sys.argv[1])
