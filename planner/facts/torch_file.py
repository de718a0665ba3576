"""Read tensors from a file of torch.save, without torch and without unpickling.

SGLang records expert loads in such files. The file is a zip archive: NAME/data.pkl describes the saved object, and
NAME/data/KEY has the bytes of a tensor. data.pkl is a pickle, and unpickling runs arbitrary code. This module only
splits it into instructions (`pickletools.genops` executes none), and `_Object` interprets the few that build dicts,
lists, tuples, numbers, text and plain tensors. Names in the file are compared with the two that torch writes for
tensors. They are never imported or called, and everything else is refused.

It reads files since torch 1.6 with whole tensors on any device. It does not read tensors that share a part of another's
bytes, or whose elements are in another order.

Sources: Python's Lib/pickletools.py (what each instruction does); pytorch/pytorch torch/serialization.py (persistent
ids) and torch/_utils.py (`_rebuild_tensor_v2`). Nothing is copied from them.
"""

import pickletools
import struct
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["read_torch_file"]

TYPES = {"IntStorage": "<i4", "LongStorage": "<i8", "FloatStorage": "<f4", "DoubleStorage": "<f8"}  # counts and means
MAX_DIMENSIONS = 8
PLAIN_FLAGS = 1 << 3 | 1 << 11  # of a zip entry: its size stands after it, its name is UTF-8

CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}
VALUES = ("BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT")
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def read_torch_file(file: Path | IO[bytes]) -> Any:
    """Return the object in `file`, with numpy arrays for tensors.

    Raises OSError if the file cannot be read, and ValueError, with the reason, for any other content.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            description = next((name for name in archive.namelist() if name.endswith("/data.pkl")), "data.pkl")
            folder = description.removesuffix("data.pkl")
            if f"{folder}byteorder" in archive.namelist() and _bytes(archive, f"{folder}byteorder") != b"little":
                raise ValueError("its numbers are not little-endian")
            bytes_of = cache(lambda key: _bytes(archive, f"{folder}data/{key}"))  # a file may name a tensor often
            return _Object(bytes_of).follow(_instructions(_bytes(archive, description)))
    except (zipfile.BadZipFile, struct.error, EOFError, LookupError, RuntimeError, TypeError) as error:
        raise ValueError("it is torn, or torch.save did not write it") from error


def _bytes(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return an uncompressed entry. torch compresses none, and a compressed one could have any size."""
    entry = archive.getinfo(name)
    if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & ~PLAIN_FLAGS:
        raise ValueError("it is compressed or encrypted")
    return archive.read(entry)


def _instructions(pickled: bytes) -> list[tuple[str, Any]]:
    """Return the name and argument of each instruction."""
    return [(operation.name, argument) for operation, argument, _ in pickletools.genops(pickled)]


@dataclass(frozen=True)
class _Name:
    """The name of a function or class in the file."""

    full: str


@dataclass(frozen=True)
class _Storage:
    """The bytes of a tensor."""

    type: str
    key: str
    num_elements: int


class _Object:
    """A stack machine that builds the saved object."""

    def __init__(self, bytes_of: Callable[[str], bytes]) -> None:
        self._bytes_of = bytes_of
        self._stack: list[Any] = []
        self._marks: list[int] = []  # how high the stack was
        self._memo: dict[int, Any] = {}

    def follow(self, instructions: Iterable[tuple[str, Any]]) -> Any:
        """Execute `instructions` and return the object."""
        for name, argument in instructions:
            if name not in ("PROTO", "STOP"):
                self._do(name, argument)
        return self._stack.pop()

    def _do(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in CONSTANTS:
            stack.append(CONSTANTS[name]())
        elif name in VALUES:
            stack.append(argument)
        elif name == "GLOBAL":
            stack.append(_Name(argument))
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._again(self._memo[argument]))
        elif name == "TUPLE":
            stack.append(tuple(self._above_mark()))
        elif name in TUPLES:
            stack.append(tuple(self._top(TUPLES[name])))
        elif name == "BINPERSID":
            stack.append(_storage(stack.pop()))
        elif name == "REDUCE":
            stack.append(self._made_by(*self._top(2)))
        else:
            self._fill(name)

    def _fill(self, name: str) -> None:
        """Move the values on top of the stack into the list or dict below them."""
        if name in ("APPEND", "APPENDS"):
            values = self._top(1) if name == "APPEND" else self._above_mark()
            _only(list, self._stack[-1]).extend(values)
        elif name in ("SETITEM", "SETITEMS"):
            values = self._top(2) if name == "SETITEM" else self._above_mark()
            for key, value in zip(values[::2], values[1::2], strict=True):
                _only(dict, self._stack[-1])[_key(key)] = value
        else:
            raise ValueError(f"it holds more than plain values and tensors ({name})")

    def _again(self, value: Any) -> Any:
        """Return a value that the file refers to again; only small ones, or a small file could become a huge object."""
        is_small = isinstance(value, str | _Name) or (
            isinstance(value, tuple) and all(type(part) is int for part in value)
        )
        if not is_small:
            raise ValueError(f"it holds the same {type(value).__name__} twice")
        return value

    def _top(self, count: int) -> list[Any]:
        if count > len(self._stack):
            raise IndexError
        values = self._stack[len(self._stack) - count :]
        del self._stack[len(self._stack) - count :]
        return values

    def _above_mark(self) -> list[Any]:
        return self._top(len(self._stack) - self._marks.pop())

    def _made_by(self, function: Any, arguments: Any) -> Any:
        """Return a tensor, or the empty dict of hooks that each tensor has."""
        if function == _Name("torch._utils _rebuild_tensor_v2"):
            return self._tensor(*arguments)
        if function == _Name("collections OrderedDict") and arguments == ():
            return {}
        raise ValueError(f"it holds more than plain values and tensors ({_only(_Name, function).full})")

    def _tensor(self, storage: _Storage, offset: int, shape: Any, strides: Any, *_: Any) -> "NDArray[np.generic]":
        """Return the array of a tensor; `strides` are in elements."""
        import numpy as np  # only those who have such a file wait for it

        sizes = [_only(int, size) for size in _only(tuple, shape)]
        in_order = tuple(prod(sizes[axis + 1 :]) for axis in range(len(sizes)))
        if offset != 0 or strides != in_order or len(sizes) > MAX_DIMENSIONS or min(sizes, default=1) < 1:
            raise ValueError("its tensors are not whole")
        if prod(sizes) != _only(_Storage, storage).num_elements:
            raise ValueError("its tensors are not whole")
        return np.frombuffer(self._bytes_of(storage.key), dtype=storage.type).reshape(sizes)


def _storage(identity: Any) -> _Storage:
    """Return the storage of a persistent id: ("storage", type, key, device, number of elements)."""
    kind, of, key, _, num_elements = _only(tuple, identity)
    type_name = _only(_Name, of).full.removeprefix("torch ")
    if kind != "storage" or type_name not in TYPES:
        raise ValueError(f"its numbers are of {type_name}")
    return _Storage(TYPES[type_name], _only(str, key), _only(int, num_elements))


def _key(value: Any) -> Any:
    """Return a dict's key, a text or number. Hashing other values may take for ever or crash the interpreter."""
    if type(value) not in (str, int, bool, float, type(None)):
        raise ValueError(f"it holds a {type(value).__name__} as a key")
    return value


def _only(kind: type, value: Any) -> Any:
    """Return `value` if its type is exactly `kind`."""
    if type(value) is not kind:
        raise ValueError(f"it holds a {type(value).__name__} where a {kind.__name__} belongs")
    return value
