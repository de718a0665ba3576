"""Our placement beside HiGHS's: `python -m tests.benchmarks.placement [SHAPE...]`, exit 1 on a missed goal.

The published system of 278 nodes (29 prefill units of 4 nodes, 9 decode units of 18, twelve windows) on clusters of
several shapes. HiGHS has `--seconds` (60) of one thread for all counts of a shape together, with each of the models
of `placement_programs.py`:

    cells      nodes of every unit in every rack, from nothing
    from ours  the same model from our placement: can it still be bettered?
    leaves     whole units of each kind under each leaf; it knows no racks by name, so no losses of racks

Goal: count after count in their order ours is at most 5 % above what HiGHS reaches with any model, up to the count in
which the two differ (what follows has been paid for). `bound` is what `planner.placement.quality` proves: nothing is
below it. A star marks what HiGHS has proven to be the least; a dash is where it found nothing in time.
"""

import argparse
import sys
import time

from rich.console import Console
from rich.progress import track

from planner.placement.greedy import place_greedily
from planner.placement.quality import measure
from planner.placement.task import fewest_places
from tests.benchmarks.goals import Goals
from tests.benchmarks.placement_programs import cells_model, leaves_model
from tests.benchmarks.placement_shapes import shapes, task_on

MAX_ABOVE = 1.05


def main():
    """Print every count of every shape, and say which goals were missed."""
    parser = argparse.ArgumentParser(description="Our placement beside HiGHS's.")
    parser.add_argument("shape", nargs="*", help="only these: " + ", ".join(shapes()))
    parser.add_argument("--seconds", type=float, default=60.0, help="of HiGHS, for all counts of a shape together")
    arguments = parser.parse_args()
    unknown = set(arguments.shape) - shapes().keys()
    if unknown:
        parser.error(f"no such shape: {', '.join(sorted(unknown))}")
    chosen = {name: shape for name, shape in shapes().items() if name in arguments.shape or not arguments.shape}
    goals = Goals()
    print(f"{'':14}{'count':12}{'bound':>7}{'ours':>7}{'HiGHS':>8}{'ratio':>8}{'seconds':>9}")
    for name, shape in track(chosen.items(), "Shapes", console=Console(stderr=True)):
        compare(name, task_on(shape), arguments.seconds, goals)
    return goals.report()


def compare(name, task, seconds, goals):
    """One shape with every model."""
    began = time.perf_counter()
    assignment = place_greedily(task)
    took = time.perf_counter() - began
    ours = measure(task, assignment)
    print(f"{name}: {len(task.units)} units in {len(task.cells)} racks, ours in {took:.2f} s", flush=True)
    models = {"cells": cells_model(task), "from ours": cells_model(task, assignment)}
    if task.leaves:
        needed = sum(fewest_places(task.leaves.largest_first, unit.num_nodes) for unit in task.units)
        models["leaves"] = leaves_model(task, max_split=ours[0].value - needed)
    for model_name, model in models.items():
        reached = model.minimised(seconds)
        for objective, theirs in zip(ours, reached, strict=False):
            print(line(model_name, objective, theirs), flush=True)
        ratios = [objective.value / theirs.value for objective, theirs in comparable(ours, reached)]
        if ratios:
            goals.check(f"{name}, {model_name}: ours / HiGHS, worst of {len(ratios)}", max(ratios), "<=", MAX_ABOVE)
    goals.check(f"{name}: least above a bound", min(each.excess for each in ours), ">=", 0)


def comparable(ours, reached):
    """Counts in their order, up to the first in which the two differ; none that HiGHS has no solution of."""
    for objective, theirs in zip(ours, reached, strict=False):
        assert objective.name == theirs.name
        if theirs.value is None:
            return
        yield objective, theirs
        if theirs.value != objective.value:
            return


def line(model_name, objective, theirs):
    """Of the table."""
    value = "-" if theirs.value is None else f"{theirs.value}{'*' if theirs.is_proven else ' '}"
    ratio = "" if theirs.value is None else f"{objective.value / theirs.value:.3f}"
    return (
        f"  {model_name:12}{objective.name:12}{objective.bound:7}{objective.value:7}{value:>8}{ratio:>8}"
        f"{theirs.seconds:9.1f}"
    )


if __name__ == "__main__":
    sys.exit(main())
