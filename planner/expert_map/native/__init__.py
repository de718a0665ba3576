"""The compiled part of the search for a map: C functions on numpy arrays, with the shapes that `weigh` lists.

The search for a map is a long chain of small decisions about one layer's few hundred slots. numpy cannot batch them,
and Python is a hundred times too slow. So the loops are C (`search.c` lists the files), compiled with Tidemill
(`build`).
"""

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.expert_map.native.build import LIBRARY, digest
from planner.expert_map.types import Domains, Sizes
from planner.expert_map.weigh import Floats, Ints
from planner.facts.terms import SplitRule

Prices = NDArray[np.uint8]  # [L, E, G]: what it costs to put an expert on a GPU
BARRED = 255  # the price that bars an expert from a GPU
SPLITS: dict[SplitRule, int] = {"equal": 0, "local_first": 1, "first_on_node": 2}


def _load() -> ctypes.CDLL:
    """Return the compiled library. Raises ImportError if the library is missing or was built from other sources."""
    problem = "is missing"
    if LIBRARY.exists():
        library = ctypes.CDLL(str(LIBRARY))
        library.digest.restype = ctypes.c_char_p
        if library.digest() == digest().encode():
            return library
        problem = "was built from other C files than those beside it"
    raise ImportError(f"{LIBRARY} {problem}: run python {LIBRARY.parent / 'build.py'}, or install Tidemill again")


_library = _load()


def _call(name: str, *arguments: Any) -> None:
    """Call the C function `name`. Whole numbers become int, floats double, arrays pointers, and None NULL."""
    converted = [
        ctypes.c_void_p(each.ctypes.data)
        if isinstance(each, np.ndarray)
        else ctypes.c_double(each)
        if isinstance(each, float)
        else each
        for each in arguments
    ]
    getattr(_library, name)(*converted)


def _floats(numbers: Floats) -> Floats:
    return np.ascontiguousarray(numbers, dtype=np.float64)


def _ints(numbers: Any) -> Ints:
    return np.ascontiguousarray(numbers, dtype=np.int64)


def pack(
    loads_LE: Floats,
    sizes: Sizes,
    *,
    shift: float = 0.0,
    least: int = 1,
    as_eplb: bool = False,
    replicas_LE: Ints | None = None,
) -> tuple[Ints, Floats]:
    """Return a first map of each layer, slots `[L, G, S]`, and the load of its fullest GPU, `[L]` (`start.h`).

    Each expert has at least `least` replicas, or the number in `replicas_LE`. A negative `shift` favours experts with
    few replicas.
    """
    slots_LGS = np.zeros((len(loads_LE), sizes.num_gpus, sizes.slots_per_gpu), np.int64)
    fullest_L = np.zeros(len(loads_LE))
    numbers = (*loads_LE.shape, *slots_LGS.shape[1:])
    replicas = None if replicas_LE is None else _ints(replicas_LE)
    _call("pack_maps", *numbers, _floats(loads_LE), float(shift), least, int(as_eplb), replicas, slots_LGS, fullest_L)
    return slots_LGS, fullest_L


@dataclass(frozen=True)
class Search:
    """The constraints and the length of a search from a given map (`search.h`)."""

    target_L: Floats  # a layer is done once its fullest GPU has at most this load
    num_kicks: int = 0  # random changes after which the search descends again
    turn: int = 0  # added to the seed of the kicks, so that further searches differ
    num_nodes: int = 1
    split: SplitRule = "equal"
    domains: Domains = ()  # no expert may have all its replicas in one
    prices_LEG: Prices | None = None  # price of each expert on each GPU; None: any expert may go anywhere
    may_reseat: bool = False  # whether one step may change a slot on each of several GPUs (`seats.h`)


def improve(loads_LE: Floats, start_LGS: Ints, search: Search) -> tuple[Ints, Floats]:
    """Return (the maps that a search from `start_LGS` finds, slots `[L, G, S]`; the load of each's fullest GPU, `[L]`).

    A layer stays as it is if not every expert of the layer can be in two failure domains.
    """
    num_layers, num_experts = loads_LE.shape
    slots_LGS, fullest_L = np.zeros(start_LGS.shape, np.int64), np.zeros(num_layers)
    prices_LEG = None if search.prices_LEG is None else np.ascontiguousarray(search.prices_LEG)
    _call(
        "improve",
        *(num_layers, num_experts, *start_LGS.shape[1:], search.num_nodes, SPLITS[search.split]),
        *(len(search.domains), search.num_kicks, search.turn, int(search.may_reseat)),
        *(_floats(loads_LE), _ints(start_LGS), prices_LEG, _ints(search.domains or [[]])),
        *(_floats(search.target_L), slots_LGS, fullest_L),
    )
    return slots_LGS, fullest_L


def spill(loads_LE: Floats, start_LGS: Ints, levels_QL: Floats, num_nodes: int) -> Ints:
    """Move replicas to other nodes until the fullest GPU has at most the loads `levels_QL`, the highest level first.

    Return maps `[1 + Q, L, G, S]`: the start, and one for each of the Q levels.
    """
    slots_QLGS = np.zeros((1 + len(levels_QL), *start_LGS.shape), np.int64)
    numbers = (*loads_LE.shape, *start_LGS.shape[1:], num_nodes, len(levels_QL))
    _call("spill", *numbers, _floats(loads_LE), _ints(start_LGS), _floats(levels_QL), slots_QLGS)
    return slots_QLGS


def gpu_loads(loads_LE: Floats, slots_LGS: Ints, split: SplitRule = "equal", num_nodes: int = 1) -> Floats:
    """Return the load of each GPU, `[L, G]`, as the sum of its replicas' loads, each rounded down (`layer.h`)."""
    gpu_loads_LG = np.zeros(slots_LGS.shape[:2])
    numbers = (*loads_LE.shape, *slots_LGS.shape[1:], num_nodes, SPLITS[split])
    _call("gpu_loads", *numbers, _floats(loads_LE), _ints(slots_LGS), gpu_loads_LG)
    return gpu_loads_LG


def lower_bounds(loads_LE: Floats, sizes: Sizes, least: int = 1) -> Floats:
    """Return four lower bounds on the load of the fullest GPU, `[4, L]`: by mean, replicas, packing and pairs.

    The bounds hold for maps with at least `least` replicas of each expert.
    """
    bounds_KL = np.zeros((4, len(loads_LE)))
    _call("lower_bounds", *loads_LE.shape, sizes.num_gpus, sizes.slots_per_gpu, _floats(loads_LE), least, bounds_KL)
    return bounds_KL
