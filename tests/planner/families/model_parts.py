"""The parameters of a model, part by part, as published totals count them."""

from collections import Counter


def parameters_of(model):
    """Return the number of parameters by part, with all routed experts of each layer."""
    found = Counter()
    for matrix, count in model.matrices():
        copies = model.num_routed_experts if matrix.part == "experts" else 1
        found[matrix.part] += count * copies * matrix.num_weights
    return {part: number for part, number in found.items() if number}
