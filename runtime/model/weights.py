"""Fills one rank's part of a model, or of its MTP layer. It reads only the tensors that this rank holds.

A parameter has its tensor's name, without the prefix that a multimodal checkpoint puts before its text model's names.
The stacked local experts are built from the experts that the expert map puts into this rank's slots, so each holder of
a redundant expert reads it. Mistakes in a checkpoint are found in its headers, before any value is read.

    stored      kept        becomes
    BF16, FP32  BF16, FP32  the same value, rounded
    FP8         FP8         the same codes and scales
    FP8         BF16, FP32  codes times scales
    BF16, FP32  FP8         quantised here

A tensor is read in parts of `PART_BYTES`, so a loading rank needs little more memory than its weights. The safetensors
library would map whole files, and their pages would count as ours until the file is closed. No pickle.

Every tensor is hashed as it is read, before any conversion. The hashes are compared with a manifest, and between ranks
and units (`checkpoint/same_weights.py`).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from runtime.checkpoint import (
    ReadDigests,
    ReadWeights,
    Shard,
    StoredTensor,
    digest_parts,
    index_tensors,
    open_shards,
    read_manifest,
    read_text_model,
    refuse_holes,
)
from runtime.errors import CheckpointError
from runtime.kernels.fp8 import BLOCK, E4M3, Quantised, dequantise_matrix, num_blocks, quantise_matrix
from runtime.model.moe import MixtureOfExperts

__all__ = ["LoadedWeights", "load"]

PART_BYTES = 8 * 2**20
TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F8_E4M3": E4M3}
SCALE = "_scale_inv"
EXPERTS = ".mlp.experts."  # in the names of parameters that stack a rank's experts

Index = dict[str, StoredTensor]


@dataclass(frozen=True)
class _Destination:
    """The memory that a tensor is read into.

    An FP8 tensor has `scales`. If `power_of_two`, the scales that are computed here are powers of two.
    """

    values: Tensor
    scales: Tensor | None
    power_of_two: bool


@dataclass(frozen=True)
class LoadedWeights:
    """Tensor name -> digest of its stored bytes, for the tensors that were read.

    With a manifest, the digests are of its kind.
    """

    folder: Path
    index: Index
    digests: Mapping[str, str]
    has_manifest: bool

    @property
    def tensor_names(self) -> list[str]:
        """The names of the tensors that were read, scales included."""
        return list(self.digests)

    def summarise(self, rank: str) -> ReadWeights:
        """Return the summary that ranks compare, under the name `rank`.

        Raises CheckpointError if a file cannot be read.
        """
        return digest_parts(rank, self.folder, self.index, self.digests, has_manifest=self.has_manifest)


@torch.no_grad()
def load(
    model: nn.Module, folder: Path, progress: Callable[[int, int], None] = lambda done, total: None
) -> LoadedWeights:
    """Read every tensor of this rank, and compare it with the manifest if there is one.

    `progress(done, total)` counts tensors, but not the scales of FP8 matrices. Raises CheckpointError if a tensor is
    missing or wrong.
    """
    with open_shards(folder) as shards:
        return _load(model, folder, shards, progress)


def _load(model: nn.Module, folder: Path, shards: list[Shard], progress: Callable[[int, int], None]) -> LoadedWeights:
    manifest = read_manifest(folder)
    if manifest is None:
        refuse_holes(shards)
    else:
        manifest.check_headers(shards)
    index = index_tensors(shards)
    prefix = read_text_model(folder).prefix
    destinations = _destinations(model, index, prefix)
    for name in destinations:
        _check_tensor(name, tuple(destinations[name][0].values.shape), index, folder)
    _check_tied(_tied_names(model, prefix), index, folder)
    sorted_by_file = sorted(destinations, key=lambda name: (index[name].path, index[name].start))
    with ReadDigests(None if manifest is None else manifest.tensors, torch.get_num_threads()) as digests:
        for done, name in enumerate(sorted_by_file, 1):
            for first, part in _read_parts(name, index, digests):
                for destination in destinations[name]:
                    _store_part(part, destination, first)
            progress(done, len(destinations))
    return LoadedWeights(folder, index, digests.found, has_manifest=manifest is not None)


def _destinations(model: nn.Module, index: Index, prefix: str) -> dict[str, list[_Destination]]:
    """Return tensor name -> the memory to read it into: one tensor, or one in each slot that holds the expert.

    A tied tensor is in the file under one of its two names, or under both.
    """
    destinations: dict[str, list[_Destination]] = defaultdict(list)
    power_of_two = any(getattr(module, "power_of_two", False) for module in model.modules())

    def add(module: str, tensors: dict[str, Tensor]) -> None:
        for name, values in tensors.items():
            if not name.endswith(SCALE):
                destinations[prefix + module + name].append(
                    _Destination(values, tensors.get(name + SCALE), power_of_two)
                )

    parameters = {name: parameter.data for name, parameter in model.named_parameters()}
    add("", {name: values for name, values in parameters.items() if EXPERTS not in name})
    for layer, mixture in model.named_modules():
        if isinstance(mixture, MixtureOfExperts):
            for slot, expert in enumerate(mixture.load.local_experts[mixture.moe_layer].tolist()):
                add(f"{layer}.experts.{expert}.", mixture.experts.tensors(slot))
    for name, other in _tied_names(model, prefix):
        if other in index:
            destinations[other] = destinations[name] if name in index else destinations.pop(name)
    return destinations


def _tied_names(model: nn.Module, prefix: str) -> list[tuple[str, str]]:
    """Return both names of each parameter that two modules share: the embedding's and the head's.

    Empty if none is shared.
    """
    names: dict[nn.Parameter, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[parameter].append(prefix + name)
    return [(both[0], both[1]) for both in names.values() if len(both) == 2]


def _check_tied(tied: list[tuple[str, str]], index: Index, folder: Path) -> None:
    """Raises CheckpointError if the file has two different matrices that the config says are one."""
    for name, other in tied:
        if name in index and other in index and not _are_equal(name, other, index):
            raise CheckpointError(
                f"{folder}: its config.json says that {other} is {name} (tie_word_embeddings), but the two are stored"
                " as different matrices"
            )


def _are_equal(name: str, other: str, index: Index) -> bool:
    if index[name].dtype != index[other].dtype:
        return False
    parts = zip(_read_parts(name, index, None), _read_parts(other, index, None), strict=True)
    return all(torch.equal(_dequantise(one), _dequantise(same)) for (_, one), (_, same) in parts)


def _check_tensor(name: str, shape: tuple[int, ...], index: Index, folder: Path) -> None:
    if name not in index:
        raise CheckpointError(f"the checkpoint {folder} has no tensor {name}, which its config.json calls for")
    stored = index[name]
    if stored.shape != shape:
        raise CheckpointError(f"{folder}: {name} is stored as {list(stored.shape)}, its config.json says {list(shape)}")
    _check_type(name, stored, tuple(TYPES))
    if _is_fp8(stored):
        _check_scales(name, index, folder)


def _check_scales(name: str, index: Index, folder: Path) -> None:
    shape, scales = index[name].shape, index.get(name + SCALE)
    if len(shape) != 2:
        raise CheckpointError(f"{folder}: {name} is stored in FP8, which this runtime reads for matrices only")
    if scales is None:
        raise CheckpointError(f"{folder}: {name} is stored in FP8 without {name}{SCALE}, which scales it")
    expected = [num_blocks(size) for size in shape]
    if list(scales.shape) != expected:
        raise CheckpointError(
            f"{folder}: {name}{SCALE} is stored as {list(scales.shape)}, but {list(shape)} in blocks of"
            f" {BLOCK} x {BLOCK} has {expected}"
        )
    _check_type(name + SCALE, scales, ("F32",))


def _check_type(name: str, stored: StoredTensor, types: tuple[str, ...]) -> None:
    if stored.dtype not in types:
        raise CheckpointError(
            f"{stored.path}: {name} is stored as {stored.dtype}, this runtime reads {', '.join(types)}"
        )
    num_bytes = TYPES[stored.dtype].itemsize * torch.Size(stored.shape).numel()
    if stored.num_bytes != num_bytes:
        raise CheckpointError(
            f"{stored.path} is damaged: {name} has {stored.num_bytes:,} bytes, its shape and type need {num_bytes:,}"
        )


def _is_fp8(stored: StoredTensor) -> bool:
    return TYPES[stored.dtype] == E4M3


def _read_parts(name: str, index: Index, digests: ReadDigests | None) -> Iterator[tuple[int, Tensor | Quantised]]:
    """Yield the tensor in parts, each with the number of its first row; a part of an FP8 matrix has whole blocks."""
    stored = index[name]
    num_rows = stored.shape[0]
    row_bytes = stored.num_bytes // num_rows
    step = max(PART_BYTES // row_bytes // BLOCK, 1) * BLOCK
    for first in range(0, num_rows, step):
        values = _read_rows(name, index, first, min(step, num_rows - first), digests)
        if _is_fp8(stored):
            yield (
                first,
                Quantised(values, _read_rows(name + SCALE, index, first // BLOCK, num_blocks(len(values)), digests)),
            )
        else:
            yield first, values


def _read_rows(name: str, index: Index, first: int, count: int, digests: ReadDigests | None) -> Tensor:
    stored = index[name]
    rows = torch.empty(count, *stored.shape[1:], dtype=TYPES[stored.dtype])
    buffer = rows.view(torch.uint8).numpy().data
    stored.file.read_into(buffer, stored.start + stored.num_bytes // stored.shape[0] * first)
    if digests is not None:
        digests.add(name, stored, buffer)
    return rows


def _store_part(part: Tensor | Quantised, destination: _Destination, first: int) -> None:
    if destination.scales is None:
        values = _dequantise(part)
        destination.values[first : first + len(values)] = values
        return
    quantised = part if isinstance(part, Quantised) else quantise_matrix(part, destination.power_of_two)
    destination.values[first : first + len(quantised.codes)] = quantised.codes
    destination.scales[first // BLOCK : first // BLOCK + len(quantised.scales)] = quantised.scales


def _dequantise(part: Tensor | Quantised) -> Tensor:
    return dequantise_matrix(part) if isinstance(part, Quantised) else part
