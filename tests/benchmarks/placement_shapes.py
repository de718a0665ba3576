"""The published system of 278 nodes, and clusters of several shapes that it is to be placed on."""

from pathlib import Path

from planner.layout.nodes import nodes_of
from planner.placement.task import UnplacedUnit, make_task
from planner.rules.check import check_spec
from planner.spec.cluster import ClusterSpec
from planner.spec.schedule import active_minutes

PUBLISHED = Path(__file__).parents[2] / "stacks" / "specs" / "deepseek-h800.yaml"
UNITS = (("prefill", 29, 4), ("decode", 9, 18))  # phase, units, nodes of each
RACK_SIZES = (4, 4, 3, 5, 4, 2, 4, 6)  # of the uneven inventory, under each leaf
USABLE = 300  # of its nodes: every 17th is cordoned


def shapes():
    """Name -> what the spec says of the cluster; each has room for 278 nodes of units."""
    racks = {"rack_size": 4}
    return {
        "racks of 4": racks | {"nodes": 278},
        "leaves of 32, no node to spare": racks | {"nodes": 278, "leaf_size": 32},
        "leaves of 32, 10 to spare": racks | {"nodes": 288, "leaf_size": 32},
        "leaves of 32, 42 to spare": racks | {"nodes": 320, "leaf_size": 32},
        "leaves of 16": racks | {"nodes": 278, "leaf_size": 16},
        "uneven racks, cordoned nodes": {"nodes": uneven_nodes()},
    }


def uneven_nodes():
    """Racks of 2 to 6 nodes, eight under a leaf."""
    nodes, rack = [], 0
    while sum(not node["cordoned"] for node in nodes) < USABLE:
        for _ in range(RACK_SIZES[rack % 8]):
            place = {"rack": f"r{rack}", "leaf": f"l{rack // 8}"}
            nodes.append({"name": f"n{len(nodes)}", "cordoned": len(nodes) % 17 == 5} | place)
        rack += 1
    return nodes


def task_on(shape):
    """The published units and windows on a cluster of this shape."""
    schedule = check_spec(PUBLISHED).written.schedule
    wanted = [
        UnplacedUnit(f"{phase}-{index}", phase, index, num_nodes, active_minutes(schedule, phase, index))
        for phase, num_units, num_nodes in UNITS
        for index in range(num_units)
    ]
    cluster = ClusterSpec.model_validate({"gpu": "h800", "gpus_per_node": 8} | shape)
    return make_task(wanted, [node for node in nodes_of(cluster) if node.unusable is None], schedule, {})
