"""Plain loops at the speed of machine code: numba compiles them on first use, and keeps what it compiled.

The search for a map is a long chain of small decisions, each of which looks at one layer's few hundred slots. numpy
has nothing to do all of them at once, and Python is a hundred times too slow; no compiler is needed where it installs.

Compiled code lies beside the source, in `__pycache__`, under the digest of this whole package: numba itself notices a
changed file, but not that a file it calls has changed. Where that folder cannot be written numba takes the user's cache
folder, and where there is none every process compiles anew, which takes about a minute.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import event

__all__ = ["compiled", "on_compiling"]

Function = TypeVar("Function", bound=Callable[..., Any])

FOLDER = Path(__file__).parent


def compiled(function: Function) -> Function:
    """Return `function`, to be compiled at its first call.

    Floats follow IEEE 754: nothing is reordered, and no steps are fused.
    """
    elsewhere, numba.config.CACHE_DIR = numba.config.CACHE_DIR, _cache_folder()
    try:
        return cast(Function, numba.njit(cache=True, error_model="numpy")(function))
    except RuntimeError:  # nowhere to keep it
        return cast(Function, numba.njit(error_model="numpy")(function))
    finally:
        numba.config.CACHE_DIR = elsewhere


@contextmanager
def on_compiling(tell: Callable[[], None]) -> Iterator[None]:
    """Call `tell` once, before the first function that has to be compiled; code that is there already is ignored."""
    with event.install_listener("numba:compile", _Listener(tell)):
        yield


@cache
def _cache_folder() -> str:
    sources = b"".join(path.read_bytes() for path in sorted(FOLDER.glob("*.py")))
    return str(FOLDER / "__pycache__" / hashlib.sha256(sources).hexdigest()[:12])


class _Listener(event.Listener):
    """Tells of the first event that it hears."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self.tell = tell
        self.has_told = False

    def on_start(self, _: event.Event) -> None:
        if not self.has_told:
            self.has_told = True
            self.tell()

    def on_end(self, _: event.Event) -> None:
        """Ignore the end of an event."""
