"""Fills one rank's model from a checkpoint, reading only the tensors that this rank holds.

Every parameter is named as its tensor; the stacked local experts are built from the experts that the expert map puts
into this rank's slots, so a redundant expert is read by each of its holders. Shapes are checked before reading.
Nothing but safetensors is read: no pickle.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from runtime.checkpoint import TensorIndex, index_tensors
from runtime.errors import CheckpointError
from runtime.model.deepseek import DeepseekV3

__all__ = ["load"]

Destinations = dict[str, list[Tensor]]


@torch.no_grad()
def load(model: DeepseekV3, folder: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> list[str]:
    """Read every tensor of this rank, and return their names. `progress(done, total)` counts tensors.

    Raises CheckpointError.
    """
    index = index_tensors(folder)
    destinations = _destinations(model)
    _check_shapes(destinations, index, folder)
    by_file = defaultdict(list)
    for name in destinations:
        by_file[index.files[name]].append(name)
    done = 0
    for path, names in by_file.items():
        for name, tensor in _read(path, names):
            for destination in destinations[name]:
                destination.copy_(tensor)
            done += 1
            progress(done, len(destinations))
    return list(destinations)


def _destinations(model: DeepseekV3) -> Destinations:
    """Where each tensor of the checkpoint goes: one place, or one for each slot that holds the expert."""
    destinations: Destinations = defaultdict(list)
    for name, parameter in model.named_parameters():
        if ".mlp.experts." not in name:
            destinations[name].append(parameter.data)
    for moe_layer, experts in enumerate(model.load.local_experts.tolist()):
        layer = moe_layer + model.config.first_k_dense_replace
        stacked = model.model.layers[layer].mlp.experts
        for slot, expert in enumerate(experts):
            gate, up = stacked.gate_up.data[slot].chunk(2)
            prefix = f"model.layers.{layer}.mlp.experts.{expert}"
            destinations[f"{prefix}.gate_proj.weight"].append(gate)
            destinations[f"{prefix}.up_proj.weight"].append(up)
            destinations[f"{prefix}.down_proj.weight"].append(stacked.down.data[slot])
    return destinations


def _check_shapes(destinations: Destinations, index: TensorIndex, folder: Path) -> None:
    for name, places in destinations.items():
        expected = tuple(places[0].shape)
        if name not in index.shapes:
            raise CheckpointError(f"the checkpoint {folder} has no tensor {name}, which its config.json calls for")
        if index.shapes[name] != expected:
            raise CheckpointError(
                f"{folder}: {name} is stored as {list(index.shapes[name])}, its config.json says {list(expected)}"
            )


def _read(path: Path, names: list[str]) -> Iterator[tuple[str, Tensor]]:
    try:
        with safe_open(path, "pt") as file:
            for name in names:
                yield name, file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from None
