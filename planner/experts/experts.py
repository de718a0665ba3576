"""`tidemill experts`: a load matrix and sizes in, one expert map and what it is worth out.

It is the balancer without a spec: for those who measured loads on a running engine and want a map for it. Everything
that can be wrong with the call is said at once (`call.py`); nothing here prints or looks at a clock (`cli.py`
does both), and `answer.py` puts the answer into words.

The worked example: 256 experts on 32 GPUs of 4 nodes. Without --slots-per-gpu each GPU has ceil(256 / 32) = 8 slots and
no expert a second replica; with --slots-per-gpu 9 there are 288 slots, 32 of them redundant.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from planner.expert_map import Domains, Effort, ExpertMap, Policy, Sizes, SplitRule, balance, slots_bind
from planner.experts.call import ExpertsCall, uncoverable, wrong_arguments
from planner.experts.formats import Map, read_map
from planner.facts.loads import Loads, read_loads
from planner.facts.quantities import read_bytes
from planner.facts.terms import Coverage
from planner.problems.errors import CallError, InfeasibleError, Problem, Violation
from planner.spec.schema import MAX_REDUNDANT

__all__ = ["ExpertsAnswer", "ExpertsJob", "check_call", "make_map", "with_one_more_slot"]

LOADS = "LOADS"  # as the command's help calls its argument
PROGRAM = "tidemill experts"


@dataclass(frozen=True)
class ExpertsJob:
    """A call without mistakes, and the files that it names, read."""

    loads: Loads  # the mean of windows, where there are several
    windows: tuple[Loads, ...]
    quantile: float | None  # over windows, that is balanced; None: their mean
    sizes: Sizes
    policy: Policy
    effort: Effort
    coverage: Coverage
    domains: Domains
    split: SplitRule
    previous: Map | None
    keep_within: float
    expert_bytes: int | None  # of one layer
    step_pairs: int | None  # tokens of a step times the experts of each


@dataclass(frozen=True)
class ExpertsAnswer:
    """The map, and where its slots bind the map with one more on each GPU."""

    expert_map: ExpertMap
    one_more_slot: ExpertMap | None


def check_call(call: ExpertsCall) -> ExpertsJob:
    """What `call` asks for. Raises CallError with everything that is wrong with it.

    InfeasibleError where slots do not suffice for the coverage.
    """
    windows = _read_all(call.loads)
    previous = read_map(call.previous, call.gpus) if call.previous else None
    num_experts = None if isinstance(windows, Problem) else len(windows[0][0])
    problems = [violation.at(PROGRAM) for violation in wrong_arguments(call, num_experts)]
    if not problems and not isinstance(windows, Problem) and isinstance(previous, tuple):
        previous = _fitting(previous, str(call.previous), windows[0], call)
    if isinstance(windows, Problem):
        problems.append(windows)
    if isinstance(previous, Violation):
        problems.append(previous.at(str(call.previous)))
    if problems or isinstance(windows, Problem) or isinstance(previous, Violation):
        raise CallError(problems)
    loads = _mean(windows)
    if violation := uncoverable(call, len(loads[0]), len(loads)):
        raise InfeasibleError([violation.at(PROGRAM)])
    slots_per_gpu = call.num_slots_per_gpu(len(loads[0]))
    return ExpertsJob(
        loads=loads,
        windows=windows,
        quantile=call.quantile,
        sizes=Sizes(slots_per_gpu * call.gpus, call.gpus, call.nodes, call.groups),
        policy=call.policy,
        effort=call.effort,
        coverage=call.coverage,
        domains=call.domains(),
        split=call.split,
        previous=previous,
        keep_within=call.keep_within,
        expert_bytes=read_bytes(call.expert_bytes) if call.expert_bytes else None,
        step_pairs=call.step_tokens * call.chosen_per_token if call.step_tokens else None,
    )


def make_map(job: ExpertsJob) -> ExpertMap:
    """The map for `job`."""
    from planner.expert_map import windows as several  # needs numpy and numba: who only asks what is wrong waits not

    if len(job.windows) > 1 and job.quantile is not None:
        return several.balance_windows(
            job.windows, job.sizes, job.effort, job.policy, job.quantile, job.previous, job.keep_within
        )
    expert_map = balance(
        job.loads,
        job.sizes.num_slots,
        job.sizes.num_gpus,
        job.effort,
        num_nodes=job.sizes.num_nodes,
        num_groups=job.sizes.num_groups,
        policy=job.policy,
        previous=job.previous,
        keep_within=job.keep_within,
        domains=job.domains,
        split=job.split,
    )
    if len(job.windows) == 1 or job.split != "equal":
        return expert_map
    return replace(expert_map, windows=several.outcome_of_windows(expert_map, job.windows, job.sizes, None))


def with_one_more_slot(job: ExpertsJob, expert_map: ExpertMap) -> ExpertsAnswer:
    """`expert_map`, and what one more slot a GPU would give where slots bind; None where no unit has so many."""
    more = replace(job.sizes, num_slots=job.sizes.num_slots + job.sizes.num_gpus)
    is_possible = more.num_slots - len(job.loads[0]) <= MAX_REDUNDANT
    if not (slots_bind(expert_map) and is_possible):
        return ExpertsAnswer(expert_map, None)
    return ExpertsAnswer(expert_map, make_map(replace(job, sizes=more, previous=None)))


def _read_all(paths: Sequence[Path]) -> tuple[Loads, ...] | Problem:
    """A window from each file; or what is wrong with the first that is."""
    windows: list[Loads] = []
    for path in paths:
        found = read_loads(path, str(path), option=LOADS)
        if isinstance(found, Violation):
            return found.at(str(path))
        loads = found.loads
        windows.append(loads)
        shape = (len(windows[0]), len(windows[0][0]))
        if (len(loads), len(loads[0])) != shape:
            rule = f"S824 must have shape [{shape[0]}][{shape[1]}] (layers, experts), as the first window"
            reason, fix = f"it has [{len(loads)}][{len(loads[0])}]", "give windows of one model"
            return Violation(LOADS, str(path), rule, reason, fix).at(str(path))
    return tuple(windows)


def _mean(windows: tuple[Loads, ...]) -> Loads:
    """Of several windows; one stays as it is, and waits for no search to be imported."""
    if len(windows) == 1:
        return windows[0]
    from planner.expert_map.windows import mean_loads

    return mean_loads(windows)


def _fitting(previous: Map, written: str, loads: Loads, call: ExpertsCall) -> Map | Violation:
    """The previous map, or why it cannot be one for these loads and sizes."""
    num_experts, num_slots = len(loads[0]), call.gpus * call.num_slots_per_gpu(len(loads[0]))
    rule = f"S807 must have shape [{len(loads)}][{num_slots}] (layers, slots) and hold each of {num_experts} experts"
    fix = "give the map in service, or none"
    if (len(previous), len(previous[0])) != (len(loads), num_slots):
        return Violation("--previous", written, rule, f"it has [{len(previous)}][{len(previous[0])}]", fix)
    for layer, experts in enumerate(previous):
        if wrong := sorted(set(experts) ^ set(range(num_experts))):
            return Violation("--previous", written, rule, f"layer {layer} differs in expert {wrong[0]}", fix)
    return previous
