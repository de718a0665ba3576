"""`tidemill experts`: a load matrix and sizes in, one expert map and what it is worth out.

It is the balancer without a spec: for those who measured loads on a running engine and want a map for it. Everything
that can be wrong with the call is said at once; nothing here prints or looks at a clock (`cli.py` does both).

The worked example: 256 experts on 32 GPUs of 4 nodes. Without --slots-per-gpu each GPU has ceil(256 / 32) = 8 slots and
no expert a second replica; with --slots-per-gpu 9 there are 288 slots, 32 of them redundant.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from planner.errors import CallError, Violation
from planner.expert_map import Effort, ExpertMap, Loads, Policy, Sizes, balance, read_loads, stage_moves
from planner.expert_map.formats import Engine, Map, read_map
from planner.rule import nearest
from planner.spec import MAX_EP_SIZE, MAX_REDUNDANT

__all__ = ["ExpertsCall", "ExpertsJob", "answer", "check_call", "map_json", "map_text"]

LOADS = "LOADS"  # as the command's help calls its argument
PROGRAM = "tidemill experts"
SPLIT = "equal"  # tokens of an expert split equally among its replicas: the rule that maps are balanced under


@dataclass(frozen=True)
class ExpertsCall:
    """The command's arguments as given."""

    loads: Path
    gpus: int
    nodes: int
    slots_per_gpu: int | None = None
    groups: int = 1
    policy: Policy = "auto"
    effort: Effort = "refined"
    previous: Path | None = None
    keep_within: float = 0.0
    export: Engine | None = None
    first_layer: int = 0
    output: Path | None = None


@dataclass(frozen=True)
class ExpertsJob:
    """A call without mistakes, and the files that it names, read."""

    loads: Loads
    sizes: Sizes
    policy: Policy
    effort: Effort
    previous: Map | None
    keep_within: float


def check_call(call: ExpertsCall) -> ExpertsJob:
    """What `call` asks for. Raises CallError with everything that is wrong with it."""
    loads = read_loads(call.loads, str(call.loads), option=LOADS)
    previous = read_map(call.previous) if call.previous else None
    num_experts = None if isinstance(loads, Violation) else len(loads[0])
    problems = [violation.at(PROGRAM) for violation in _wrong_sizes(call, num_experts)]
    if not problems and not isinstance(loads, Violation) and isinstance(previous, tuple):
        previous = _fitting(previous, str(call.previous), loads, call)
    if isinstance(loads, Violation):
        problems.append(loads.at(str(call.loads)))
    if isinstance(previous, Violation):
        problems.append(previous.at(str(call.previous)))
    if problems or isinstance(loads, Violation) or isinstance(previous, Violation):
        raise CallError(problems)
    slots_per_gpu = _slots_per_gpu(call, len(loads[0]))
    return ExpertsJob(
        loads=loads,
        sizes=Sizes(slots_per_gpu * call.gpus, call.gpus, call.nodes, call.groups),
        policy=call.policy,
        effort=call.effort,
        previous=previous,
        keep_within=call.keep_within,
    )


def answer(job: ExpertsJob) -> ExpertMap:
    """The map for `job`."""
    return balance(
        job.loads,
        job.sizes.num_slots,
        job.sizes.num_gpus,
        job.effort,
        num_nodes=job.sizes.num_nodes,
        num_groups=job.sizes.num_groups,
        policy=job.policy,
        previous=job.previous,
        keep_within=job.keep_within,
    )


def map_json(job: ExpertsJob, expert_map: ExpertMap) -> dict[str, Any]:
    """The contract's keys, without `seconds`: the same call gives the same bytes."""
    slots = expert_map.logical_to_physical
    return {
        "physical_to_logical": [list(layer) for layer in expert_map.physical_to_logical],
        "logical_to_physical": slots,
        "replica_count": [[len(replicas) for replicas in layer] for layer in slots],
        "max_over_mean": list(expert_map.max_over_mean),
        "bound": list(expert_map.bound),
        "binding": list(expert_map.binding),
        "policy": expert_map.policy,
        "policy_reason": expert_map.policy_reason,
        "split": SPLIT,
        "moved_slots": expert_map.moved_slots,
    } | _moves_json(job, expert_map)


def _moves_json(job: ExpertsJob, expert_map: ExpertMap) -> dict[str, Any]:
    """The way from the previous map, where there is one: stages, and how many experts cross each link."""
    if job.previous is None:
        return {}
    stages = stage_moves(job.previous, expert_map.physical_to_logical, job.sizes)
    links = Counter((each.from_gpu, each.to_gpu) for stage in stages for each in stage.transfers)
    return {
        "stages": [
            {
                "layer": stage.layer,
                "spare_slots": stage.spare_slots,
                "transfers": [asdict(transfer) for transfer in stage.transfers],
            }
            for stage in stages
        ],
        "links": [
            {"from_gpu": sender, "to_gpu": to, "experts": count} for (sender, to), count in sorted(links.items())
        ],
    }


def map_text(expert_map: ExpertMap) -> str:
    """What the map is worth, for people; the map itself is for programs."""
    reached, bound = expert_map.max_over_mean, expert_map.bound
    worst = max(range(len(reached)), key=reached.__getitem__)
    bound_by = ", ".join(f"{kind} {count}" for kind, count in Counter(expert_map.binding).most_common())
    return "\n".join(
        (
            f"Expert map {expert_map.sha256}",
            f"  layers          {len(reached)}",
            f"  policy          {expert_map.policy} ({expert_map.policy_reason})",
            f"  max/mean load   {fmean(reached):.4f} mean, {reached[worst]:.4f} worst (layer {worst})",
            f"  proven bound    {fmean(bound):.4f} mean, {bound[worst]:.4f} there",
            f"  bound by        {bound_by} (layers)",
            *([] if expert_map.moved_slots is None else [f"  moved slots     {expert_map.moved_slots}"]),
        )
    )


def _slots_per_gpu(call: ExpertsCall, num_experts: int) -> int:
    return call.slots_per_gpu or -(-num_experts // call.gpus)


def _fitting(previous: Map, written: str, loads: Loads, call: ExpertsCall) -> Map | Violation:
    """The previous map, or why it cannot be one for these loads and sizes."""
    num_experts, num_slots = len(loads[0]), call.gpus * _slots_per_gpu(call, len(loads[0]))
    rule = f"S807 must have shape [{len(loads)}][{num_slots}] (layers, slots) and hold each of {num_experts} experts"
    fix = "give the map in service, or none"
    if (len(previous), len(previous[0])) != (len(loads), num_slots):
        return Violation("--previous", written, rule, f"it has [{len(previous)}][{len(previous[0])}]", fix)
    for layer, experts in enumerate(previous):
        if wrong := sorted(set(experts) ^ set(range(num_experts))):
            return Violation("--previous", written, rule, f"layer {layer} differs in expert {wrong[0]}", fix)
    return previous


# What can be wrong with sizes. Each rule is asked only when the sizes it counts with are numbers of things.


def _wrong_sizes(call: ExpertsCall, num_experts: int | None) -> Iterator[Violation]:
    counts = {name: getattr(call, name) for name in ("gpus", "nodes", "groups", "slots_per_gpu")}
    wrong = {name for name, count in counts.items() if count is not None and count < 1}
    for name in counts:
        if name in wrong:
            option = f"--{name.replace('_', '-')}"
            yield Violation(option, counts[name], "S801 must be at least 1", "it counts things", "nearest: 1")
    if call.gpus > MAX_EP_SIZE:
        wrong.add("gpus")
        rule = f"S811 must be at most {MAX_EP_SIZE}, as a unit's ep_size"
        yield Violation("--gpus", call.gpus, rule, "experts are spread over one unit", f"nearest: {MAX_EP_SIZE}")
    if not {"gpus", "nodes"} & wrong:
        yield from _uneven_nodes(call)
    if num_experts is not None and not {"gpus", "slots_per_gpu"} & wrong:
        yield from _too_few_slots(call, num_experts)
        yield from _too_many_slots(call, num_experts)
    if num_experts is not None and not {"groups", "nodes"} & wrong:
        yield from _uneven_groups(call, num_experts)
    yield from _wrong_options(call)


def _wrong_options(call: ExpertsCall) -> Iterator[Violation]:
    """What concerns neither GPUs nor slots."""
    if call.export is not None and call.output is None:
        rule, reason = "S809 must come with -o", "stdout is for the answer"
        yield Violation("--export", call.export, rule, reason, "for example -o map.json")
    if not 0 <= call.keep_within < math.inf:
        rule, reason = "S808 must be a number, at least 0", "a layer is kept when it is less even by this share"
        yield Violation("--keep-within", str(call.keep_within), rule, reason, "nearest: 0")
    if call.first_layer < 0:
        rule, reason = "S810 must be at least 0", "layers are numbered from 0"
        yield Violation("--first-layer", call.first_layer, rule, reason, "nearest: 0")


def _uneven_nodes(call: ExpertsCall) -> Iterator[Violation]:
    if call.gpus % call.nodes:
        rule = f"S802 must be a multiple of --nodes ({call.nodes})"
        fix = _nearest_multiples(call.gpus, call.nodes)
        yield Violation("--gpus", call.gpus, rule, "all nodes hold equally many GPUs", fix)


def _too_few_slots(call: ExpertsCall, num_experts: int) -> Iterator[Violation]:
    fewest = -(-num_experts // call.gpus)
    if call.slots_per_gpu is not None and call.slots_per_gpu < fewest:
        rule = f"S803 must be at least {fewest} ({num_experts} experts on {call.gpus} GPUs)"
        reason = f"{call.slots_per_gpu * call.gpus} slots cannot hold {num_experts} experts"
        yield Violation("--slots-per-gpu", call.slots_per_gpu, rule, reason, f"nearest: {fewest}")


def _too_many_slots(call: ExpertsCall, num_experts: int) -> Iterator[Violation]:
    most = (num_experts + MAX_REDUNDANT) // call.gpus
    if call.slots_per_gpu is not None and call.slots_per_gpu > most:
        rule = f"S812 must be at most {most} ({num_experts} + {MAX_REDUNDANT} redundant experts on {call.gpus} GPUs)"
        reason = "no unit has more redundant experts"
        yield Violation("--slots-per-gpu", call.slots_per_gpu, rule, reason, f"nearest: {most}")


def _uneven_groups(call: ExpertsCall, num_experts: int) -> Iterator[Violation]:
    if num_experts % call.groups:
        divisors = [size for size in range(1, num_experts + 1) if num_experts % size == 0]
        rule = f"S804 must divide the number of experts ({num_experts})"
        fix = nearest(call.groups, divisors)
        yield Violation("--groups", call.groups, rule, "all groups hold equally many experts", fix)
    elif call.policy == "hierarchical" and call.groups % call.nodes:
        rule = f"S805 must be a multiple of --nodes ({call.nodes}) with --policy hierarchical"
        fitting = [size for size in range(call.nodes, num_experts + 1, call.nodes) if num_experts % size == 0]
        fix = f"{nearest(call.groups, fitting)}, or --policy global" if fitting else "use --policy global"
        yield Violation("--groups", call.groups, rule, "each node holds equally many whole groups", fix)


def _nearest_multiples(value: int, unit: int) -> str:
    """The multiples of `unit` on both sides of `value`."""
    below = value - value % unit
    return nearest(value, [multiple for multiple in (below, below + unit) if multiple])
