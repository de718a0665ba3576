"""How many slots change at least on the way to a given balance: a proven bound, for maps of two slots a GPU.

In a map whose fullest GPU carries at most T, every GPU has kept both of its experts, or one, or none. Beside one that
was kept comes somebody who weighs at most T less its weight; of two who came the lighter weighs at most T / 2, the
other at most T less the lightest replica there can be. Whoever was not kept sits in a slot that changed, so that

    for every weight t     replicas of t or more that were not kept  <=  changed slots with room for t or more

An expert has at least ceil(load / (T - lightest)) replicas, and at most as many more as slots are left when everybody
has that. All of this is linear in what is kept and in who has how many replicas; that these are whole numbers is
dropped, so that the least number of changed slots is a bound, and so is the next whole number.
"""

from math import ceil

import highspy
import numpy as np

ROUNDING = 1e-6


def fewest_moves(loads, previous, fullest):
    """Slots of one layer that change at least; `loads` `[experts]`, `previous` `[GPUs, 2]`, `fullest` as the loads."""
    weights = _weights(np.asarray(loads, dtype=float), np.size(previous), fullest)
    program = highspy.Highs()
    program.setOptionValue("output_flag", False)
    counts = {key: program.addVariable(0, 1) for key in weights}  # 1: the expert has so many replicas
    for expert in range(len(loads)):
        program.addConstr(program.qsum(counts[key] for key in counts if key[0] == expert) == 1)
    program.addConstr(program.qsum(key[1] * counts[key] for key in counts) == np.size(previous))
    kept, rooms = _add_gpus(program, weights, previous, fullest)
    for (_, key), choices in kept.items():
        program.addConstr(program.qsum(choices) <= counts[key])
    _seat(program, weights, counts, kept, rooms)
    program.minimize(program.qsum(variable for _, variable in rooms))
    assert program.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return ceil(program.getInfo().objective_function_value - ROUNDING)


def _weights(loads, num_slots, fullest):
    """What a replica weighs for every expert and number of replicas that there can be: `{(expert, number): weight}`."""
    base = np.maximum(np.ceil(loads / fullest * (1 - ROUNDING)), 1)
    lightest = (loads / (base + num_slots - base.sum())).min()
    base = np.maximum(np.ceil(loads / (fullest - lightest) * (1 - ROUNDING)), 1)
    most = int(num_slots - base.sum())
    return {
        (expert, number): loads[expert] / number
        for expert in range(len(loads))
        for number in range(int(base[expert]), int(base[expert]) + most + 1)
    }


def _add_gpus(program, weights, previous, fullest):
    """What each GPU may keep, `{(gpu, (expert, number)): variables}`, and `[(room, variable)]` of slots that change."""
    numbers = {}
    for expert, number in weights:
        numbers.setdefault(expert, []).append((expert, number))
    kept, rooms = {}, []
    for gpu, (one, other) in enumerate(np.asarray(previous).tolist()):
        choices = [program.addVariable(0, 1)]
        rooms += [(fullest - min(weights.values()), choices[0]), (fullest / 2, choices[0])]
        for first in numbers[one]:
            for second in numbers[other]:
                if weights[first] + weights[second] <= fullest:
                    choices.append(program.addVariable(0, 1))
                    kept.setdefault((gpu, first), []).append(choices[-1])
                    kept.setdefault((gpu, second), []).append(choices[-1])
        for key in numbers[one] + numbers[other]:
            choices.append(program.addVariable(0, 1))
            kept.setdefault((gpu, key), []).append(choices[-1])
            rooms.append((fullest - weights[key], choices[-1]))
        program.addConstr(program.qsum(choices) == 1)
    return kept, rooms


def _seat(program, weights, counts, kept, rooms):
    """The inequality above, from the heaviest replica to the lightest: `spare` slots with room are left each time."""
    stayed = {}
    for (_, key), choices in kept.items():
        stayed.setdefault(key, []).extend(choices)
    for key, choices in stayed.items():
        program.addConstr(program.qsum(choices) <= key[1] * counts[key])
    rooms = sorted(rooms, key=lambda each: -each[0])
    spare, place = None, 0
    for key in sorted(weights, key=lambda each: -weights[each]):
        terms = [-key[1] * counts[key], *stayed.get(key, ())]
        while place < len(rooms) and rooms[place][0] >= weights[key]:
            terms.append(rooms[place][1])
            place += 1
        left = program.addVariable(0, highspy.kHighsInf)
        program.addConstr(program.qsum(terms if spare is None else [*terms, spare]) == left)
        spare = left
