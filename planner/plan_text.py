"""A plan as text: what one reads in a terminal of 100 columns and pastes into a design review.

It shows what the plan holds and computes nothing of its own beyond means and sums.
"""

import textwrap
from collections.abc import Iterator, Sequence
from statistics import fmean

from planner.decide import DEFAULT
from planner.memory import MemoryPlan
from planner.parallelism import PhaseLayout
from planner.placement import Unit
from planner.plan import Plan
from planner.spec import Phase, PhaseSpec
from planner.units import gb

__all__ = ["plan_text"]

WIDTH = 100
MAX_REASON = 64  # characters on a line, beside the longest field and its value
MAX_NODES = 4  # of a unit; of more the first and last are named
MAX_UNITS = 12  # of a phase; more are counted


def plan_text(plan: Plan) -> str:
    """The whole plan, ending with a line end."""
    sections = (
        _head,
        _decisions,
        _phases,
        _memory,
        _units,
        _placement,
        _schedule,
        _expert_maps,
        _traffic,
        _failures,
        _runnable,
    )
    parts = [section(plan) for section in sections]
    return "\n\n".join(filter(None, parts)) + "\n"


def _head(plan: Plan) -> str:
    cluster = plan.spec.cluster
    num_nodes = cluster.nodes if isinstance(cluster.nodes, int) else len(cluster.nodes)
    used = sum(len(unit.nodes) for unit in plan.units)
    assumed = [f"  {figure} of {cluster.gpu_name} is {plan.gpu.sources[figure]}" for figure in plan.gpu.assumed]
    return "\n".join(
        (
            f"Plan {plan.name}",
            f"  digest    {plan.digest}",
            _model(plan),
            f"  cluster   {num_nodes} nodes of {cluster.gpus_per_node} {cluster.gpu_name}, {used} used",
            *_gpu(plan),
            *assumed,
        )
    )


def _model(plan: Plan) -> str:
    written, model = plan.spec.model, plan.model
    name = written if isinstance(written, str) else written.config
    experts = f"{model.num_routed_experts} experts, {model.num_experts_per_token} a token"
    return f"  model     {name}: {model.num_layers} layers, {model.num_moe_layers} of them with {experts}"


def _gpu(plan: Plan) -> Iterator[str]:
    """The figures that the plan counts with; what a GPU is sold as only stands beside."""
    gpu = plan.gpu
    if gpu.usable_bytes is None:
        return
    sold = f", sold as {gpu.nominal_gb} GB" if gpu.nominal_gb else ""
    yield f"  a GPU     {gb(gpu.usable_bytes)} ({gpu.usable_bytes / 2**30:.1f} GiB) to allocate{sold}"
    links = []
    if gpu.nvlink_gb_per_s:
        mesh = f", {gpu.peer_gb_per_s:g} to each" if gpu.peer_gb_per_s else ""
        domain = f" in a domain of {gpu.nvlink_domain}" if gpu.nvlink_domain else ""
        links.append(f"NVLink or alike {gpu.nvlink_gb_per_s:g} GB/s one way{domain}{mesh}")
    if gpu.nic_gbps:
        sharing = f" for {gpu.gpus_per_nic} GPUs" if (gpu.gpus_per_nic or 1) > 1 else ""
        links.append(f"NIC {gpu.nic_gbps:g} Gb/s{sharing}")
    if links:
        yield f"            {'; '.join(links)}"


def _decisions(plan: Plan) -> str:
    """What the spec left to the planner with reasons, and what it did not mention."""
    decided = [each for each in plan.decisions if each.why != DEFAULT]
    rows = [("decided", "value", "because it is")]
    for each in decided:
        first, *others = textwrap.wrap(each.why, MAX_REASON)
        rows += [(each.path, str(each.value), first), *(("", "", line) for line in others)]
    defaults = ", ".join(f"{each.path} {each.value}" for each in plan.decisions if each.why == DEFAULT)
    filled = textwrap.fill(
        f"by default: {defaults}", WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
    )
    return "\n\n".join([*([_table(rows)] if decided else []), *([filled] if defaults else [])])


def _phases(plan: Plan) -> str:
    head = ("phase", "units", "nodes/unit", "EP", "DP x TP", "experts", "slots/GPU", "overlap", "precision")
    limits_head = ("phase", "max requests/rank", "max request tokens", "max batch tokens")
    layouts = _table([head, *map(_phase_row, plan.layouts)])
    limits = _table(
        [limits_head, *(_limits_row(layout.phase, plan.spec.phase(layout.phase)) for layout in plan.layouts)]
    )
    return f"{layouts}\n\n{limits}"


def _phase_row(layout: PhaseLayout) -> tuple[str, ...]:
    redundant = layout.num_physical_experts - layout.num_logical_experts
    return (
        layout.phase,
        str(layout.num_units),
        str(layout.nodes_per_unit),
        str(layout.ep_size),
        f"{layout.dp_size} x {layout.attention_tp}",
        f"{layout.num_logical_experts} + {redundant} = {layout.num_physical_experts}",
        f"{layout.slots_per_gpu} + {layout.shared_per_gpu} shared",
        layout.overlap,
        layout.precision,
    )


def _limits_row(phase: Phase, spec: PhaseSpec) -> tuple[str, ...]:
    return phase, f"{spec.max_requests:,}", f"{spec.max_request_tokens:,}", f"{spec.max_batch_tokens:,}"


def _memory(plan: Plan) -> str:
    """Of one GPU, in GB of 1e9 bytes; what is left is KV."""
    if not plan.memory:
        return ""
    head = ("GB a GPU", "usable", "weights", "activations", "buffers", "reserve", "KV", "KV tokens", "full requests")
    rows = [head, *map(_memory_row, plan.memory)]
    weights_head = ("weights", "attention", "shared", "dense", "embedding", "gates", "routed slots")
    return f"{_table(rows)}\n\n{_table([weights_head, *map(_weights_row, plan.memory)])}"


def _memory_row(memory: MemoryPlan) -> tuple[str, ...]:
    parts = (memory.gpu_bytes, memory.weight_bytes, memory.activations, memory.buffers, memory.reserve, memory.free)
    return (memory.phase, *map(_gb, parts), f"{memory.kv_tokens:,}", f"{memory.full_requests:,}")


def _weights_row(memory: MemoryPlan) -> tuple[str, ...]:
    weights, slots = memory.weights, memory.num_slots
    parts = (weights.attention, weights.shared, weights.dense, weights.embedding, weights.gates)
    return (memory.phase, *map(_gb, parts), f"{slots} x {weights.slot / 1e9:.3f} = {_gb(slots * weights.slot)}")


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f}"


def _units(plan: Plan) -> str:
    rows = [("unit", "ranks", "nodes")]
    more = []
    for layout in plan.layouts:
        units = [unit for unit in plan.units if unit.phase == layout.phase]
        rows += [(unit.name, str(len(unit.ranks)), _node_list(unit)) for unit in units[:MAX_UNITS]]
        if len(units) > MAX_UNITS:
            more.append(f"  ... and {len(units) - MAX_UNITS} more {layout.phase} units")
    return "\n".join([_table(rows), *more])


def _node_list(unit: Unit) -> str:
    if len(unit.nodes) <= MAX_NODES:
        return ", ".join(unit.nodes)
    return f"{unit.nodes[0]} to {unit.nodes[-1]}, {len(unit.nodes)} nodes"


def _placement(plan: Plan) -> str:
    placement = plan.placement
    if not placement.objectives:
        return ""
    rows = [("placement", "value", "bound", "", "counts")]
    rows += [
        (each.name, str(each.value), str(each.bound), "proven" if each.is_proven else "", each.meaning)
        for each in placement.objectives
    ]
    lines = [_table(rows), f"  by the {placement.method} search: {placement.why}"]
    if placement.unusable:
        named = ", ".join(f"{node} ({why})" for node, why in list(placement.unusable.items())[:MAX_NODES])
        lines.append(f"  not used: {named}")
    if len(placement.unusable) > MAX_NODES:
        lines.append(f"  ... and {len(placement.unusable) - MAX_NODES} more nodes")
    return "\n".join(lines)


def _schedule(plan: Plan) -> str:
    schedule = plan.schedule
    if schedule is None:
        return ""
    phases = plan.spec.phases
    rows = [("from", *(f"{phase} units" for phase in phases), "nodes")]
    rows += [
        (step.at, *(str(step.num_units[phase]) for phase in phases), str(step.num_nodes)) for step in schedule.steps
    ]
    hours = f"{schedule.released_node_hours:,.1f} node hours a day are free for other work"
    mean = f"{schedule.mean_nodes:.2f} nodes on average, {schedule.peak_nodes} at the peak; {hours}"
    return f"{_table(rows)}\n  {mean} ({schedule.timezone})"


def _expert_maps(plan: Plan) -> str:
    rows = [("expert map", "layers", "max/mean load of GPUs: mean", "worst", "sha256")]
    for phase, each in plan.expert_maps.items():
        worst = max(each.max_over_mean)
        layer = each.max_over_mean.index(worst)
        mean = f"{fmean(each.max_over_mean):.3f}"
        rows.append((phase, str(len(each.max_over_mean)), mean, f"{worst:.3f} (MoE layer {layer})", each.sha256[7:19]))
    near = ["  Tokens go to a replica on their own GPU or node first (split: local_first)."]
    return "\n".join(
        [_table(rows), *(near if plan.spec.split == "local_first" else []), *_moves(plan), *_one_more_slot(plan)]
    )


def _moves(plan: Plan) -> Iterator[str]:
    """Beside the previous plan's maps."""
    for phase, each in plan.expert_maps.items():
        if each.moved_slots is not None:
            num_slots = sum(map(len, each.physical_to_logical))
            keep = ": keep the map" if each.moved_slots == 0 else ""
            yield f"  {phase}: {each.moved_slots:,} of {num_slots:,} slots differ from the previous plan's map{keep}"


def _one_more_slot(plan: Plan) -> Iterator[str]:
    """What it would give and cost, of phases whose slots keep the map where it is."""
    for phase, more in plan.one_more_slot.items():
        slot_bytes = plan.slot_bytes(phase)
        cost = "" if slot_bytes is None else f", for {gb(slot_bytes)} a GPU"
        now, then, reached = (fmean(each) for each in (plan.expert_maps[phase].bound, more.bound, more.max_over_mean))
        yield f"  {phase}: slots bind at {now:.3f}; one more a GPU gives {reached:.3f} (bound {then:.3f}){cost}"


def _traffic(plan: Plan) -> str:
    """Expected, of one MoE layer of the largest step."""
    if not plan.traffic:
        return ""
    shared = any(link.attention_bytes for each in plan.traffic for link in each.links)
    rows = [("traffic", "of one", "place", "MB in", "MB out", *(["MB shared"] if shared else []), "GB/s", "us")]
    for each in plan.traffic:
        for link in each.links:
            sizes = [link.dispatch_bytes, link.combine_bytes, *([link.attention_bytes] if shared else [])]
            columns = [f"{size / 1e6:,.1f}" for size in sizes]
            mark = " <- busiest" if link == each.busiest else ""
            rows.append(
                (
                    each.phase,
                    link.kind,
                    link.place,
                    *columns,
                    f"{link.gb_per_s:,.0f}",
                    f"{link.microseconds:,.0f}{mark}",
                )
            )
    sharing = "; shared each way by the GPUs of an attention group" if shared else ""
    note = f"Of the largest step, one MoE layer: in by dispatch, out by combine{sharing}; us at full bandwidth."
    return "\n".join([_table(rows), *_filled(note)])


def _failures(plan: Plan) -> str:
    """The worst loss of each kind, and what could be saved."""
    rows = [("failure", "of one", "stops at worst", "experts without a replica elsewhere", "for example")]
    for report in plan.failures:
        for loss in report.losses:
            stops = f"{loss.units} of {report.num_units} units"
            rows.append((report.phase, loss.domain, stops, str(loss.dark_experts), loss.place))
    lines = [_table(rows)]
    coverage = plan.spec.coverage
    if coverage != "none":
        lines.append(f"  No expert goes dark when one {coverage} dies (coverage: {coverage}).")
    lines.append("  Replicas elsewhere help only a runtime that goes on without a dead rank; ours does not yet.")
    return "\n".join(lines)


def _filled(note: str) -> list[str]:
    """A sentence below a table."""
    return textwrap.wrap(note, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def _runnable(plan: Plan) -> str:
    if not plan.refusals:
        return "The bundled runtime can run it."
    reasons = [
        textwrap.fill(problem.message, WIDTH, initial_indent="  - ", subsequent_indent="    ")
        for problem in plan.refusals
    ]
    return "\n".join(["The bundled runtime cannot run it:", *reasons])


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    """Columns two spaces apart, indented by two."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(f"  {line}".rstrip() for line in lines)
