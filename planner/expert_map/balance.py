"""Loads in, expert map out: what a map is, and the pass that makes one.

A map is named by the sha256 of its content, so that equal maps are one map, and a diff can say what moved.

`policy` does the work, or `coverage` where experts are to survive the loss of a domain. They are imported when they are
called, for they need numpy and numba: who only validates specs should not wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from planner.canonical import digest_of
from planner.expert_map.loads import Loads

__all__ = [
    "BoundKind",
    "Domains",
    "Effort",
    "ExpertMap",
    "Policy",
    "Sizes",
    "Split",
    "balance",
    "max_over_mean_sampled",
    "prepare",
    "slots_bind",
]

Effort = Literal["fast", "refined"]
Policy = Literal["auto", "global", "hierarchical"]
BoundKind = Literal["mean", "replicas", "packing", "pairs", "groups", "coverage"]  # see `bound`, `covered`
Split = Literal["equal", "local_first"]  # which of an expert's replicas a token goes to (`local_first`)
Domains = Sequence[Sequence[int]]  # [partitions][GPUs]: in which failure domain each stands (`domains`)


@dataclass(frozen=True)
class Sizes:
    """What a map is for: so many slots, GPUs and nodes, and so many groups of consecutive experts."""

    num_slots: int
    num_gpus: int
    num_nodes: int = 1
    num_groups: int = 1

    @property
    def slots_per_gpu(self) -> int:
        """Equal on all GPUs."""
        return self.num_slots // self.num_gpus

    @property
    def groups_spread_over_nodes(self) -> bool:
        """Whether each node can hold equally many whole groups."""
        return self.num_groups % self.num_nodes == 0


@dataclass(frozen=True)
class FrontPoint:
    """One map of a front of balance against bytes (`spill`): means of all layers."""

    max_over_mean: float
    extra_bytes_per_token: float  # cross-node dispatch bytes of a layer, more than with whole groups on nodes
    bytes_per_token: float  # with whole groups on nodes

    @property
    def bytes_ratio(self) -> float:
        """Cross-node dispatch bytes / those with whole groups on nodes."""
        return 1 + self.extra_bytes_per_token / self.bytes_per_token


@dataclass(frozen=True)
class ExpertMap:
    """Which logical expert each slot of a unit holds, and how even that makes the GPUs.

    `physical_to_logical` is `[num_moe_layers][num_physical_experts]`; slot s is on rank s // slots_per_gpu.
    `max_over_mean` is `[num_moe_layers]`, expected when tokens choose among replicas by the rule `split`; no map for
    these loads, sizes and policy is below `bound`, and `binding` says what keeps it there. `policy` is what was asked
    for or what `auto` chose, and `policy_reason` why. `is_covered`: every expert has replicas in two of the failure
    domains that were given; False also where none were.
    """

    num_logical_experts: int
    physical_to_logical: tuple[tuple[int, ...], ...]
    max_over_mean: tuple[float, ...]
    bound: tuple[float, ...]
    binding: tuple[BoundKind, ...]
    policy: Policy
    policy_reason: str
    is_covered: bool = False
    split: Split = "equal"
    moved_slots: int | None = None  # of the previous map, order inside a GPU ignored; None without one
    front: tuple[FrontPoint, ...] = ()  # where `auto` keeps groups on nodes: what it could choose among (`spill`)
    dispatch: FrontPoint | None = None  # and this map

    @property
    def logical_to_physical(self) -> list[list[list[int]]]:
        """The slots of each expert, rising: `[num_moe_layers][num_logical_experts][replicas]`."""
        slots: list[list[list[int]]] = [[[] for _ in range(self.num_logical_experts)] for _ in self.physical_to_logical]
        for layer, experts in enumerate(self.physical_to_logical):
            for slot, expert in enumerate(experts):
                slots[layer][expert].append(slot)
        return slots

    @cached_property
    def sha256(self) -> str:
        """Of the canonical JSON of `physical_to_logical`."""
        return digest_of(self.physical_to_logical)


def balance(
    loads: Loads,
    num_slots: int,
    num_gpus: int,
    effort: Effort = "refined",
    *,
    num_nodes: int = 1,
    num_groups: int = 1,
    policy: Policy = "auto",
    previous: Sequence[Sequence[int]] | None = None,
    keep_within: float = 0.0,
    domains: Domains = (),
    split: Split = "equal",
) -> ExpertMap:
    """A map of `num_slots` slots a layer on `num_gpus` GPUs that spreads `loads` evenly.

    Sizes must divide: slots by GPUs, GPUs by nodes, experts by groups; groups by nodes where they are to stay on one.

    With a `previous` map, `[num_moe_layers][num_slots]`, few of its slots change; none in a layer whose fullest GPU
    carries at most `1 + keep_within` times what the published EPLB would reach anew.

    With `domains`, every expert gets replicas in two of them at least (`covered`), where slots suffice
    (`fewest_slots_per_gpu`). Groups then do not stay on nodes, and moving stops at the balance of a fresh covered map.
    """
    from planner.expert_map.coverage import make_covered_map
    from planner.expert_map.local_first import keep_good, settle
    from planner.expert_map.policy import make_map

    sizes = Sizes(num_slots, num_gpus, num_nodes, num_groups)
    if domains:
        expert_map = make_covered_map(loads, sizes, domains, previous, keep_within)
    else:
        expert_map = make_map(loads, sizes, effort, policy, previous, keep_within, may_spill=split == "equal")
    if split == "equal":
        return expert_map
    within_nodes = bool(domains) or expert_map.policy == "hierarchical"
    settled = settle(expert_map, loads, sizes, within_nodes=within_nodes)
    if previous is None:
        return settled
    fresh = balance(
        loads,
        num_slots,
        num_gpus,
        effort,
        num_nodes=num_nodes,
        num_groups=num_groups,
        policy=policy,
        domains=domains,
        split=split,
    )
    return keep_good(settled, fresh, loads, sizes, previous, keep_within, domains)


def slots_bind(expert_map: ExpertMap) -> bool:
    """Whether in most layers it is the slots that keep the map where it is, so that more of them would help."""
    return (
        sum(kind in ("replicas", "packing", "pairs", "coverage") for kind in expert_map.binding)
        > len(expert_map.binding) / 2
    )


def max_over_mean_sampled(expert_map: ExpertMap, loads: Loads, sizes: Sizes, num_pairs: int) -> tuple[float, ...]:
    """What a single step of so many token-expert pairs adds to `max_over_mean`, on average."""
    from planner.expert_map import sampled  # numba, as in `balance`

    return sampled.max_over_mean_sampled(expert_map, loads, sizes, num_pairs)


def is_prepared() -> bool:
    """Whether `prepare` was run before, here or in another process."""
    from planner.expert_map.compiled import is_compiled  # numba, as in `balance`

    return is_compiled()


def prepare(
    *,
    with_previous: bool = False,
    with_domains: bool = False,
    with_groups: bool = False,
    split: Split = "equal",
) -> None:
    """Have the search ready to run: on first use after an installation it is compiled, which takes a while."""
    efforts: tuple[Effort, ...] = ("fast", "refined")
    for effort in efforts:
        fresh = balance(((3, 2, 1, 1, 1, 1, 1, 1),), 10, 2, effort)
        if with_previous:
            balance(((1, 1, 1, 1, 1, 1, 1, 5),), 10, 2, effort, previous=fresh.physical_to_logical)
    if with_groups:
        fresh = balance(((9, 5, 4, 3, 1, 1, 1, 1),), 12, 4, num_nodes=2, num_groups=2)
        if with_previous:
            balance(((1, 1, 1, 1, 3, 4, 5, 9),), 12, 4, num_nodes=2, num_groups=2, previous=fresh.physical_to_logical)
    if split != "equal":
        balance(((3, 2, 1, 1),), 6, 2, num_nodes=2, split=split)
    if with_domains:
        balance(((3, 2, 1, 1),), 8, 4, domains=((0, 0, 1, 1),))
