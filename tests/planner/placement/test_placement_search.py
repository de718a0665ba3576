"""The search beside counting from scratch, on random small clusters."""

from random import Random

import pytest

from planner.layout.nodes import Node
from planner.placement.arrangement import Arrangement
from planner.placement.fill import fillings
from planner.placement.greedy import place_greedily
from planner.placement.improve import _candidates
from planner.placement.quality import measure
from planner.placement.task import UnplacedUnit, make_task
from planner.spec.schedule import ScheduleSpec, active_minutes

MAX_NODES = 16


def random_task(seed, before=False):
    """Up to 16 nodes in racks and under leaves, some missing; up to 9 units; up to four windows."""
    random = Random(seed)
    sizes = {
        "r": random.choice([2, 3, 4, 4, 5]),
        "l": random.choice([None, 3, 4, 6, 8, 8, 12]),
    }
    holes = random.choice([0.0, 0.15])
    nodes = [
        Node(i, f"n{i}", *(f"{kind}{i // size}" if size else "" for kind, size in sizes.items()), None)
        for i in range(random.randint(4, MAX_NODES))
        if i == 0 or random.random() >= holes
    ]
    num_nodes = {"prefill": random.randint(1, 4), "decode": random.randint(1, 6)}
    num_units = {"prefill": random.randint(0, 5), "decode": random.randint(1, 4)}
    while sum(num_units[phase] * num_nodes[phase] for phase in num_units) > len(nodes):
        largest = max(num_units, key=lambda phase: num_units[phase] * num_nodes[phase])
        if num_units[largest] > 1 or largest == "prefill":
            num_units[largest] -= 1
        else:
            num_nodes[largest] -= 1
    schedule = random_schedule(random, num_units) if random.random() < 0.7 else None
    wanted = [
        UnplacedUnit(f"{phase}-{index}", phase, index, num_nodes[phase], active_minutes(schedule, phase, index))
        for phase in num_units
        for index in range(num_units[phase])
    ]
    had = {}
    if before:
        names = [node.name for node in random.sample(nodes, len(nodes))]
        kept = {unit.name: random.random() < 0.5 for unit in wanted}  # the others lost a node
        had = {unit.name: [names.pop() for _ in range(unit.num_nodes)][not kept[unit.name] :] for unit in wanted}
    return make_task(wanted, nodes, schedule, had)


def random_schedule(random, num_units):
    """All units at nine, fewer before."""
    windows = [
        {"at": f"0{hour}:00"} | {f"{phase}_units": random.randint(0, number) for phase, number in num_units.items()}
        for hour in range(random.randint(1, 3))
    ]
    windows.append({"at": "09:00"} | {f"{phase}_units": number for phase, number in num_units.items()})
    return ScheduleSpec.model_validate({"windows": windows})


def values(objectives):
    """Return the values of all counts, in order."""
    return [objective.value for objective in objectives]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_a_placement_is_the_same_every_time(seed):
    """Splits, not only counts: a plan has the same bytes on every run."""
    assert place_greedily(random_task(seed)) == place_greedily(random_task(seed))


@pytest.mark.parametrize("seed", range(40))
def test_no_step_of_the_local_search_moves_a_kept_unit(seed):
    """Not even where fewer decode units would share a rack."""
    task = random_task(seed, before=True)
    arrangement = Arrangement(task, next(fillings(task)))
    stepping = {unit for steps in _candidates(arrangement) for unit, *_ in steps}

    assert not stepping & task.kept


@pytest.mark.parametrize("seed", range(40))
def test_counts_kept_up_to_date_are_those_counted_from_scratch(seed):
    """The slow reference, after shifts of single nodes to and fro."""
    task = random_task(seed, before=True)
    arrangement = Arrangement(task, next(fillings(task)))
    random = Random(seed)
    for _ in range(30):
        unit = random.randrange(len(task.units))
        source = random.choice(sorted(arrangement.cells_of_unit[unit]))
        target = random.randrange(len(task.cells))
        if arrangement.free[target] and target != source:
            arrangement.shift(unit, source, target, 1)

        assert list(arrangement.counts()) == values(measure(task, arrangement.assignment()))
