"""Nodes of one NVLink domain reach each other without a NIC."""

from dataclasses import replace

import pytest

from planner.facts.catalog import GPUS
from planner.layout.nodes import Node, nvlink_domains

OWN = replace(GPUS["h800"], nvlink_domain=16, nvlink_leaves_node=True)


def domain_sizes(gpu, gpus_per_node, racks):
    """The lengths of the runs of nodes that one NVLink joins; `racks` has the rack of each node, in a row."""
    nodes = [Node(index, f"n{index}", rack, "", None) for index, rack in enumerate(racks)]
    domains = list(nvlink_domains(nodes, gpu, gpus_per_node).values())
    return [domains.count(each) for each in dict.fromkeys(domains)]


@pytest.mark.parametrize(
    ("gpu", "gpus_per_node", "racks", "sizes"),
    [
        pytest.param(GPUS["h800"], 8, [""] * 2, [1, 1], id="a board of eight"),
        pytest.param(GPUS["h800"], 4, [""] * 2, [1, 1], id="half a board does not reach the other half"),
        pytest.param(GPUS["gb200"], 4, ["a"] * 18 + ["b"] * 2, [18, 2], id="a rack of 72 GPUs"),
        pytest.param(GPUS["gb200"], 4, ["a"] * 36, [18, 18], id="two domains in a rack"),
        pytest.param(OWN, 8, ["a"] * 5 + ["b"] * 2, [2, 2, 1, 2], id="a domain ends with its rack"),
        pytest.param(GPUS["gb200"], 4, ["a", "a", "", ""], [2, 1, 1], id="nodes without a rack are alone"),
    ],
)
def test_consecutive_nodes_of_a_rack_fill_domains(gpu, gpus_per_node, racks, sizes):
    """A domain is as large as the GPU's NVLink reaches, and no larger than its rack."""
    assert domain_sizes(gpu, gpus_per_node, racks) == sizes
