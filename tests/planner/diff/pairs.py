"""Pairs of specs: twenty kinds of change, each in a small cluster and in that of the published system.

`python -m tests.planner.diff.pairs` compares all forty with the slow reference; tests draw a few of the small ones.
"""

import sys
import time
from collections import Counter
from functools import cache

import yaml

from planner.compiler import compile_plan
from planner.diff.diff import compare_plans
from planner.diff.markdown import diff_markdown
from planner.diff.rollout import SEVERITY
from planner.diff.text import MAX_LINES, diff_text
from planner.manifests.render import render_files
from planner.rules.check import change_spec, check_spec
from tests.planner.test_shipped_specs import SPECS

__all__ = ["KINDS", "SIZES", "base", "changed", "check_pair", "template_fates"]

SMALL = {
    "cluster": {
        "gpu": "h800",
        "gpus_per_node": 8,
        "nodes": [{"name": f"gpu-{node:02}", "rack": f"rack-{node // 4}"} for node in range(40)],
    },
    "decode.ep_size": 72,
    "schedule.windows": [
        {"at": "08:00", "prefill_units": 4, "decode_units": 2},
        {"at": "00:00", "prefill_units": 2, "decode_units": 1},
    ],
    "traffic.input_tokens": 60e9,
    "traffic.output_tokens": 8e9,
    "kubernetes.controller": {},
}
SIZES = {40: SMALL, 278: {}}


def _with_units(prefill, decode):
    """Turn other numbers of units on in the hours in which most are; `prefill` and `decode` are functions of those."""

    def windows(spec):
        found = [window.model_dump() for window in spec.written.schedule.windows]
        most = max(each["prefill_units"] for each in found)
        for each in found:
            if each["prefill_units"] == most:
                each |= {"prefill_units": prefill(most), "decode_units": decode(each["decode_units"])}
        return {"schedule.windows": found}

    return windows


KINDS = {
    "image": {"kubernetes.image": "registry.example.com/runtime:2"},
    "gateway image": {"kubernetes.gateway.image": "registry.example.com/gateway:2"},
    "environment": {"kubernetes.env": {"NCCL_DEBUG": "INFO"}},
    "priority": {"kubernetes.priority_class": "high"},
    "time to drain": {"kubernetes.drain": "20min"},
    "namespace": {"kubernetes.namespace": "elsewhere"},
    "price": {"cost.usd_per_gpu_hour": 3},
    "promise": {"slo.tpot_ms": 50},
    "more traffic": {"traffic.output_tokens": 200e9},
    "expert loads": {"expert_load.seed": 3},
    "fewer prefill units": _with_units(lambda units: units - 1, lambda units: units),
    "fewer decode units": _with_units(lambda units: units, lambda units: units - 1),
    "decode for prefill": _with_units(lambda units: units - max(2, units // 5), lambda units: units + 1),
    "limits": {"decode.max_requests": 64, "operating_point.decode.requests": 32},
    "overlap": {"decode.overlap": "none"},
    "another EP size": {"prefill.ep_size": 16},
    "RDMA": {"kubernetes.rdma": {"resource": "rdma/other", "count": 1}},
    "port": {"gateway.port": 8001},
    "checkpoint": {"model.checkpoint": "/models/other"},
    "model name": {"model.name": "another"},
}


@cache
def base(size):
    """The spec and the plan of the cluster with so many nodes."""
    spec = change_spec(check_spec(SPECS / "deepseek-h800.yaml"), SIZES[size])
    return spec, compile_plan(spec)


@cache
def changed(size, kind):
    """The plan near the base one in which something of this kind was changed."""
    spec, before = base(size)
    change = KINDS[kind]
    return compile_plan(change_spec(spec, change(spec) if callable(change) else change), before)


def template_fates(before, after):
    """Slow reference: what becomes of every workload's pods, from the objects themselves."""
    old, new = ({each["metadata"]["name"]: each for each in _workloads(plan)} for plan in (before, after))
    fates = dict.fromkeys(old.keys() - new.keys(), "removed") | dict.fromkeys(new.keys() - old.keys(), "new")
    for name in old.keys() & new.keys():
        same = all(_pods(old[name])[part] == _pods(new[name])[part] for part in ("where", "template"))
        fates[name] = "kept" if same else "restarted"
    return fates


def _workloads(plan):
    objects = [each for text in render_files(plan).values() for each in yaml.load_all(text, Loader=yaml.CSafeLoader)]
    return [each for each in objects if {"template", "leaderWorkerTemplate"} & (each.get("spec") or {}).keys()]


def _pods(workload):
    template = workload["spec"].get("template") or workload["spec"]["leaderWorkerTemplate"]
    return {"where": (workload["kind"], workload["metadata"]["namespace"]), "template": template}


def moved_bytes(before, after):
    """Slow reference: the bytes of experts that a GPU did not hold before, unit by unit from what ranks are told."""
    total, seen = 0, {}
    for unit in {each.name: each for each in after.units if each.name in before.nodes_by_unit}.values():
        maps = [plan.unit_document(unit)["expert_map"] for plan in (before, after)]
        key = unit.phase, *(each["sha256"] for each in maps)
        if key not in seen:
            seen[key] = _moved_slots(unit.phase, *(each["physical_to_logical"] for each in maps), before, after)
        own, routed = after.phases[unit.phase], after.memory[unit.phase].weights.routed
        total += seen[key] * (routed // own.slots_per_gpu // len(maps[1]["physical_to_logical"]))
    return total


def _moved_slots(phase, old, new, before, after):
    """Count slot by slot; a map of other sizes has nothing of the one before."""
    own, were = after.phases[phase], before.phases[phase]
    is_same = len(old) == len(new) and (were.ep_size, were.slots_per_gpu) == (own.ep_size, own.slots_per_gpu)
    moved = 0
    for layer, row in enumerate(new):
        for gpu in range(own.ep_size):
            slots = slice(gpu * own.slots_per_gpu, (gpu + 1) * own.slots_per_gpu)
            held = list(old[layer][slots]) if is_same else []
            for expert in row[slots]:
                if expert in held:
                    held.remove(expert)
                else:
                    moved += 1
    return moved


def check_pair(before, after):
    """Raise AssertionError where the change is not what the plans themselves say."""
    there, back = compare_plans(before, after), compare_plans(after, before)
    fates = {each.name: "restarted" if each.change == "moved" else each.change for each in there.units}
    assert fates == template_fates(before, after)
    assert not [each.name for each in there.units if each.change == "moved" and _is_as_large(each.name, before, after)]
    assert there.experts.bytes == moved_bytes(before, after)
    assert there.ways["git"].minutes is not None
    assert SEVERITY.index(there.ways["pulumi"].verdict) <= SEVERITY.index(there.ways["git"].verdict)
    assert (there.verdict == "no_restart") == (not {"moved", "restarted", "removed"} & {*fates.values()})
    _check_mirror(there, back)
    for each in (there, back):
        text = diff_text(each)
        assert text.count("\n") <= MAX_LINES, text
        assert max(map(len, text.splitlines())) <= 80, text
        assert len(diff_markdown(each)) < 10_000


def _is_as_large(name, before, after):
    """Whether a unit has as many nodes as before. All of them are usable after each of these changes."""
    return len(before.nodes_by_unit[name]) == len(after.nodes_by_unit[name])


def _check_mirror(there, back):
    opposite = {"new": "removed", "removed": "new"}
    assert Counter((each.name, opposite.get(each.change, each.change)) for each in there.units) == Counter(
        (each.name, each.change) for each in back.units
    )
    assert (set(there.nodes.taken), set(there.nodes.freed)) == (set(back.nodes.freed), set(back.nodes.taken))
    assert (there.cost.before, there.cost.after) == (back.cost.after, back.cost.before)
    assert there.performance.keys() == back.performance.keys()
    assert all(each.before == back.performance[phase].after for phase, each in there.performance.items())
    assert [each.message for each in there.warnings.new] == [each.message for each in back.warnings.gone]
    assert (there.old, there.new) == (back.new, back.old)


if __name__ == "__main__":
    for size in SIZES:
        for kind in KINDS:
            began = time.perf_counter()
            plans = base(size)[1], changed(size, kind)
            check_pair(*plans)
            found = compare_plans(*plans)
            ways = ", ".join(f"{tool} {way.verdict}" for tool, way in found.ways.items())
            sys.stdout.write(f"{size:4} nodes, {kind:20} {ways:36} {time.perf_counter() - began:.1f} s\n")
