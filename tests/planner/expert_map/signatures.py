"""Find compiled functions that `prepare` leaves to be compiled later: python -m tests.planner.expert_map.signatures

It is a process of its own, because whatever was called before has its signatures. It prints a line for each function
that gets one more in maps of all policies and options, and for each set of options with which one is loaded too late.
"""

import gc
import itertools

import numpy as np
from numba.core.dispatcher import Dispatcher

from planner.expert_map import Sizes, balance, consecutive_domains, max_over_mean_sampled, prepare
from planner.expert_map.windows import balance_windows
from planner.facts.drawn import draw_loads, draw_windows

LOADS, OTHERS = (draw_loads(1.01, seed, num_layers=2, num_experts=16) for seed in (1, 2))
WINDOWS = draw_windows(1.01, 1, 2, 16, 4, 3, 0.9)
NUM_SLOTS, NUM_GPUS = 32, 8
PREVIOUS = [list(range(16)) + list(range(8))] * 2


def main():
    """Prepare for more and more, and make the maps that were prepared for."""
    for split, with_domains, with_groups in itertools.product(("equal", "local_first"), (False, True), (False, True)):
        options = {"split": split, "with_domains": with_domains, "with_groups": with_groups}
        prepare(**options)
        report(options, maps_of(split, with_domains, with_groups))
        prepare(**options, with_previous=True)
        report(options | {"with_previous": True}, maps_of(split, with_domains, with_groups, with_previous=True))
    for with_groups in (False, True):
        prepare(with_windows=True, with_groups=with_groups)
        report({"with_windows": True, "with_groups": with_groups}, maps_of_windows(with_groups))
        prepare(with_windows=True, with_groups=with_groups, with_previous=True)
        report({"windows with_previous": True, "with_groups": with_groups}, maps_of_windows(with_groups, PREVIOUS))


def report(options, maps):
    """Make the maps, and print what had not been compiled or loaded for them."""
    before = signatures()
    for make in maps:
        make()
    for name, kinds in signatures().items():
        if late := kinds - before[name]:
            print(options, name, late)


def signatures():
    """Return the signatures that every compiled function was called with, by its name."""
    functions = (each for each in gc.get_objects() if isinstance(each, Dispatcher))
    return {f"{each.py_func.__module__}.{each.py_func.__name__}": set(each.signatures) for each in functions}


def maps_of(split, with_domains, with_groups, with_previous=False):
    """Return calls that make a map, one for each policy, effort and number of nodes."""
    policies = ("auto", "global", "hierarchical") if with_groups and not with_domains else ("auto", "global")
    for policy, effort, num_nodes in itertools.product(policies, ("fast", "refined"), (1, 2)):
        options = {
            "policy": policy,
            "num_nodes": num_nodes,
            "num_groups": 4 if with_groups else 1,
            "split": split,
            "domains": consecutive_domains(NUM_GPUS, 4) if with_domains else (),
        }
        yield lambda effort=effort, options=options: make(effort, options, with_previous)


def make(effort, options, with_previous):
    """Make one map, the next from it, and what a step of it has; loads have the order that `prepare` has not."""
    sizes = Sizes(NUM_SLOTS, NUM_GPUS, options["num_nodes"], options["num_groups"])
    loads, others = (np.array(each, order="F") for each in (LOADS, OTHERS))
    made = balance(loads, NUM_SLOTS, NUM_GPUS, effort, **options)
    if with_previous:
        balance(others, NUM_SLOTS, NUM_GPUS, effort, **options, previous=made.physical_to_logical, keep_within=0.01)
    max_over_mean_sampled(made, loads, sizes, 100)


def maps_of_windows(with_groups, previous=None):
    """Return calls that make a map for several windows."""
    sizes = Sizes(NUM_SLOTS - 8, NUM_GPUS, 2, 4 if with_groups else 1)
    policies = ("auto", "global", "hierarchical") if with_groups else ("auto", "global")
    for policy, effort, quantile in itertools.product(policies, ("fast", "refined"), (0.5, 1.0)):
        yield lambda policy=policy, effort=effort, quantile=quantile: balance_windows(
            WINDOWS, sizes, effort, policy, quantile, previous
        )


if __name__ == "__main__":
    main()
