"""The tensors of a checkpoint and their places, read from the headers of its files and checked against their sizes.

Source of the format: huggingface/safetensors README, "Format": u64 header size, JSON header, data.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from runtime.checkpoint.folder import MAX_READ_BYTES, OpenFile, bytes_digest, read_json
from runtime.errors import CheckpointError

__all__ = ["Shard", "StoredTensor", "index_tensors", "open_shards", "read_shards", "refuse_holes"]

LENGTH_BYTES = 8  # the length of a safetensors header is stored before it
MAX_HEADER_BYTES = MAX_READ_BYTES  # the limit that safetensors itself sets


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in its file. `dtype` is safetensors' name; `start` and `num_bytes` are in bytes."""

    file: OpenFile
    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int

    @property
    def path(self) -> Path:
        """The path of the tensor's file."""
        return self.file.path


@dataclass(frozen=True)
class Shard:
    """One file of tensors. `header_digest` is the sha256 of its header, which has the tensors' names and places."""

    file: OpenFile
    header_digest: str
    tensors: Mapping[str, StoredTensor]

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self.file.path

    @property
    def num_bytes(self) -> int:
        """The size that the file must have by its header."""
        return self.file.num_bytes


class _TensorEntry(msgspec.Struct):
    """The entry of one tensor in a safetensors header. The reader must check its type."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]  # from the end of the header


@contextmanager
def open_shards(folder: Path) -> Iterator[list[Shard]]:
    """Yield the files of tensors, in the order of names.

    Raises CheckpointError if a header does not fit its file's size.

    The files stay open, so tensors come from the same files as headers. At the end, no file may have changed.
    """
    with ExitStack() as files:
        shards = []
        for path in _tensor_files(folder):
            file = _open(path)
            files.enter_context(closing(file))
            shards.append(_read_shard(file))
        yield shards
        for shard in shards:
            shard.file.require_unchanged()


def read_shards(folder: Path) -> list[Shard]:
    """Return the files of tensors as `open_shards` yields them, but closed.

    Raises CheckpointError if a header is wrong.
    """
    with open_shards(folder) as shards:
        return shards


def index_tensors(shards: Sequence[Shard]) -> dict[str, StoredTensor]:
    """Return name -> tensor. Raises CheckpointError if two files have a tensor of the same name."""
    index: dict[str, StoredTensor] = {}
    for shard in shards:
        for name, tensor in shard.tensors.items():
            if name in index:
                files = f"{index[name].path.name} and {shard.path.name}"
                raise CheckpointError(f"{shard.path.parent}: {name} is in two files, {files}")
            index[name] = tensor
    return index


def refuse_holes(shards: Sequence[Shard]) -> None:
    """Raises CheckpointError for a file with a hole: it was created in full length and never filled."""
    for shard in shards:
        hole = shard.file.first_hole()
        if hole < shard.num_bytes:
            fix = "copy it again, without holes (cp --sparse=never)"
            raise CheckpointError(f"{shard.path} has a hole at byte {hole:,} of {shard.num_bytes:,}: {fix}")


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
    """Return a shard's file name, as `index` gives it. Raises CheckpointError if the name leads to another folder."""
    if name in ("", ".", "..") or "/" in name:
        raise CheckpointError(f"{index} names the file {name!r}, which is not the name of a file beside it")
    return name


def _exists(path: Path) -> bool:
    """Return whether the file exists.

    `Path.exists` would raise for impossible names and for folders that we may not read.
    """
    return os.path.exists(path)


def _open(path: Path) -> OpenFile:
    try:
        return OpenFile(path)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None


def _read_shard(file: OpenFile) -> Shard:
    path, size, header = file.path, file.num_bytes, _read_header(file)
    try:
        entries = _decode_header(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path} is no safetensors file: {error}") from None
    data = LENGTH_BYTES + len(header)
    expected = data + max((entry.data_offsets[1] for entry in entries.values()), default=0)
    if size != expected:
        raise CheckpointError(
            f"{path} is truncated or damaged: its header promises {expected:,} bytes, it has {size:,}"
        )
    _check_offsets(path, entries)
    return Shard(
        file, bytes_digest(header), {name: _stored_tensor(file, data, entry) for name, entry in entries.items()}
    )


def _read_header(file: OpenFile) -> bytes:
    """Return the JSON header. Raises CheckpointError if the file ends before it."""
    size = file.num_bytes
    length = bytearray(min(LENGTH_BYTES, size))
    file.read_into(length, 0)
    header_bytes = int.from_bytes(length, "little")
    if size < LENGTH_BYTES or header_bytes > min(size - LENGTH_BYTES, MAX_HEADER_BYTES):
        raise CheckpointError(f"{file.path} is truncated or no safetensors file: {size:,} bytes, header incomplete")
    header = bytearray(header_bytes)
    file.read_into(header, LENGTH_BYTES)
    return bytes(header)


def _stored_tensor(file: OpenFile, data: int, entry: _TensorEntry) -> StoredTensor:
    start, end = entry.data_offsets
    return StoredTensor(file, entry.dtype, entry.shape, data + start, end - start)


def _check_offsets(path: Path, entries: dict[str, _TensorEntry]) -> None:
    """Raises CheckpointError unless tensors follow each other without gaps, from 0 on.

    This rule of the format keeps a tensor from being read as another.
    """
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
