"""Any spec plans, or is refused with a reason: random specs over the whole schema, and what must hold of a plan."""

import json
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog import GPUS, MODELS
from planner.check import check_spec
from planner.compiler import compile_plan
from planner.errors import InfeasibleError, SpecError

SMALL = {"config": "config.json"}  # 32 experts in 4 MoE layers
PLACES = ("rack", "leaf", "power")


@st.composite
def phases(draw, experts, per_node):
    """One phase, most often with experts that divide and whole nodes; otherwise anything in range."""
    sizes = [size for size in range(1, 2 * experts + 1) if size <= per_node or size % per_node == 0]
    size = draw(st.sampled_from([*sizes[:6] * 12, *sizes, draw(st.integers(1, 4096))]))
    slots = draw(st.integers(0, 2))
    fitting = max(0, -experts % size + slots * size if size > 1 else 0)
    section = {
        "ep_size": draw(st.sampled_from([size, size, size, "auto"])),
        "redundant_experts": draw(st.sampled_from([*[fitting] * 12, "auto", 16_384])),
        "overlap": draw(st.sampled_from(["none", "dual_batch", "five_stage"])),
        "precision": draw(st.sampled_from(["fp8", "fp8", "bf16"])),
        "max_requests": draw(st.sampled_from([32, 32, 32, 1, 256, "auto", draw(st.integers(1, 65_536))])),
        "max_batch_tokens": draw(st.sampled_from([4096, 4096, 4096, 1, 16_384, draw(st.integers(1, 10_000_000))])),
    }
    if section["redundant_experts"] == fitting > 16_384:
        section["redundant_experts"] = 0
    return section


@st.composite
def nodes(draw):
    """A count with places of some size, or a list."""
    if draw(st.booleans()):
        sizes = {f"{place}_size": draw(st.integers(1, 64)) for place in ("rack", "leaf") if draw(st.booleans())}
        return {"nodes": draw(st.sampled_from([300, 300, 300, 20_000, 8, 1]))} | sizes
    count = draw(st.sampled_from([40, 40, draw(st.integers(1, 40))]))
    listed = []
    for index in range(count):
        node = {"name": f"n{index}"} | {place: f"{place}{index // draw(st.integers(1, 8))}" for place in PLACES}
        extra = {"cordoned": st.booleans(), "gpus": st.integers(0, 64), "taints": st.just(["a=b:NoExecute"])}
        node |= draw(st.sampled_from([{}, {}, {}, {}])) or draw(st.fixed_dictionaries({}, optional=extra))
        listed.append(node)
    return {"nodes": listed}


@st.composite
def specs(draw):
    """A whole spec."""
    name = draw(st.sampled_from([*[None] * 10, *MODELS]))
    experts = MODELS[name].num_routed_experts if name else 32
    per_node = draw(st.sampled_from([1, 4, 8, 8, 64]))
    own = {"name": "own", "memory": "200GiB", "nvlink": "400GB/s", "nic": "400Gbps", "gpus_per_nic": 2}
    gpu = draw(st.sampled_from([*GPUS, *[own] * 4]))
    tokens = draw(st.sampled_from([2, 2048]))
    names = draw(st.sampled_from([("mixed",), ("prefill", "decode"), ("prefill", "decode")]))
    sections = {phase: draw(phases(experts, per_node)) | {"max_request_tokens": tokens} for phase in names}
    if draw(st.booleans()):
        most = draw(st.sampled_from([1, 1, 3, 3, 100]))
        times = draw(st.lists(st.sampled_from(["00:00", "05:59", "12:30"]), min_size=1, max_size=3, unique=True))
        counts = st.fixed_dictionaries({f"{phase}_units": st.integers(1, most) for phase in names})
        sections["schedule"] = {"windows": [{"at": at} | draw(counts) for at in times]}
    else:
        for phase in names:
            sections[phase]["units"] = draw(st.sampled_from([1] * 8 + [2, 1000]))
    cluster = {"gpu": gpu, "gpus_per_node": per_node} | draw(nodes())
    load = {"alpha": draw(st.floats(0, 4)), "seed": draw(st.integers(0, 2**53))}
    return {"version": 1, "name": "any", "model": name or SMALL, "cluster": cluster, "expert_load": load} | sections


def test_any_spec_plans_or_is_refused_with_a_reason(spec_file):
    """Never a traceback: a sound plan, or problems with a reason and a way out; at least three in ten plan."""
    outcomes = Counter()

    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(spec=specs())
    def plan_or_refuse(spec):
        path = spec_file(json.dumps(spec, indent=1), "any.yaml")
        try:
            plan = compile_plan(check_spec(path))
        except (SpecError, InfeasibleError) as error:
            outcomes[type(error).__name__] += 1
            plan, problems = None, error.problems
        if plan is None:
            assert all(problem.line and problem.reason and problem.fix for problem in problems)
        else:
            outcomes["planned"] += 1
            assert_sound(plan)

    plan_or_refuse()
    share = outcomes["planned"] / sum(outcomes.values())
    print(f"{share:.0%} of {dict(outcomes)} plan")

    assert share >= 0.3


def assert_sound(plan):
    """Disjoint units on usable nodes at every hour, a slot for every expert, memory that adds up, JSON that is JSON."""
    on_nodes = [node for unit in plan.units for node in unit.nodes]
    assert len(set(on_nodes)) == len(on_nodes)
    assert not set(on_nodes) & plan.placement.unusable.keys()
    for layout in plan.layouts:
        assert layout.slots_per_gpu * layout.ep_size == layout.num_physical_experts
        assert layout.ranks_per_node * layout.nodes_per_unit == layout.ep_size
        for slots in plan.expert_maps[layout.phase].physical_to_logical:
            assert set(slots) == set(range(layout.num_logical_experts))
    for memory in plan.memory:
        assert 0 < memory.kv_tokens * memory.kv_bytes_per_token <= memory.free
    for step in plan.schedule.steps if plan.schedule else ():
        active = [unit for unit in plan.units if unit.name in step.units]
        assert sum(len(unit.nodes) for unit in active) == step.num_nodes <= plan.schedule.peak_nodes
    assert all(objective.excess >= 0 for objective in plan.placement.objectives)
    json.dumps(plan.as_json(), allow_nan=False)
