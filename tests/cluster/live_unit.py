"""A unit on three nodes that may change its expert map while it serves, brought up by Pulumi with its controller."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

import runtime.demo
from planner.diff.experts import count_expert_moves
from planner.facts.digest import digest_of
from planner.facts.names import Ports
from planner.plan.plan import Plan
from stacks.measured.epochs import Rows
from stacks.measured.moved import Totals
from tests.cluster.cluster import Cluster
from tests.cluster.cluster_day import NAME, day_deployed, deployment_of
from tests.cluster.deployed import Deployed
from tests.cluster.policies import inside_network
from tests.stacks.deployments import total

__all__ = [
    "NUM_RANKS",
    "UNIT",
    "bytes_of_diff",
    "live_map",
    "new_experts",
    "pods_of",
    "read_epoch_page",
    "read_ranks",
    "rows_of",
    "slots_of_diff",
    "totals_of",
    "unit_deployed",
]

UNIT, NUM_RANKS = f"{NAME}-decode-0", 3
BOTH_ON = {"at": "00:00", "prefill_units": 1, "decode_units": 1}
LOADS = Path(runtime.demo.__file__).with_name("expert_load.json")
SKEW = 6  # the map for such loads is a third above an even one under those that it was made from
READ = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())"

Samples = list[Any]
Held = set[tuple[int, int, int]]  # rank, layer, expert


def unit_deployed(
    executable: Path, folder: Path, cluster: Cluster, namespace: str, limits: dict[str, Any], precision: str = "fp32"
) -> Deployed:
    """A stack, not up yet, with one prefill rank, and a decode unit of a rank on each of three nodes."""
    decode = {"ep_size": NUM_RANKS, "redundant_experts": 4, "precision": precision}
    made = day_deployed(executable, folder, cluster, namespace, prefill={"precision": precision}, decode=decode)
    loads = folder / "loads.json"
    loads.write_text(json.dumps(_turn_over(json.loads(LOADS.read_text()))))
    more = {"schedule": {"windows": [BOTH_ON]}, "expert_load": {"file": str(loads), "live": limits}}
    made.change_spec(lambda spec: spec.update(more))
    return made


def live_map(deployed: Deployed) -> dict[str, Any]:
    """Return what the controller's status says of the unit's map; empty before it has read the map."""
    maps = deployment_of(deployed).get("status", {}).get("expertMaps") or []
    return next((each for each in maps if each["unit"] == UNIT), {})


def read_epoch_page(deployed: Deployed) -> dict[str, Any]:
    """Return what the unit's first rank shows of its epoch."""
    page: dict[str, Any] = json.loads(_read(deployed, pods_of(deployed)[0], "/epoch"))
    return page


def read_ranks(deployed: Deployed) -> list[Samples]:
    """Return the samples of each rank's metrics."""
    pages = [_read(deployed, pod, "/metrics") for pod in pods_of(deployed)]
    return [[sample for family in text_string_to_metric_families(page) for sample in family.samples] for page in pages]


def totals_of(ranks: list[Samples]) -> Totals:
    """Return what the ranks have counted of their switches."""
    names = ("bytes", "seconds", "stall_seconds")
    return Totals([tuple(total(each, f"tidemill_expert_moves_{name}_total") for name in names) for each in ranks])


def rows_of(ranks: list[Samples], experts: Held) -> float:
    """Return how many rows ranks have computed of those experts."""
    rows = [each for rank in ranks for each in rank if each.name == "tidemill_expert_rows_total"]
    return sum(
        each.value
        for each in rows
        if (int(each.labels["rank"]), int(each.labels["moe_layer"]), int(each.labels["expert"])) in experts
    )


def new_experts(before: Rows, after: Rows) -> Held:
    """Return the experts that ranks hold in `after` and not in `before`."""
    return _held(after) - _held(before)


def slots_of_diff(plan: Plan, before: Rows, after: Rows) -> int:
    """Return how many slots of the unit differ, by the planner's diff of two plans with these maps."""
    old, new = (_with_map(plan, rows) for rows in (before, after))
    return count_expert_moves(old, new).phases["decode"].slots_changed


def bytes_of_diff(plan: Plan, before: Rows, after: Rows) -> int:
    """Return the bytes of these slots."""
    assert plan.live_maps is not None
    return slots_of_diff(plan, before, after) * plan.live_maps["decode"].expert_bytes


def pods_of(deployed: Deployed) -> list[Any]:
    """Return the unit's pods in the order of their ranks, which is that of the planned nodes."""
    return sorted(deployed.pods(UNIT), key=lambda pod: pod.spec.node_name)


def _turn_over(loads: list[list[int]]) -> list[list[int]]:
    """Return loads in which the rarest expert is the hottest, so that a plan for them suits no traffic."""
    return [[1 + round(1e6 * (min(row) / each) ** SKEW) for each in row] for row in loads]


def _held(rows: Rows) -> Held:
    size = len(rows[0]) // NUM_RANKS
    return {(slot // size, layer, expert) for layer, row in enumerate(rows) for slot, expert in enumerate(row)}


def _with_map(plan: Plan, rows: Rows) -> Plan:
    digest, planned = digest_of(rows), plan.expert_maps[plan.map_digests["decode"]]
    units = tuple(replace(each, expert_map=digest) if each.name == UNIT else each for each in plan.units)
    maps = plan.expert_maps | {digest: planned.model_copy(update={"physical_to_logical": rows})}
    return plan.with_sections(expert_maps=maps, units=units)


def _read(deployed: Deployed, pod: Any, path: str) -> str:
    """Read from within the pod, since policies let this host read nothing."""
    url = f"http://{pod.status.pod_ip}:{Ports.METRICS}{path}"
    read = [*inside_network(deployed.cluster, pod), "python3", "-c", READ, url]
    return subprocess.run(read, capture_output=True, text=True, check=True).stdout
