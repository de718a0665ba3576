"""The part of the search that is compiled: C functions on numpy arrays, in the shapes of `weigh`.

The search for a map is a long chain of small decisions, each of which looks at one layer's few hundred slots. numpy has
nothing to do all of them at once, and Python is a hundred times too slow. So the loops are C (`search.c` says what is
where), compiled when Tidemill is built (`build`).
"""

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.expert_map.native.build import LIBRARY, digest
from planner.expert_map.types import Domains, SplitRule
from planner.expert_map.weigh import Floats, Ints

__all__ = [
    *("Search", "bounds", "change_seats", "eplb_fullest", "improve", "largest_replicas"),
    *("pack", "serve", "solve", "spill"),
]

Flags = NDArray[np.bool_]
SPLITS: dict[SplitRule, int] = {"equal": 0, "local_first": 1, "first_on_node": 2}


def _load() -> ctypes.CDLL:
    """Return the library; raise ImportError when it is missing or was built from other sources."""
    what = "is missing"
    if LIBRARY.exists():
        library = ctypes.CDLL(str(LIBRARY))
        library.digest.restype = ctypes.c_char_p
        if library.digest() == digest().encode():
            return library
        what = "was built from other C files than those beside it"
    raise ImportError(f"{LIBRARY} {what}: run python {LIBRARY.parent / 'build.py'}, or install Tidemill again")


_library = _load()


def _call(name: str, *arguments: Any) -> int:
    """Call a C function: whole numbers as int, floats as double, arrays by pointer, None as NULL."""
    converted = [
        ctypes.c_void_p(each.ctypes.data)
        if isinstance(each, np.ndarray)
        else ctypes.c_double(each)
        if isinstance(each, float)
        else each
        for each in arguments
    ]
    return int(getattr(_library, name)(*converted))


def _floats(numbers: Floats) -> Floats:
    return np.ascontiguousarray(numbers, dtype=np.float64)


def _ints(numbers: Any) -> Ints:
    return np.ascontiguousarray(numbers, dtype=np.int64)


def solve(
    loads_LE: Floats, num_gpus: int, per_gpu: int, enough_L: Floats, num_starts: int, num_kicks: int, better: float
) -> Ints:
    """Return maps from scratch, slots `[L, G, S]`, for one window of load and equal shares (`solve.h`).

    A layer is done when its fullest GPU carries `enough_L` and no more than EPLB's; or less than EPLB's by the share
    `better`.
    """
    slots_LGS = np.zeros((len(loads_LE), num_gpus, per_gpu), np.int64)
    numbers = (*loads_LE.shape, num_gpus, per_gpu)
    _call("solve", *numbers, _floats(loads_LE), _floats(enough_L), num_starts, num_kicks, float(better), slots_LGS)
    return slots_LGS


def pack(loads_LE: Floats, num_gpus: int, per_gpu: int, least: int) -> Ints:
    """Return first maps with `least` replicas of each expert or more, slots `[L, G, S]` (`start.h`)."""
    slots_LGS = np.zeros((len(loads_LE), num_gpus, per_gpu), np.int64)
    _call("pack_maps", *loads_LE.shape, num_gpus, per_gpu, _floats(loads_LE), least, slots_LGS)
    return slots_LGS


@dataclass(frozen=True)
class Search:
    """What a search from a given map has to keep to, and how long it goes on (`search.h`)."""

    enough_L: Floats  # what the fullest GPU may carry
    num_kicks: int = 0
    num_nodes: int = 1
    split: SplitRule = "equal"
    allowed_LEG: Flags | None = None  # where experts may go; None: anywhere
    domains: Domains = ()  # no expert may have all its replicas in one
    num_counted: int = 1  # the windows in which the map is most even are those that count
    in_service: bool = False  # few slots of the start are to change
    may_spill: bool = False  # where nothing else is enough, experts go to nodes where they are not allowed


def improve(loads_LWE: Floats, start_LGS: Ints, search: Search) -> tuple[Ints, Flags]:
    """Return better maps, slots `[L, G, S]`, and in which layers every expert is in two of the `domains`."""
    num_layers, num_windows, num_experts = loads_LWE.shape
    slots_LGS, is_covered_L = np.zeros(start_LGS.shape, np.int64), np.zeros(num_layers, np.bool_)
    allowed = None if search.allowed_LEG is None else np.ascontiguousarray(search.allowed_LEG, dtype=np.bool_)
    _call(
        "improve",
        *(num_layers, num_experts, *start_LGS.shape[1:], num_windows, search.num_nodes, SPLITS[search.split]),
        *(len(search.domains), search.num_counted, search.num_kicks, int(search.in_service), int(search.may_spill)),
        *(_floats(loads_LWE), _ints(start_LGS), allowed, _ints(search.domains or [[]])),
        *(_floats(search.enough_L), slots_LGS, is_covered_L),
    )
    return slots_LGS, is_covered_L


def spill(loads_LE: Floats, start_LGS: Ints, levels_QL: Floats, num_nodes: int) -> Ints:
    """Return maps `[1 + Q, L, G, S]`: the start, and one for each level of the fullest GPU's load; levels fall."""
    slots_QLGS = np.zeros((1 + len(levels_QL), *start_LGS.shape), np.int64)
    numbers = (*loads_LE.shape, *start_LGS.shape[1:], num_nodes, len(levels_QL))
    _call("spill", *numbers, _floats(loads_LE), _ints(start_LGS), _floats(levels_QL), slots_QLGS)
    return slots_QLGS


def serve(
    loads_LE: Floats, slots_QLGS: Ints, num_nodes: int, num_groups: int, some_load: float
) -> tuple[Floats, Floats]:
    """Return the load of each GPU, `[Q, L, G]`, and what each node serves of each group's load, `[Q, L, groups, M]`.

    Experts without load count `some_load`, so that their groups are somewhere.
    """
    num_maps, num_layers, num_gpus, per_gpu = slots_QLGS.shape
    carried = np.zeros((num_maps, num_layers, num_gpus))
    served = np.zeros((num_maps, num_layers, num_groups, num_nodes))
    numbers = (num_maps, *loads_LE.shape, num_gpus, per_gpu, num_nodes, num_groups)
    _call("serve", *numbers, float(some_load), _floats(loads_LE), _ints(slots_QLGS), carried, served)
    return carried, served


def change_seats(loads_E: Floats, slots_GS: Ints, enough: float) -> Ints | None:
    """Return a map that differs in one slot of a GPU at most, and where none carries more than `enough`, if found."""
    slots = np.array(slots_GS, dtype=np.int64, order="C")
    found = _call("change_seats", len(loads_E), *slots.shape, _floats(loads_E), float(enough), slots)
    return slots if found else None


def eplb_fullest(loads_LE: Floats, num_gpus: int, per_gpu: int, num_nodes: int, num_groups: int) -> Floats:
    """Return the load of the fullest GPU in each layer of the published EPLB's map, `[L]`."""
    fullest_L = np.zeros(len(loads_LE))
    _call("eplb_fullest", *loads_LE.shape, num_gpus, per_gpu, num_nodes, num_groups, _floats(loads_LE), fullest_L)
    return fullest_L


def largest_replicas(loads_LE: Floats, num_gpus: int, per_gpu: int, least: int) -> Floats:
    """Return a lower bound on the largest replica, `[L]`, with `least` replicas or more of each expert."""
    largest_L = np.zeros(len(loads_LE))
    _call("largest_replicas", *loads_LE.shape, num_gpus, per_gpu, _floats(loads_LE), least, largest_L)
    return largest_L


def bounds(loads_LE: Floats, num_gpus: int, per_gpu: int) -> Floats:
    """Return lower bounds on the load of the fullest GPU by kind: mean, replicas, packing, pairs; `[4, L]`."""
    bounds_KL = np.zeros((4, len(loads_LE)))
    _call("bounds", *loads_LE.shape, num_gpus, per_gpu, _floats(loads_LE), bounds_KL)
    return bounds_KL
