"""Where a checkpoint lies and whether it is whole, decided from names and sizes before any weight is read.

A checkpoint is a Hugging Face folder: `config.json` and safetensors, in one file or in shards with an index. It does
not load tensors (`model/weights.py` does) and needs no torch, so that the gateway can use it.

Source of the format: huggingface/safetensors README, "Format": u64 header size, JSON header, data.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from runtime.errors import CheckpointError

__all__ = ["StoredTensor", "check_config_digest", "index_tensors", "read_json", "resolve"]

BUNDLED = "bundled:"
MAX_HEADER_BYTES = 100 * 2**20  # the limit that safetensors itself sets


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies and how: `dtype` in safetensors' words, `start` and `num_bytes` in its file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int


class _TensorEntry(msgspec.Struct):
    """What a safetensors header says of one tensor; its type is the reader's to check."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]  # from the end of the header


def resolve(uri: str) -> Path:
    """The checkpoint's folder: `bundled:NAME` inside this package, else an absolute path. Raises CheckpointError."""
    folder = Path(__file__).parent / uri.removeprefix(BUNDLED) if uri.startswith(BUNDLED) else Path(uri)
    if not folder.is_dir():
        raise CheckpointError(f"there is no checkpoint folder {folder} (checkpoint.uri is {uri!r})")
    return folder


def check_config_digest(folder: Path, digest: str) -> None:
    """Refuse a checkpoint of other shapes than the plan was made for. Raises CheckpointError."""
    found = "sha256:" + hashlib.sha256(_read_bytes(folder / "config.json")).hexdigest()
    if found != digest:
        raise CheckpointError(f"{folder / 'config.json'} is {found}, the plan was made for {digest}: plan again")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a checkpoint's file. Raises CheckpointError."""
    try:
        value = json.loads(_read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return value


def index_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor by its name: reads each file's header and holds it against its size. Raises CheckpointError."""
    tensors: dict[str, StoredTensor] = {}
    for path in _tensor_files(folder):
        for name, tensor in _read_header(path):
            if name in tensors:
                raise CheckpointError(f"{folder}: {name} is in two files, {tensors[name].path.name} and {path.name}")
            tensors[name] = tensor
    return tensors


def _tensor_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if _exists(index):
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointError(f"{index} has no weight_map")
        paths = [folder / _file_name(name, index) for name in sorted(set(map(str, weight_map.values())))]
        if missing := [path.name for path in paths if not _exists(path)]:
            raise CheckpointError(f"{index} names {len(paths)} files, of which {missing[0]} is not there")
        return paths
    return [folder / "model.safetensors"]


def _file_name(name: str, index: Path) -> str:
    """A shard lies beside its index (as a link, if need be): a checkpoint names no other files of this machine."""
    if name in ("", ".", "..") or "/" in name:
        raise CheckpointError(f"{index} names the file {name!r}, which is not the name of a file beside it")
    return name


def _exists(path: Path) -> bool:
    """Without the errors that `Path.exists` has for names that no file can have, and folders that are closed to us."""
    return os.path.exists(path)


def _read_header(path: Path) -> Iterator[tuple[str, StoredTensor]]:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            header_bytes = int.from_bytes(file.read(8), "little")
            if size < 8 or header_bytes > min(size - 8, MAX_HEADER_BYTES):
                raise CheckpointError(f"{path} is truncated or no safetensors file: {size:,} bytes, header incomplete")
            entries = _decode_header(file.read(header_bytes))
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path} is no safetensors file: {error}") from None
    data = 8 + header_bytes
    expected = data + max((entry.data_offsets[1] for entry in entries.values()), default=0)
    if size != expected:
        raise CheckpointError(
            f"{path} is truncated or damaged: its header promises {expected:,} bytes, it has {size:,}"
        )
    _check_offsets(path, entries)
    for name, entry in entries.items():
        start, end = entry.data_offsets
        yield name, StoredTensor(path, entry.dtype, entry.shape, data + start, end - start)


def _check_offsets(path: Path, entries: dict[str, _TensorEntry]) -> None:
    """Tensors follow each other without gaps, from 0 on: the format's own rule, so that none is read as another."""
    so_far = 0
    for name, entry in sorted(entries.items(), key=lambda named: named[1].data_offsets):
        start, end = entry.data_offsets
        if start != so_far or end < start:
            raise CheckpointError(
                f"{path} is damaged: {name} has bytes {start:,} to {end:,}, those before it end at {so_far:,}"
            )
        so_far = end


def _decode_header(header: bytes) -> dict[str, _TensorEntry]:
    fields = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
    fields.pop("__metadata__", None)
    return {name: msgspec.json.decode(entry, type=_TensorEntry) for name, entry in fields.items()}


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
