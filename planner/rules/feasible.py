"""Rules by which a valid spec is infeasible: too little memory, too few slots or nodes, too short a warm-up.

The planner's passes compute layouts, placement and maps; these rules judge them. The first rule that finds something
ends the check, because later ones assume the earlier ones: counting nodes is pointless for units that fit into no GPU.
"""

from collections.abc import Iterator, Sequence

from planner.estimate.coverage import failure_domains
from planner.estimate.points import operating_point
from planner.estimate.throughput.point import OperatingPoint
from planner.expert_map import Domains, fewest_slots_per_gpu
from planner.facts.quantities import counted, gb
from planner.facts.terms import Coverage, Phase
from planner.layout.layout import PhaseLayout
from planner.layout.memory import MemoryPlan, memory_of, round_up_to_pages
from planner.layout.nodes import Node, count_unit_nodes, gpu_pools, nodes_for, short_gpu
from planner.layout.weights import weights_of
from planner.layout.working_memory import largest_step_field
from planner.problems.finding import Finding, Unknown
from planner.problems.fix import nearest
from planner.rules.rule import Candidate, Rule
from planner.rules.starts import find_late_starts
from planner.spec.phase import PhaseSpec
from planner.spec.request_lengths import describe_assumed_lengths
from planner.spec.resolved import ResolvedSpec


def memory_holds_a_request(c: Candidate) -> Iterator[Finding]:
    """Reject GPUs whose memory cannot hold the weights and one request of full length."""
    yield from (_report_misfit(plan, c.resolved) for plan in c.memory if plan.missing_bytes > 0)


def units_are_ready_in_time(c: Candidate) -> Iterator[Finding]:
    """Reject a `warm_up` that is shorter than the longest start of units in the schedule."""
    if (schedule := c.resolved.written.schedule) is not None:
        yield from find_late_starts(schedule, c.start_times)


def experts_survive_failures(c: Candidate) -> Iterator[Finding]:
    """Reject units with too few slots or failure domains for `coverage`.

    Racks are counted only once units are placed.
    """
    spec, coverage = c.resolved, c.resolved.written.coverage
    if coverage == "none":
        return
    try:
        places = c.places if coverage == "rack" else failure_domains(spec, c.layouts)
    except Unknown:
        places = failure_domains(spec, c.layouts)
    for layout in c.layouts:
        domains = places[layout.phase].for_coverage(coverage) or places[layout.phase].node
        fewest = fewest_slots_per_gpu(layout.num_logical_experts, domains)
        if fewest is None:
            yield _one_domain(coverage, layout)
        elif fewest > layout.slots_per_gpu:
            yield _too_few_slots(c, layout, fewest, domains)


def operating_points_fit_kv(c: Candidate) -> Iterator[Finding]:
    """Reject operating points whose requests need more KV memory than a GPU has."""
    for plan in c.memory:
        point = operating_point(c.resolved, plan.phase, plan.kv_tokens)
        if point.requests * point.kv_tokens > plan.kv_tokens and not point.is_derived:
            yield _too_much_kv(plan, point, _describe_tried_values(c.resolved, plan.phase))


def nodes_suffice(c: Candidate) -> Iterator[Finding]:
    """Reject specs whose units need more nodes than are usable."""
    gpu = short_gpu(c.resolved, c.layouts)
    if gpu is not None:
        pools, nodes = gpu_pools(c.layouts), nodes_for(c.resolved)
        if len(pools) == 1:
            yield _report_shortage(c.resolved, nodes, c.layouts, None)
        else:
            yield _report_shortage(c.resolved, [node for node in nodes if node.gpu == gpu], pools[gpu], gpu)


def rack_coverage_is_decided(c: Candidate) -> Iterator[Finding]:
    """Report that `coverage: rack` cannot be checked before units are placed."""
    if c.resolved.written.coverage == "rack":
        try:
            _ = c.places
        except Unknown:
            rule = "S723 depends on the racks in which units are placed"
            yield Finding("coverage", "rack", rule, "validate places no units", "run tidemill plan")


def maps_cover(c: Candidate) -> Iterator[Finding]:
    """Reject expert maps in which one failure domain of a unit holds all replicas of an expert."""
    if c.resolved.written.coverage == "none":
        return
    open_phases = [phase for phase, each in c.maps.items() if not each.is_covered]
    if open_phases:
        rule = f"S722 must hold in all units of {' and '.join(open_phases)}, which share one expert map"
        reason = (
            "their nodes are spread over racks in different ways, and no map was found that survives the loss of a rack"
        )
        yield Finding("coverage", "rack", rule, reason, nearest("node"))


def _report_misfit(plan: MemoryPlan, spec: ResolvedSpec) -> Finding:
    """Return the finding that no request fits.

    It is about a limit that is too high or, without one, about the field that decides the largest part of memory.
    """
    field = _find_high_limit(plan.phase, spec) or _largest_part_field(plan)
    rule = (
        f"S707 must leave room for the KV of one request ({plan.max_request_tokens:,} tokens, "
        f"{gb(_longest_request_bytes(plan))}), but {gb(plan.missing_bytes)} are missing"
    )
    reason = (
        f"a GPU has {gb(plan.gpu_bytes)}: weights need {gb(plan.weight_bytes)} ({plan.num_slots} expert slots), "
        f"activations {gb(plan.activations)}, buffers {gb(plan.buffers)}, reserve {gb(plan.reserve)}"
    )
    if plan.fixed_kv:
        reason += f", windows and states of {plan.max_requests:,} requests {gb(plan.fixed_kv)}"
    fix = "use more GPUs a unit, or GPUs with more memory"
    return Finding(f"{plan.phase}.{field}", getattr(spec.phase(plan.phase), field), rule, reason, fix)


def _find_high_limit(phase: Phase, spec: ResolvedSpec) -> str | None:
    """Return `max_batch_tokens` or `max_requests` if lowering it to its default makes one request fit; else None.

    If lowering either would do, return `max_batch_tokens`.
    """
    section = spec.phase(phase)
    for field in ("max_batch_tokens", "max_requests"):
        default = PhaseSpec.model_fields[field].default
        is_above = getattr(section, field) > default
        if (
            is_above
            and (plan := memory_of(spec.with_numbers(phase, {field: default}), phase))
            and plan.missing_bytes <= 0
        ):
            return field
    return None


def _largest_part_field(plan: MemoryPlan) -> str:
    """Return the spec's field that decides the largest part of a GPU's memory."""
    parts = (
        (plan.weight_bytes, "ep_size"),
        (plan.activations + plan.buffers, largest_step_field(plan.phase)),
        (_longest_request_bytes(plan), "max_request_tokens"),
        (plan.fixed_kv, "max_requests"),
    )
    return max(parts)[1]


def _longest_request_bytes(plan: MemoryPlan) -> int:
    return round_up_to_pages(plan.max_request_tokens) * plan.kv_bytes_per_token


def _one_domain(coverage: Coverage, layout: PhaseLayout) -> Finding:
    rule = f"S721 must not be {coverage}, since {layout.phase} has units inside a single {coverage}"
    reason = f"losing that {coverage} loses every replica of their experts"
    return Finding("coverage", coverage, rule, reason, nearest("none"))


def _too_few_slots(c: Candidate, layout: PhaseLayout, fewest: int, domains: Domains) -> Finding:
    """Return a finding that says how many slots are missing, how many bytes they take, and the balance with them.

    The balance is left out if it is not known.
    """
    spec = c.resolved
    coverage, redundant = spec.written.coverage, fewest * layout.ep_size - layout.num_logical_experts
    more_bytes = (fewest - layout.slots_per_gpu) * weights_of(spec.model, layout.precision).slot
    rule = (
        f"S720 must be at least {redundant} with coverage: {coverage} "
        f"({fewest} slots per GPU, so that each of {layout.num_logical_experts} experts is in two {coverage}s)"
    )
    reason = f"{fewest} slots per GPU instead of {layout.slots_per_gpu} take {gb(more_bytes)} more of each GPU"
    now, then = c.mean_balance(layout, layout.slots_per_gpu, ()), c.mean_balance(layout, fewest, domains)
    if now is not None and then is not None:
        is_alike = f"{then:.3f}" == f"{now:.3f}"
        reason += ", and max/mean load "
        reason += f"stays {now:.3f}" if is_alike else f"becomes {then:.3f} instead of {now:.3f}"
    path = f"{layout.phase}.redundant_experts"
    return Finding(path, spec.phase(layout.phase).redundant_experts, rule, reason, nearest(redundant))


def _describe_tried_values(spec: ResolvedSpec, phase: Phase) -> str:
    """Return a clause that names the fields for which `auto` tried all values without success; empty without any."""
    paths = (f"{phase}.{field}" for field in ("ep_size", "redundant_experts"))
    autos = [path for path in paths if path in spec.document.autos]
    return f", and no {' and '.join(autos)} that auto tried holds them" if autos else ""


def _too_much_kv(memory: MemoryPlan, point: OperatingPoint, tried: str) -> Finding:
    fitting = memory.kv_tokens // round(point.kv_tokens)
    rule = f"S711 must fit into the memory for KV, which holds {memory.kv_tokens:,} tokens"
    reason = (
        f"{point.requests:,} requests of {point.kv_tokens:,} tokens need {point.requests * point.kv_tokens:,}{tried}"
    )
    fix = nearest(fitting) if fitting else "write fewer kv_tokens"
    return Finding(f"operating_point.{memory.phase}.requests", point.requests, rule, reason, fix)


def _report_shortage(
    spec: ResolvedSpec, nodes: Sequence[Node], layouts: Sequence[PhaseLayout], gpu: str | None
) -> Finding:
    """Return the finding that `layouts` need more than `nodes`; `gpu` is None if all phases share a GPU type."""
    needed = count_unit_nodes(layouts)
    of_units = " + ".join(f"{layout.phase} {layout.num_units} x {layout.nodes_per_unit}" for layout in layouts)
    parts = f"units x nodes of a unit: {of_units}"
    usable = sum(not node.unusable for node in nodes)
    reason = "units do not share nodes"
    num_ranks = sum(layout.num_units * layout.nodes_per_unit * layout.ranks_per_node for layout in layouts)
    if num_ranks <= usable * spec.cluster.gpus_per_node:
        reason = "units cannot share a node yet"
    reason += _explain_unit_sizes(spec, layouts) + _explain_unit_counts(spec)
    if isinstance(spec.cluster.nodes, int):
        num_spares = len(spec.cluster.spares)
        least, kept = needed + num_spares, f", + spares {num_spares}" if num_spares else ""
        rule = f"S701 must be at least {least} ({parts}{kept})"
        return Finding("cluster.nodes", len(nodes), rule, reason, f"nearest: {least}")
    unusable = [node for node in nodes if node.unusable]
    more = ", ..." if len(unusable) > 3 else ""
    whys = ", ".join(f"{node.name}: {node.unusable}" for node in unusable[:3])
    there = f"only {usable} of {len(nodes)} are usable ({whys}{more})" if unusable else f"there are only {usable}"
    of_gpu = f" of {gpu}" if gpu else ""
    rule = f"S701 must have at least {counted(needed, 'usable node')}{of_gpu} ({parts}), but {there}"
    return Finding("cluster.nodes", None, rule, reason, f"add {counted(needed - usable, 'node')}")


def _explain_unit_sizes(spec: ResolvedSpec, layouts: Sequence[PhaseLayout]) -> str:
    """Return a clause on the unit sizes that `auto` chose; empty if it chose none."""
    chosen = [
        f"EP{each.ep_size} for {each.phase}" for each in layouts if f"{each.phase}.ep_size" in spec.document.autos
    ]
    return f", and auto took {' and '.join(chosen)} to hold what is asked for" if chosen else ""


def _explain_unit_counts(spec: ResolvedSpec) -> str:
    """Return a clause on what sets the number of units if windows follow the traffic; empty if windows do not."""
    if not spec.has_windows_of_traffic:
        return ""
    are_counted = any(f"{phase}.units" in spec.document.autos for phase in spec.phases)
    assuming = describe_assumed_lengths(spec.written) if are_counted else ""
    counted_by = ". The number of units follows from traffic's busiest hour and schedule.min_units"
    return f"{counted_by}. There auto {assuming}" if assuming else counted_by


RULES = (
    Rule("S707", "laid out", memory_holds_a_request),
    Rule("S763", "laid out", units_are_ready_in_time),
    Rule("S720 S721", "laid out", experts_survive_failures),
    Rule("S711", "laid out", operating_points_fit_kv),
    Rule("S701", "placed", nodes_suffice),
    Rule("S723", "placed", rack_coverage_is_decided),
    Rule("S722", "mapped", maps_cover),
)
