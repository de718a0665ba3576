"""`tidemill experts`: a load matrix and sizes in, one expert map and what it is worth out.

It is the balancer without a spec: for those who measured loads on a running engine and want a map for it. Everything
that can be wrong with the call is said at once; nothing here prints or looks at a clock (`cli.py` does both).

The worked example: 256 experts on 32 GPUs of 4 nodes. Without --slots-per-gpu each GPU has ceil(256 / 32) = 8 slots and
no expert a second replica; with --slots-per-gpu 9 there are 288 slots, 32 of them redundant.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from planner.errors import CallError, Problem, Violation
from planner.expert_map import Effort, ExpertMap, Loads, Policy, balance, read_loads

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


@dataclass(frozen=True)
class ExpertsJob:
    """A call without mistakes, and the file that it names, read."""

    loads: Loads
    num_gpus: int
    num_nodes: int
    slots_per_gpu: int
    num_groups: int
    policy: Policy
    effort: Effort


def check_call(call: ExpertsCall) -> ExpertsJob:
    """What `call` asks for. Raises CallError with everything that is wrong with it."""
    loads = read_loads(call.loads, str(call.loads), option=LOADS)
    problems: list[Problem] = []
    if isinstance(loads, Violation):
        problems.append(loads.at(str(call.loads)))
    num_experts = None if isinstance(loads, Violation) else len(loads[0])
    problems += [violation.at(PROGRAM) for violation in _wrong_sizes(call, num_experts)]
    if problems:
        raise CallError(problems)
    assert num_experts is not None
    assert not isinstance(loads, Violation)
    slots_per_gpu = call.slots_per_gpu or _fewest_slots(num_experts, call.gpus)
    return ExpertsJob(loads, call.gpus, call.nodes, slots_per_gpu, call.groups, call.policy, call.effort)


def answer(job: ExpertsJob) -> ExpertMap:
    """The map for `job`."""
    return balance(
        job.loads,
        job.num_gpus * job.slots_per_gpu,
        job.num_gpus,
        job.effort,
        num_nodes=job.num_nodes,
        num_groups=job.num_groups,
        policy=job.policy,
    )


def map_json(expert_map: ExpertMap) -> dict[str, Any]:
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
        "moved_slots": None,
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
        )
    )


def _fewest_slots(num_experts: int, num_gpus: int) -> int:
    return -(-num_experts // num_gpus)


# What can be wrong with sizes. Each rule is asked only when the sizes it counts with are numbers of things.


def _wrong_sizes(call: ExpertsCall, num_experts: int | None) -> Iterator[Violation]:
    counts = {name: getattr(call, name) for name in ("gpus", "nodes", "groups", "slots_per_gpu")}
    below_one = [name for name, count in counts.items() if count is not None and count < 1]
    for name in below_one:
        option = f"--{name.replace('_', '-')}"
        yield Violation(option, counts[name], "S801 must be at least 1", "it counts things", "nearest: 1")
    if not {"gpus", "nodes"} & set(below_one):
        yield from _uneven_nodes(call)
    if num_experts is not None and not {"gpus", "slots_per_gpu"} & set(below_one):
        yield from _too_few_slots(call, num_experts)
    if num_experts is not None and not {"groups", "nodes"} & set(below_one):
        yield from _uneven_groups(call, num_experts)


def _uneven_nodes(call: ExpertsCall) -> Iterator[Violation]:
    if call.gpus % call.nodes:
        rule = f"S802 must be a multiple of --nodes ({call.nodes})"
        fix = _nearest_multiples(call.gpus, call.nodes)
        yield Violation("--gpus", call.gpus, rule, "all nodes hold equally many GPUs", fix)


def _too_few_slots(call: ExpertsCall, num_experts: int) -> Iterator[Violation]:
    fewest = _fewest_slots(num_experts, call.gpus)
    if call.slots_per_gpu is not None and call.slots_per_gpu < fewest:
        rule = f"S803 must be at least {fewest} ({num_experts} experts on {call.gpus} GPUs)"
        reason = f"{call.slots_per_gpu * call.gpus} slots cannot hold {num_experts} experts"
        yield Violation("--slots-per-gpu", call.slots_per_gpu, rule, reason, f"nearest: {fewest}")


def _uneven_groups(call: ExpertsCall, num_experts: int) -> Iterator[Violation]:
    if num_experts % call.groups:
        divisors = [size for size in range(1, num_experts + 1) if num_experts % size == 0]
        rule = f"S804 must divide the number of experts ({num_experts})"
        fix = _nearest(call.groups, divisors)
        yield Violation("--groups", call.groups, rule, "all groups hold equally many experts", fix)
    elif call.policy == "hierarchical" and call.groups % call.nodes:
        rule = f"S805 must be a multiple of --nodes ({call.nodes}) with --policy hierarchical"
        fix = f"{_nearest_multiples(call.groups, call.nodes)}, or --policy global"
        yield Violation("--groups", call.groups, rule, "each node holds equally many whole groups", fix)


def _nearest(value: int, allowed: list[int]) -> str:
    """The allowed numbers on both sides of `value`: `nearest: 96 or 144`."""
    below = [str(number) for number in allowed if number < value][-1:]
    above = [str(number) for number in allowed if number > value][:1]
    return f"nearest: {' or '.join(below + above)}"


def _nearest_multiples(value: int, unit: int) -> str:
    """The multiples of `unit` on both sides of `value`."""
    below = value - value % unit
    return _nearest(value, [multiple for multiple in (below, below + unit) if multiple])
