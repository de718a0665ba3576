"""Links between ranks, and what dispatch puts on them: a slow reference that follows every message."""

import json
import math
from collections import Counter
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.estimate.links import _Arriving
from planner.estimate.topology import all_reduce_bytes, shared_bytes, topology_of
from planner.facts.catalog import GPUS
from planner.facts.gate import Gate
from planner.layout.dispatch import message_bytes
from planner.layout.nodes import Node
from planner.layout.nvlink_domains import nvlink_domains
from planner.layout.unit import Unit
from planner.problems.fix import apply_change
from tests.planner.conftest import CONFIG
from tests.planner.layout.test_memory import PAIR


def topology(gpu="h800", num_nodes=2, per_node=8, leaf_size=1, rack_size=18, **figures):
    """Return the topology of a unit on nodes in a row."""
    gpu = replace(GPUS[gpu], **figures)
    nodes = {f"n{i}": Node(i, f"n{i}", f"r{i // rack_size}", f"l{i // leaf_size}", "", None) for i in range(num_nodes)}
    unit = Unit("any", "prefill", 0, tuple(nodes), num_nodes * per_node, "")
    return topology_of(unit, nodes, nvlink_domains(nodes.values(), gpu, per_node), gpu)


def bandwidth(links, rank, other):
    """The GB/s from one rank to another, with nobody else on the way; infinite to itself."""
    if rank == other:
        return float("inf")
    if links.domains[rank] == links.domains[other]:
        return links.peer_gb_per_s
    return min(links.nic_gb_per_s, links.nvlink_gb_per_s)


def test_ranks_of_a_node_talk_over_nvlink_and_others_over_their_nic():
    """GB/s one way; a NIC of 400 Gb/s is 50."""
    h800 = topology()

    assert (bandwidth(h800, 0, 7), bandwidth(h800, 0, 8), bandwidth(h800, 3, 3)) == (200, 50, float("inf"))
    assert (h800.rail(3), h800.rail(11)) == (3, 3)


def test_a_domain_may_be_a_rack():
    """72 GPUs of 18 nodes: NVLink across nodes of a rack, a NIC to the next rack."""
    gb200 = topology("gb200", num_nodes=20, per_node=4)

    assert (bandwidth(gb200, 0, 71), bandwidth(gb200, 0, 72)) == (900, 100)


def test_a_rack_of_two_domains_is_two_domains():
    """36 nodes of four GB200 in a rack: the first 72 GPUs and the second, with NICs between them."""
    gb200 = topology("gb200", num_nodes=36, per_node=4, rack_size=36)

    assert (bandwidth(gb200, 0, 71), bandwidth(gb200, 0, 72), bandwidth(gb200, 72, 143)) == (900, 100, 900)


def test_a_domain_ends_with_its_rack():
    """Racks of five nodes: domains of two nodes, two and one, and none goes on in the next rack."""
    own = topology(num_nodes=7, rack_size=5, nvlink_domain=16, nvlink_leaves_node=True)

    assert [bandwidth(own, 8 * node, 8 * node + 8) for node in range(6)] == [200, 50, 200, 50, 50, 200]


def test_a_node_without_a_rack_is_a_domain_of_its_own():
    """Two that nobody gave a rack to, among racks that are known, need not stand together."""
    places = [("n0", "r0"), ("n1", "r0"), ("n2", ""), ("n3", "")]
    nodes = [Node(index, name, rack, "", "", None) for index, (name, rack) in enumerate(places)]
    domains = nvlink_domains(nodes, GPUS["gb200"], 4)

    assert domains["n0"] == domains["n1"]
    assert len({domains[name] for name in ("n0", "n2", "n3")}) == 3


def test_a_node_may_be_several_domains():
    """Pairs of bridged GPUs: a NIC's bandwidth from one pair to the next."""
    pairs = topology(nvlink_domain=2)

    assert (bandwidth(pairs, 0, 1), bandwidth(pairs, 1, 2), bandwidth(pairs, 6, 7)) == (200, 50, 200)


def test_a_board_of_eight_does_not_reach_the_next_node():
    """H800s sold as nodes of four: a domain of eight ends with the node."""
    halves = topology(per_node=4)

    assert (bandwidth(halves, 0, 3), bandwidth(halves, 0, 4)) == (200, 50)


def test_one_gpu_of_a_mesh_has_one_link_to_another():
    """A seventh of what it has to all; between nodes the NIC, as behind switches."""
    mi300x = topology("mi300x")

    assert (bandwidth(mi300x, 0, 7), bandwidth(mi300x, 0, 8)) == (64, 50)
    assert sum(bandwidth(mi300x, 0, peer) for peer in range(1, 8)) == mi300x.nvlink_gb_per_s


def test_an_own_gpu_can_be_all_that_one_of_the_catalog_is(plan_of):
    """A mesh with NICs, by its figures: the same memory, and the same traffic on the same links."""
    own = {
        "name": "own",
        "memory": f"{GPUS['mi300x'].usable_bytes}B",
        "nvlink": "448GB/s",
        "peer": "64GB/s",
        "nvlink_domain": 8,
        "nic": "400Gbps",
    }
    spec = PAIR | {"decode": PAIR["decode"] | {"attention_tp": 2}}
    resource = {"kubernetes.gpu_resource": "amd.com/gpu"}
    specs = (apply_change(spec, {"cluster.gpu": gpu} | resource) for gpu in ("mi300x", own))
    known, described = (plan_of(json.dumps(each)) for each in specs)

    assert (described.memory, described.traffic) == (known.memory, known.traffic)
    assert any(link.attention_gb_per_s == 64 for each in known.traffic.values() for link in each.links)


def test_two_gpus_that_share_a_nic_share_its_bandwidth():
    """Four NICs on a node of eight: four rails, and half a NIC a GPU."""
    h20 = topology("h20")

    assert (h20.rail(0), h20.rail(1), h20.rail(7)) == (0, 0, 3)
    assert bandwidth(h20, 0, 8) == 25


def test_cpus_have_no_links():
    """Nothing is said where nothing is known."""
    assert topology("cpu") is None


def test_messages_are_as_large_as_published():
    """7,392 B in FP8 with scales to dispatch, 14,336 B in BF16 to combine."""
    assert message_bytes(7168, "fp8") == (7392, 14_336)


@st.composite
def units(draw):
    per_node = draw(st.sampled_from([1, 2, 4]))
    num_nodes = draw(st.integers(1, 5))
    sizes = {"leaf_size": draw(st.integers(1, 3)), "rack_size": draw(st.integers(1, 3))}
    domain = draw(st.sampled_from([1, 2, 4, 8]))
    figures = {"nvlink_domain": domain, "nvlink_leaves_node": draw(st.booleans())}
    shape = topology(draw(st.sampled_from(["gb200", "h20"])), num_nodes, per_node, **sizes, **figures)
    num_groups = draw(st.sampled_from([1, 2, 4]))
    weight = st.lists(st.integers(1, 50), min_size=shape.num_ranks, max_size=shape.num_ranks)
    weights = np.array(draw(st.lists(weight, min_size=num_groups, max_size=num_groups)), dtype=float)
    return shape, weights / weights.sum(), Gate(draw(st.integers(1, 8)), draw(st.integers(1, num_groups)))


@pytest.mark.slow
@given(case=units(), normal=st.booleans())
def test_messages_are_counted_at_their_receivers(case, normal):
    """The slow reference counts one token each, rank by rank and domain by domain, and the NICs that receive it."""
    shape, shares, gate = case
    arriving = _Arriving(shape, shares, 1, gate, normal=normal)
    expected = followed(shape, shares, gate, normal=normal)
    for node in range(len(shape.nodes)):
        for rail in {shape.rail(rank) for rank in range(shape.num_ranks)}:
            assert arriving.over_nic(node, rail) == pytest.approx(expected["nic", node, rail])
    for leaf in set(shape.leaves):
        assert arriving.into_leaf(leaf) == pytest.approx(expected["leaf", leaf])


def followed(shape, shares, gate, *, normal):
    """Count where expected messages arrive, by following each."""
    arrived = Counter()
    for source in range(shape.num_ranks):
        for target in range(shape.num_ranks):
            here, there = shape.node(source), shape.node(target)
            if shape.domains[source] == shape.domains[target]:
                continue
            if normal:  # one copy a domain; the reference lets every rank of the domain take its part of it
                domain = [r for r in range(shape.num_ranks) if shape.domains[r] == shape.domains[target]]
                messages = going_to(shares, domain, gate) / len(domain)
            else:
                messages = gate.experts_per_token * shares[:, target].sum()
            arrived["nic", there, shape.rail(target)] += messages
            if shape.leaves[here] != shape.leaves[there]:
                arrived["leaf", shape.leaves[there]] += messages
    return arrived


def going_to(shares, domain, gate):
    """The probability that a token goes to the ranks of `domain`, choice of groups by choice of groups."""
    picked = min(gate.groups_per_token, gate.experts_per_token)
    missed = []
    for groups in combinations(shares, picked):
        pairs = [max(gate.experts_per_token * len(shares) / picked * group.sum(), 1) for group in groups]
        there = [group[domain].sum() / group.sum() for group in groups]
        missed.append(math.prod(miss(1 - each, count) for each, count in zip(there, pairs, strict=True)))
    return 1 - sum(missed) / len(missed)


def miss(one, pairs):
    """Return the probability that none of `pairs` goes there, with `one` for each; a part of a pair counts as such."""
    return one ** int(pairs) * (1 - (pairs - int(pairs)) * (1 - one))


@given(values=st.lists(st.integers(0, 255), min_size=1, max_size=6), num_gpus=st.integers(1, 6))
def test_sharing_attention_sends_what_a_ring_sends(values, num_gpus):
    """The slow reference: arrays summed around a ring, part by part, every byte into a GPU counted."""
    arrays = [[(gpu + 1) * value for value in values * num_gpus] for gpu in range(num_gpus)]
    expected, received = [sum(column) for column in zip(*arrays, strict=True)], ring_all_reduce(arrays)

    assert arrays == [expected] * num_gpus
    assert received == [all_reduce_bytes(len(expected), num_gpus)] * num_gpus


def ring_all_reduce(arrays):
    """Sum `arrays` in place, one byte a value; the bytes that each GPU received."""
    num_gpus, received = len(arrays), [0] * len(arrays)
    part_size = len(arrays[0]) // num_gpus
    for step in range(2 * (num_gpus - 1)):
        messages = []
        for gpu, array in enumerate(arrays):
            start = (gpu - step) % num_gpus * part_size
            messages.append(((gpu + 1) % num_gpus, start, array[start : start + part_size]))
        for to, start, part in messages:
            received[to] += len(part)
            for offset, value in enumerate(part):
                summing = step < num_gpus - 1
                arrays[to][start + offset] = arrays[to][start + offset] + value if summing else value
    return received


def test_shared_attention_is_on_the_busiest_gpu(plan_of):
    """128 requests of 7,168 BF16 values, summed over 8 GPUs of a node, at all of NVLink; alone it would be nothing."""
    spec = PAIR | {"decode": PAIR["decode"] | {"attention_tp": 8}}
    traffic = plan_of(json.dumps(spec, indent=1)).as_json()["traffic"]
    sharing = {phase: [link["attention_bytes"] for link in each["links"]] for phase, each in traffic.items()}

    assert sharing == {"prefill": [0, 0, 0], "decode": [2 * 7 * 128 * 7168 * 2 // 8, 0, 0]}
    assert traffic["decode"]["links"][0]["attention_gb_per_s"] == 200


def test_a_group_over_several_nodes_sums_inside_each_and_then_between_them():
    """The slow reference: hierarchical all-reduce of four GPUs on each of two nodes, every byte into a GPU counted."""
    shape = topology(num_nodes=4, per_node=4, leaf_size=1)
    over_nvlink, over_nics = hierarchical_all_reduce(num_domains=2, per_domain=4, size=800)
    shared = shared_bytes(shape, 8, 800)

    assert (shared["gpu"], shared["nic"]) == (over_nvlink, over_nics)
    assert (shared["node"], shared["leaf"]) == (4 * over_nics, 4 * over_nics)
    assert shared_bytes(shape, 4, 800) == {"gpu": 1200, "nic": 0, "node": 0, "leaf": 0}


def hierarchical_all_reduce(num_domains, per_domain, size):
    """Bytes into one GPU over NVLink and over its NIC: a ring in its domain, and one with its peers of the others."""
    inside = ring_all_reduce([[1] * size for _ in range(per_domain)])
    between = ring_all_reduce([[1] * (size // per_domain) for _ in range(num_domains)])
    return inside[0], between[0]


def test_a_unit_that_is_one_attention_group_dispatches_nothing(plan_of):
    """TP16 over two nodes: each GPU has all tokens, and sums results of attention and of experts."""
    decode = {"ep_size": 16, "redundant_experts": 0, "attention_tp": 16, "max_requests": 16}
    spec = PAIR | {"cluster": PAIR["cluster"] | {"gpu": "h200"}, "decode": PAIR["decode"] | decode}
    links = plan_of(json.dumps(spec, indent=1)).as_json()["traffic"]["decode"]["links"]
    result = 2 * 16 * 7168 * 2  # of attention and of experts: 16 tokens of 7,168 values in BF16

    assert [(each["dispatch_bytes"], each["combine_bytes"]) for each in links] == [(0, 0)] * len(links)
    assert {each["kind"]: each["attention_bytes"] for each in links} == {
        "gpu": 2 * 7 * result // 8,
        "nic": result // 8,
        "node": result,
    }


def test_half_of_a_mesh_shares_by_half_of_its_links():
    """Four GPUs of eight reach each other by three links of 64 GB/s; behind switches by all they have."""
    assert [topology("mi300x").group_gb_per_s(gpus) for gpus in (2, 4, 8)] == [64, 192, 448]
    assert [topology("h800").group_gb_per_s(gpus) for gpus in (2, 4, 8)] == [200, 200, 200]


def test_the_plan_names_its_busiest_link(plan_of):
    """The published pair: NICs bind in both phases, and the bytes are those of its hottest GPU."""
    spec = PAIR | {"cluster": PAIR["cluster"] | {"leaf_size": 2}}
    traffic = plan_of(json.dumps(spec, indent=1)).as_json()["traffic"]

    assert {phase: each["busiest"]["kind"] for phase, each in traffic.items()} == {"prefill": "nic", "decode": "nic"}
    assert [link["kind"] for link in traffic["decode"]["links"]] == ["gpu", "nic", "node", "leaf"]
    assert traffic["decode"]["tokens_per_rank"] == 128


def test_a_unit_in_one_nvlink_domain_loads_no_other_link(plan_of):
    """Even where its nodes stand under several leaves."""
    cluster = {"gpu": "gb200", "gpus_per_node": 4, "nodes": 72, "rack_size": 18, "leaf_size": 2}
    traffic = plan_of(json.dumps(PAIR | {"cluster": cluster}, indent=1)).as_json()["traffic"]

    assert [link["kind"] for link in traffic["prefill"]["links"]] == ["gpu"]


def test_a_unit_in_two_domains_of_a_rack_loads_nics(plan_of):
    """A rack of 36 nodes is two domains of 72 GPUs: EP144 is in both."""
    cluster = {"gpu": "gb200", "gpus_per_node": 4, "nodes": 72, "rack_size": 36}
    traffic = plan_of(json.dumps(PAIR | {"cluster": cluster}, indent=1)).as_json()["traffic"]

    assert [link["kind"] for link in traffic["decode"]["links"]] == ["gpu", "nic", "node"]


def test_without_links_there_is_no_traffic(plan_of):
    """The section is absent on cpu."""
    assert "traffic" not in plan_of().as_json()


def test_a_gate_of_few_groups_puts_less_on_nics(spec_folder, plan_of):
    """Whole groups on two nodes: a token of one group crosses to one of them, one of both groups to both."""
    busiest = {}
    for picked in (1, 2):
        config = CONFIG | {"n_group": 2, "topk_group": picked}
        (spec_folder / f"picks_{picked}.json").write_text(json.dumps(config))
        phase = {"ep_size": 16, "precision": "bf16"}
        spec = {
            "version": 1,
            "name": "river",
            "model": {"config": f"picks_{picked}.json"},
            "cluster": {"gpu": "h800", "nodes": 4, "gpus_per_node": 8},
            "prefill": phase,
            "decode": phase,
        }
        busiest[picked] = plan_of(json.dumps(spec)).as_json()["traffic"]["prefill"]["busiest"]["dispatch_bytes"]

    assert busiest[1] < 0.8 * busiest[2]
