"""Count the expert slots that change between two plans, and the bytes of weights that units read.

A slot changes if its GPU did not hold the slot's expert before, or in fewer slots. The order of slots inside a GPU does
not matter. If the maps' sizes differ, all slots change. Only units of both plans count, because a new unit reads all
its weights anyway.

So far no weights travel between GPUs: a unit reads its map and all its weights when it starts.
"""

from collections import Counter
from collections.abc import Sequence

from planner.diff.change import STARTING_FATES, ExpertMoves, PhaseMoves, UnitChange, WeightReads
from planner.facts.terms import Phase
from planner.plan.plan import Plan
from planner.plan.sections import weights_read
from planner.plan.unit_starts import unit_start_times

Rows = Sequence[Sequence[int]]  # [layers][slots]


def count_expert_moves(before: Plan, after: Plan) -> ExpertMoves:
    """Return how many expert slots change in the units that both plans have."""
    phases = {phase: _phase_moves(before, after, phase) for phase in after.phases if phase in before.phases}
    return ExpertMoves(
        slots_changed=sum(each.slots_changed * each.units for each in phases.values()),
        bytes=sum(each.bytes for each in phases.values()),
        phases=phases,
    )


def estimate_weight_reads(plan: Plan, changes: Sequence[UnitChange]) -> WeightReads:
    """Return how many bytes of weights the units of `plan` read that `changes` start."""
    times = unit_start_times(plan)
    starting = [each.phase for each in changes if each.change in STARTING_FATES and each.phase in plan.phases]
    reads = [times.units[phase] for phase in starting]
    return WeightReads(
        units=len(starting),
        bytes=round(sum(each.nodes * each.node_bytes for each in reads)),
        checkpoint=plan.spec.checkpoint,
    )


def _phase_moves(before: Plan, after: Plan, phase: Phase) -> PhaseMoves:
    old, new = (plan.expert_maps[plan.map_digests[phase]].physical_to_logical for plan in (before, after))
    units = {unit.name for unit in before.units_of(phase)} & {unit.name for unit in after.units_of(phase)}
    _, slot_bytes = weights_read(after.memory, after.reads)[phase]
    changed, num_slots = _count_changed_slots(old, new, before, after, phase), sum(map(len, new))
    size = changed * (slot_bytes // after.phases[phase].slots_per_gpu // len(new)) * len(units)
    return PhaseMoves(slots_changed=changed, of_slots=num_slots, units=len(units), bytes=size)


def _count_changed_slots(old: Rows, new: Rows, before: Plan, after: Plan, phase: Phase) -> int:
    if old == new:
        return 0
    slots_per_gpu = after.phases[phase].slots_per_gpu
    if [len(row) for row in old] != [len(row) for row in new] or slots_per_gpu != before.phases[phase].slots_per_gpu:
        return sum(map(len, new))
    parts = range(0, len(new[0]), slots_per_gpu)
    return sum(
        (Counter(after_row[part : part + slots_per_gpu]) - Counter(before_row[part : part + slots_per_gpu])).total()
        for before_row, after_row in zip(old, new, strict=True)
        for part in parts
    )
