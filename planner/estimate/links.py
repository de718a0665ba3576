"""Estimate the bytes that dispatch and combine put on a unit's links, in one MoE layer of its largest step.

Each rank sends its tokens to experts in proportion to their loads, equally to an expert's replicas. The layer shown is
the one with the fullest GPU, because a step waits for it. DeepEP has two ways of sending:
    normal (prefill)         a token goes once to each NVLink domain that has one of its experts, on the sender's rail,
                             and from there over NVLink to the GPUs
    low latency (decode)     a token goes once for each of its experts, to the GPU that has it

GPUs that share attention sum their results in the two halves of an all-reduce. After attention, a reduce-scatter gives
each GPU the sums of the tokens that it dispatches. After combine, an all-gather gives each GPU the other tokens. For S
bytes of tokens that is 2 (n - 1) / n S into each of n GPUs, and as much out of it (over several nodes: `topology.py`).
If a unit is one group, every GPU has all tokens: it dispatches none, and all-reduces the results of both attention and
experts.

Combine takes the same paths back. If the gate limits a token to few groups of experts, the groups determine how many
domains it goes to (`facts/gate.py`). Without groups, its experts are assumed independent. Mixed units dispatch prompts,
which are most of their tokens, the normal way. A GPU receives equally from all others of its domain, so a mesh offers
it all its links, like a switch. Replicas are assumed to be chosen equally; with `split: local_first` less leaves a
node. Seconds here are bytes over bandwidth, and only serve to compare links.

Source: github.com/deepseek-ai/DeepEP dd758caf README; github.com/NVIDIA/nccl-tests 03a204a1 doc/PERFORMANCE.md
(all-reduce), whose place is that of RowParallelLinear in github.com/deepseek-ai/DeepSeek-V3 9b4e9788
inference/model.py.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from planner.estimate.topology import Topology, gpus_in_one_domain, shared_bytes, topology_of
from planner.expert_map import ExpertMap
from planner.facts.gate import Gate, reach_probability
from planner.facts.loads import Loads
from planner.facts.model import Model
from planner.facts.part import Part
from planner.facts.terms import Phase
from planner.layout.dispatch import gate_of, is_normal, limiting_groups, message_bytes
from planner.layout.layout import PhaseLayout
from planner.layout.nodes import nodes_of
from planner.layout.nvlink_domains import nvlink_domains
from planner.layout.unit import Unit
from planner.layout.working_memory import largest_step_tokens
from planner.spec.precision import wide_bytes
from planner.spec.resolved import ResolvedSpec

if TYPE_CHECKING:
    from planner.expert_map.weigh import Floats

__all__ = ["Link", "Traffic", "expected_traffic"]

_Links = tuple[str, Sequence[str], Sequence[float], Sequence[float]]  # a kind: places, messages into each, GB/s


class Link(Part):
    """The fullest link of a kind: bytes in for dispatch, bytes out for combine."""

    kind: str  # gpu (NVLink), nic, node (its NICs), leaf (from other leaves)
    place: str
    dispatch_bytes: int
    combine_bytes: int
    gb_per_s: float
    attention_bytes: int  # each way, where GPUs share attention
    attention_gb_per_s: float | None  # to the rest of the group; in a mesh, only the links to these
    microseconds: float  # of dispatch, combine and attention in sequence, at full bandwidth


class Traffic(Part):
    """A phase's traffic on the fullest link of each kind, in one MoE layer of the largest step."""

    moe_layer: int  # with the fullest GPU
    tokens_per_rank: int
    links: tuple[Link, ...]  # the fullest of each kind
    busiest: Link  # the slowest


def expected_traffic(
    spec: ResolvedSpec,
    layouts: Sequence[PhaseLayout],
    units: Sequence[Unit],
    maps: Mapping[Phase, ExpertMap],
    loads: Loads,
) -> dict[Phase, Traffic]:
    """Return the traffic of each phase with several ranks per unit and known links."""
    nodes = {node.name: node for node in nodes_of(spec.cluster)}
    traffic: dict[Phase, Traffic] = {}
    for layout in layouts:
        gpu = spec.gpu_of(layout.phase)
        alike = [node for node in nodes.values() if node.gpu == layout.gpu]
        domains = nvlink_domains(alike, gpu, spec.cluster.gpus_per_node)
        shares, layer = _gpu_shares(loads, maps[layout.phase], layout.ep_size, limiting_groups(spec.model))
        section = spec.phase(layout.phase)
        of_group = largest_step_tokens(layout.phase, section)
        tokens = -(-of_group // layout.attention_tp)
        result_bytes = of_group * spec.model.hidden_size * wide_bytes(layout.precision)
        links: list[Link] = []
        for unit in units:
            if unit.phase == layout.phase and layout.ep_size > 1:
                topology = topology_of(unit, nodes, domains, gpu)
                links += (
                    _links(unit.name, topology, shares, tokens, result_bytes, spec.model, layout) if topology else []
                )
        if links:
            fullest = _fullest(links)
            busiest = max(fullest, key=lambda link: round(link.microseconds, 3))  # of equals the smallest kind
            traffic[layout.phase] = Traffic(moe_layer=layer, tokens_per_rank=tokens, links=fullest, busiest=busiest)
    return traffic


def _gpu_shares(loads: Loads, expert_map: ExpertMap, num_gpus: int, num_groups: int) -> tuple["Floats", int]:
    """Return each GPU's share of the tokens by expert group, `[groups, GPUs]`, and the index of the layer.

    The layer is the one with the fullest GPU.
    """
    import numpy as np  # `validate` must not wait for it

    worst = max(range(len(loads)), key=lambda layer: expert_map.max_over_mean[layer])
    slots, layer_loads = np.array(expert_map.physical_to_logical[worst]), np.array(loads[worst], dtype=np.float64)
    parts = (layer_loads / np.bincount(slots, minlength=len(layer_loads)))[slots]
    group_of_slot = slots // (len(layer_loads) // num_groups)
    gpu_of_slot = np.arange(len(slots)) // (len(slots) // num_gpus)
    shares = np.zeros((num_groups, num_gpus))
    np.add.at(shares, (group_of_slot, gpu_of_slot), parts)
    return shares / (layer_loads.sum() or 1), worst


def _links(
    unit: str,
    topology: Topology,
    shares: "Floats",
    tokens: int,
    result_bytes: int,
    model: Model,
    layout: PhaseLayout,
) -> list[Link]:
    """Return the fullest link of each kind, for one unit.

    Bytes are the arriving messages times the message size, plus the all-reduce where GPUs share attention.
    """
    if layout.dp_size == 1:  # each GPU has all tokens: none is dispatched, and experts' results are summed as well
        tokens, result_bytes = 0, 2 * result_bytes
    gate = gate_of(model, layout.precision)
    arriving = _Arriving(topology, shares, tokens, gate, normal=is_normal(layout.phase))
    kinds: list[_Links] = [("gpu", [f"rank {rank}" for rank in range(topology.num_ranks)], *arriving.over_nvlink())]
    kinds += _between_nodes(topology, arriving) if len(arriving.size) > 1 else ()
    sizes = message_bytes(model.hidden_size, layout.precision)
    shared = shared_bytes(topology, layout.attention_tp, result_bytes)
    by_nvlink = topology.group_gb_per_s(gpus_in_one_domain(topology, layout.attention_tp)) if shared["gpu"] else None
    return [
        _fullest_place(unit, *each, sizes, shared[each[0]], by_nvlink if each[0] == "gpu" else None) for each in kinds
    ]


def _fullest_place(
    unit: str,
    kind: str,
    places: Sequence[str],
    messages: Sequence[float],
    gb_per_s: Sequence[float],
    sizes: tuple[int, int],
    shared: int,
    shared_gb_per_s: float | None,
) -> Link:
    """Return the place of a kind whose link takes longest.

    `sizes` are the bytes of a dispatched and of a combined message. `shared` bytes go to other GPUs of an attention
    group at `shared_gb_per_s`, or else at the link's own bandwidth.
    """
    most = max(range(len(messages)), key=lambda index: messages[index] / gb_per_s[index])
    dispatched, combined = (round(messages[most] * each) for each in sizes)
    nanoseconds = (dispatched + combined) / gb_per_s[most] + shared / (shared_gb_per_s or gb_per_s[most])
    return Link(
        kind=kind,
        place=f"{unit} {places[most]}".rstrip(),
        dispatch_bytes=dispatched,
        combine_bytes=combined,
        gb_per_s=gb_per_s[most],
        attention_bytes=shared,
        attention_gb_per_s=shared_gb_per_s,
        microseconds=nanoseconds / 1e3,
    )


def _between_nodes(topology: Topology, arriving: "_Arriving") -> Iterator[_Links]:
    """Yield the links of NICs, of nodes and, if there are several, of leaf switches."""
    node_gb_per_s = topology.nic_gb_per_s * topology.ranks_per_node
    rails = sorted({(topology.node(rank), topology.rail(rank)) for rank in range(topology.num_ranks)})
    per_nic = [arriving.over_nic(node, rail) for node, rail in rails]
    nic_gb_per_s = topology.nic_gb_per_s * min(topology.gpus_per_nic, topology.ranks_per_node)
    yield "nic", [f"{topology.nodes[node]} rail {rail}" for node, rail in rails], per_nic, [nic_gb_per_s] * len(rails)
    per_node = [0.0 for _ in topology.nodes]
    for (node, _), messages in zip(rails, per_nic, strict=True):
        per_node[node] += messages
    yield "node", topology.nodes, per_node, [node_gb_per_s] * len(per_node)
    leaves = sorted(set(topology.leaves) - {""})
    if len(leaves) > 1:
        up = [sum(leaf == each for each in topology.leaves) * node_gb_per_s for leaf in leaves]
        yield "leaf", leaves, [arriving.into_leaf(leaf) for leaf in leaves], up


class _Arriving:
    """The expected messages of one layer that arrive at a place, from all ranks of the unit."""

    def __init__(self, topology: Topology, shares: "Floats", tokens: int, gate: Gate, *, normal: bool) -> None:
        import numpy as np  # as above

        self.topology, self.tokens, self.normal = topology, tokens, normal
        self.domain_of = topology.domains
        self.size = Counter(self.domain_of)
        self.size_under = Counter(
            (domain, topology.leaves[topology.node(rank)]) for rank, domain in enumerate(self.domain_of)
        )
        # copies of a token: one per expert, or one per GPU that has any of its experts
        to_ranks = reach_probability(shares[None], gate)[0] if normal else gate.experts_per_token * shares.sum(axis=0)
        self.to_rank: list[float] = to_ranks.tolist()
        domains, place = np.unique(self.domain_of, return_inverse=True)
        of_domains = np.zeros((len(shares), len(domains)))
        np.add.at(of_domains.T, place, shares.T)
        self.to_domain: dict[str, float] = dict(
            zip(domains.tolist(), reach_probability(of_domains[None], gate)[0].tolist(), strict=True)
        )

    def over_nvlink(self) -> tuple[list[float], list[float]]:
        """Return the messages into each GPU, and the bandwidths in GB/s.

        A message that a NIC receives for another GPU of its domain is forwarded over NVLink.
        """
        topology, num_ranks = self.topology, self.topology.num_ranks
        others = [num_ranks - 1 if self.normal else self.size[domain] - 1 for domain in self.domain_of]
        arriving = [copies * self.tokens * n for copies, n in zip(self.to_rank, others, strict=True)]
        return arriving, [topology.nvlink_gb_per_s] * num_ranks

    def over_nic(self, node: int, rail: int) -> float:
        """Return the messages into one NIC of a node, from other domains."""
        topology, first = self.topology, node * self.topology.ranks_per_node
        ranks = [first + local for local in range(topology.ranks_per_node) if topology.rail(first + local) == rail]
        return sum(self._over_nic_to(rank) for rank in ranks)

    def into_leaf(self, leaf: str) -> float:
        """Return the messages into the nodes under a leaf switch, from nodes under other leaves."""
        topology = self.topology
        inside = [rank for rank in range(topology.num_ranks) if topology.leaves[topology.node(rank)] == leaf]
        outside = topology.num_ranks - len(inside)
        total = 0.0
        for rank in inside:
            domain = self.domain_of[rank]
            others = topology.num_ranks - self.size[domain]
            linked = self.size[domain] - self.size_under[domain, leaf]  # by NVLink, though under another leaf
            total += self._over_nic_to(rank) * (outside - linked) / others if others else 0.0
        return total

    def _over_nic_to(self, rank: int) -> float:
        """Return the messages into the NIC of `rank`: on its rail for its whole domain, or only for itself."""
        domain = self.domain_of[rank]
        senders = self.topology.num_ranks - self.size[domain]
        copies = self.to_domain[domain] / self.size[domain] if self.normal else self.to_rank[rank]
        return senders * self.tokens * copies


def _fullest(links: Sequence[Link]) -> tuple[Link, ...]:
    """Return the slowest link of each kind, over all units."""
    kinds = dict.fromkeys(link.kind for link in links)
    return tuple(
        max((link for link in links if link.kind == kind), key=lambda link: link.microseconds) for kind in kinds
    )
