"""A plan as text: what one reads in a terminal of 80 columns and pastes into a design review.

It shows what the plan holds and computes nothing of its own beyond means and sums.
"""

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from planner.facts.catalog import Gpu
from planner.facts.counted import counted
from planner.facts.quantities import gb
from planner.facts.terms import Phase
from planner.layout.layout import PhaseLayout
from planner.layout.memory import MemoryPlan
from planner.plan.columns import WIDTH, filled, runs_of, table, wrapped
from planner.plan.cost_text import cost_text
from planner.plan.day_text import day_text
from planner.plan.estimated import Estimated
from planner.plan.idle_nodes import loss_text
from planner.plan.kv_cache_text import kv_cache_text
from planner.plan.map_text import expert_maps_text
from planner.plan.performance_text import performance_text
from planner.plan.relied_on import relied_on
from planner.plan.search_text import search_text
from planner.plan.uptime_text import uptime_text
from planner.problems.finding import Finding
from planner.problems.printable import printable
from planner.search.decision import DEFAULT
from planner.spec.phase import PhaseSpec
from planner.spec.request_lengths import assuming_lengths

__all__ = ["plan_text"]

MAX_NUMBERS = 4  # of a field; more are counted
ASSUMED_SECTIONS = ("operating_point.", "schedule.start.", "uptime.")  # whose defaults are guesses about a cluster

METHODS = {
    "greedy": "Found by the greedy search",
    "exact": "Found by the exact search",
    "previous": "Kept from the previous plan",
}


def plan_text(plan: Estimated) -> str:
    """The whole plan, ending with a line end."""
    sections = (
        _head,
        _warnings,
        _decisions,
        _relied_on,
        search_text,
        _phases,
        _memory,
        _units,
        _placement,
        day_text,
        cost_text,
        expert_maps_text,
        _traffic,
        performance_text,
        kv_cache_text,
        _failures,
        uptime_text,
        _overlay,
        _runnable,
    )
    parts = [section(plan) for section in sections]
    text = "\n\n".join(filter(None, parts))
    return "".join(f"{printable(line)}\n" for line in text.split("\n"))  # a spec's names and paths are a user's


def _head(plan: Estimated) -> str:
    cluster = plan.spec.cluster
    num_nodes = cluster.nodes if isinstance(cluster.nodes, int) else len(cluster.nodes)
    nodes = counted(num_nodes, "node")
    used = sum(len(unit.nodes) for unit in plan.units)
    return "\n".join(
        (
            f"Plan {plan.name}",
            f"  {plan.plan.digest}",
            _model(plan),
            f"  cluster   {nodes} of {cluster.gpus_per_node} {cluster.gpu_name}, {used} used",
            *_load_and_loss(plan),
            *_gpu(plan.gpu, "each GPU", cluster.gpus_per_node),
            *chain.from_iterable(_phase_gpu(plan, phase) for phase in plan.phase_gpus),
            *(line for name, source in plan.assumed.items() for line in filled(f"{name} is {source}")),
        )
    )


def _load_and_loss(plan: Estimated) -> Iterator[str]:
    """What auto took for a load that nobody wrote, and what the loss of a node does while others are idle."""
    notes = {"lengths": f"auto {assuming_lengths(plan.spec)}" if plan.search else "", "idle": loss_text(plan)}
    for name, note in notes.items():
        if note.removeprefix("auto "):
            yield textwrap.fill(note, WIDTH, initial_indent=f"  {name:9} ", subsequent_indent=" " * 12)


def _model(plan: Estimated) -> str:
    written, model = plan.spec.model, plan.model
    name = written if isinstance(written, str) else written.catalog or written.config
    experts = f"{model.num_routed_experts} experts, {model.num_experts_per_token} a token"
    layers = f"{model.num_layers} layers, {model.num_moe_layers} of them with {experts}"
    return f"  model     {name}\n            {layers}"


def _unit_of_makers(gpu: Gpu) -> str:
    """Say what the maker's GB are, where more bytes of 1e9 can be allocated than are sold."""
    return " (of 2^30 bytes)" if gpu.usable_bytes and gpu.usable_bytes > (gpu.nominal_gb or 0) * 10**9 else ""


def _phase_gpu(plan: Estimated, phase: Phase) -> Iterator[str]:
    """What a phase runs on that has other GPUs than the cluster's."""
    yield f"  {phase:9} on {plan.spec.gpu_name(phase)}"
    yield from _gpu(plan.phase_gpus[phase], "its GPU", plan.spec.cluster.gpus_per_node)


def _gpu(gpu: Gpu, called: str, gpus_per_node: int) -> Iterator[str]:
    """The figures that the plan counts with; what a GPU is sold as only stands beside."""
    if gpu.usable_bytes is None:
        return
    sold = f", sold as {gpu.nominal_gb} GB{_unit_of_makers(gpu)}" if gpu.nominal_gb else ""
    yield f"  {called:9} {gb(gpu.usable_bytes)} ({gpu.usable_bytes / 2**30:.1f} GiB) usable{sold}"
    if gpu.nvlink_gb_per_s:
        mesh = f", {gpu.peer_gb_per_s:g} to any one of them" if gpu.peer_gb_per_s else ""
        others = f"the other {gpu.domain_size(gpus_per_node) - 1}" if gpu.nvlink_domain else "the others of its node"
        yield f"            {gpu.nvlink_gb_per_s:g} GB/s each way to {others}{mesh}"
    if gpu.nic_gbps:
        sharing = f", shared by {gpu.gpus_per_nic} GPUs" if (gpu.gpus_per_nic or 1) > 1 else ""
        yield f"            one {gpu.nic_gbps:g} Gb/s NIC{sharing}"


def _warnings(plan: Estimated) -> str:
    """Return what a deployment loses, though it plans."""
    return "\n".join(["Warnings:", *_listed(plan.warnings)]) if plan.warnings else ""


def _decisions(plan: Estimated) -> str:
    """What the spec left to the planner with reasons, and the defaults that the figures below rest on."""
    decided = [each for each in plan.decisions if each.why != DEFAULT]
    rows = [("decided", "value", "why")]
    for before, each in zip([None, *decided], decided, strict=False):
        is_told = before is not None and before.why == each.why
        rows.append((each.path, _value(each.value), "for the same reason" if is_told else each.why))
    return "\n\n".join([*([wrapped(rows)] if decided else []), *_defaults(plan)])


def _defaults(plan: Estimated) -> Iterator[str]:
    """List the defaults that are guesses about a cluster, section by section, and count the others."""
    sections: dict[str, list[str]] = {}
    defaults = [each for each in plan.decisions if each.why == DEFAULT]
    assumed = [each for each in defaults if each.path.startswith(ASSUMED_SECTIONS)]
    for each in assumed:
        section, _, field = each.path.rpartition(".")
        sections.setdefault(section, []).append(f"{field} {_value(each.value)}")
    lines = []
    if assumed:
        lines.append(wrapped([("assumed", "value"), *((name, ", ".join(each)) for name, each in sections.items())]))
    if others := len(defaults) - len(assumed):
        left = f"Left at their defaults: {counted(others, 'more field' if assumed else 'field')}"
        lines += filled(f"{left}. The JSON lists them under decisions (--format json), docs/spec.md explains them.")
    if lines:
        yield "\n".join(lines)


def _relied_on(plan: Estimated) -> str:
    rows = list(relied_on(plan))
    return wrapped([("relies on", "what it means"), *rows]) if rows else ""


def _value(value: object) -> str:
    """Return the value as YAML writes it; of many numbers, how many they are and between which: the JSON has them."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) > MAX_NUMBERS and all(isinstance(each, int | float) for each in value):
        return f"{len(value)} numbers, {min(value):,.6g} to {max(value):,.6g}"
    return json.dumps(value)


def _phases(plan: Estimated) -> str:
    head = ("phase", "units", "nodes", "EP", "DP x TP", "experts", "slots/GPU", "overlap")
    limits_head = ("phase", "precision", "requests/rank", "tokens/request", "prompt tokens/step")
    layouts = table([head, *map(_phase_row, plan.layouts)])
    limits = table([limits_head, *(_limits_row(layout, plan.spec.phase(layout.phase)) for layout in plan.layouts)])
    notes = (
        "Nodes are per unit. Experts are logical + redundant, slots routed + shared.",
        "Limits are per rank or attention group. Decode processes no prompts."
        if plan.spec.decode
        else "Limits are per rank or attention group.",
    )
    return f"{layouts}\n  {notes[0]}\n\n{limits}\n  {notes[1]}"


def _phase_row(layout: PhaseLayout) -> tuple[str, ...]:
    redundant = layout.num_physical_experts - layout.num_logical_experts
    return (
        layout.phase,
        str(layout.num_units),
        str(layout.nodes_per_unit),
        str(layout.ep_size),
        f"{layout.dp_size} x {layout.attention_tp}",
        f"{layout.num_logical_experts} + {redundant} = {layout.num_physical_experts}",
        f"{layout.slots_per_gpu} + {layout.shared_per_gpu}",
        layout.overlap,
    )


def _limits_row(layout: PhaseLayout, spec: PhaseSpec) -> tuple[str, ...]:
    limits = [f"{limit:,}" for limit in (spec.max_requests, spec.max_request_tokens, spec.max_batch_tokens)]
    if layout.phase == "decode":
        limits[-1] = "-"  # prompts are prefill's
    kv = f", KV {spec.kv_precision}" if spec.kv_precision else ""
    return layout.phase, f"{layout.precision}{kv}", *limits


def _memory(plan: Estimated) -> str:
    """Return the memory of one GPU, in GB of 1e9 bytes; what is left is KV."""
    if not plan.memory:
        return ""
    head = ("GB per GPU", "usable", "weights", "activations", "buffers", "reserve", "KV")
    towers = ("towers",) if any(each.weights.towers for each in plan.memory) else ()
    weights_head = ("GB of weights", "attention", "shared", "dense", "embedding", *towers, "gates", "routed slots")
    fixed = ("bytes/request",) if any(each.kv_bytes_per_request for each in plan.memory) else ()
    kv_head = ("KV per GPU", "bytes/token", *fixed, "tokens", "full-length requests")
    tables = (
        [head, *map(_memory_row, plan.memory)],
        [weights_head, *(_weights_row(each, has_towers=bool(towers)) for each in plan.memory)],
        [kv_head, *(_kv_row(each, has_fixed=bool(fixed)) for each in plan.memory)],
    )
    return "\n\n".join(map(table, tables))


def _memory_row(memory: MemoryPlan) -> tuple[str, ...]:
    parts = (memory.gpu_bytes, memory.weight_bytes, memory.activations, memory.buffers, memory.reserve, memory.free)
    return (memory.phase, *map(_gb, parts))


def _weights_row(memory: MemoryPlan, *, has_towers: bool) -> tuple[str, ...]:
    weights, slots = memory.weights, memory.num_slots
    towers = (weights.towers,) if has_towers else ()
    parts = (weights.attention, weights.shared, weights.dense, weights.embedding, *towers, weights.gates)
    return (memory.phase, *map(_gb, parts), f"{slots} x {weights.slot / 1e9:.3f} = {_gb(slots * weights.slot)}")


def _kv_row(memory: MemoryPlan, *, has_fixed: bool) -> tuple[str, ...]:
    """What a request keeps of constant size stands beside what grows, where any model of the plan has it."""
    fixed = (memory.kv_bytes_per_request,) if has_fixed else ()
    numbers = (memory.kv_bytes_per_token, *fixed, memory.kv_tokens, memory.full_requests)
    return (memory.phase, *(f"{number:,}" for number in numbers))


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f}"


def _units(plan: Estimated) -> str:
    """Return every unit with all its nodes: who is called at night looks for one of them."""
    rows = [("unit", "ranks", "placed", "nodes by rank")]
    rows += [(unit.name, str(unit.ranks), unit.why, _node_list(unit.nodes)) for unit in plan.units]
    return wrapped(rows)


def _node_list(names: Sequence[str]) -> str:
    """`node-0 to node-15, node-18`: nodes whose numbers follow one another are named by the first and the last."""
    runs = runs_of(names)
    return ", ".join(
        run[0] if len(run) == 1 else f"{run[0]}{' to ' if len(run) > 2 else ', '}{run[-1]}" for run in runs
    )


def _placement(plan: Estimated) -> str:
    """How good it is, where places are known, and which nodes it leaves out."""
    placement = plan.placement
    lines: list[str] = []
    if placement.objectives:
        rows = [("placement", "value", "bound", "", "counts")]
        rows += [
            (each.name, str(each.value), str(each.bound), "proven" if each.is_proven else "", each.meaning)
            for each in placement.objectives
        ]
        lines += [wrapped(rows), *filled(f"{METHODS[placement.method]}: {placement.why}.")]
    if placement.spares:
        lines += filled(f"Spares for units that lose a node: {_node_list(placement.spares)}.")
    if placement.unusable:
        by_reason: dict[str, list[str]] = {}
        for node, why in placement.unusable.items():
            by_reason.setdefault(why, []).append(node)
        named = "; ".join(f"{_node_list(nodes)} ({why})" for why, nodes in by_reason.items())
        lines += filled(f"Not used: {named}.")
    return "\n".join(lines)


def _traffic(plan: Estimated) -> str:
    """Expected, of one MoE layer of the largest step."""
    if not plan.traffic:
        return ""
    shared = any(link.attention_bytes for each in plan.traffic for link in each.links)
    more = ("MB shared",) if shared else ()
    rows: list[tuple[str, ...]] = [("links", "kind", "fullest", "MB in", "MB out", *more, "GB/s", "us")]
    for each in plan.traffic:
        for link in each.links:
            sizes = [link.dispatch_bytes, link.combine_bytes, *([link.attention_bytes] if shared else [])]
            columns = [f"{size / 1e6:,.1f}" for size in sizes]
            busiest = "*" if link == each.busiest else ""
            time = f"{link.microseconds:,.0f}{busiest}"
            rows.append((each.phase, link.kind, _short(plan, link.place), *columns, f"{link.gb_per_s:,.0f}", time))
    sharing = " MB shared goes each way between the GPUs of an attention group." if shared else ""
    note = (
        "The fullest place of each kind, in one MoE layer of the largest step: dispatch brings MB in, combine takes MB "
        f"out.{sharing} us is the time at full bandwidth; * marks the busiest place."
    )
    return "\n".join([table(rows), *filled(note)])


def _failures(plan: Estimated) -> str:
    """The worst loss of each kind, and what could be saved."""
    rows = [("failure", "of one", "stops at most", "dark experts", "worst case")]
    for phase, losses in plan.failures.items():
        for domain, loss in losses.items():
            stops = f"{loss.units} of {loss.of_units} unit{'' if loss.of_units == 1 else 's'}"
            rows.append((phase, domain, stops, str(loss.dark_experts), _short(plan, loss.at)))
    lines = [table(rows)]
    coverage = plan.spec.coverage
    if coverage != "none":
        lines.append(f"  No expert goes dark when one {coverage} dies (coverage: {coverage}).")
    note = (
        "A dark expert has no replica elsewhere; the count is that of the worst layer of a unit. Replicas elsewhere "
        "help only a runtime that keeps running without a dead rank. Ours does not yet."
    )
    return "\n".join([*lines, *filled(note)])


def _short(plan: Estimated, place: str) -> str:
    """A unit's place without the name that all units share."""
    return place.removeprefix(f"{plan.name}-")


def _overlay(plan: Estimated) -> str:
    """Every place that the spec's overlay changes; the rest is as planned, and values may be secrets."""
    overlay = plan.spec.kubernetes.overlay
    if overlay is None:
        return ""
    parts = [("pods of units", overlay.unit_pod), ("pods of the gateway", overlay.gateway_pod)]
    parts += [
        (f"{each.kind} {each.name}" if each.name else f"every {each.kind}", each.patch) for each in overlay.objects
    ]
    lines = [f"{whom}: {field}" for whom, patch in parts for field in _leaves(patch)]
    filled_lines = [textwrap.fill(each, WIDTH, initial_indent="  - ", subsequent_indent="    ") for each in lines]
    return "\n".join(["Changed by the overlay:", *filled_lines]) if lines else ""


def _leaves(patch: Mapping[str, Any], parents: str = "") -> Iterator[str]:
    """Yield each field that `patch` writes, by its path."""
    for key, value in patch.items():
        path = f"{parents}.{key}".lstrip(".")
        if isinstance(value, dict) and value:
            yield from _leaves(value, path)
        else:
            yield path


def _runnable(plan: Estimated) -> str:
    name, version = plan.spec.engine_name, plan.spec.engine_version
    called = "The bundled runtime" if version is None else f"{name} {version}"
    if plan.refusals:
        return "\n".join([f"{called} cannot run it:", *_listed(plan.refusals)])
    on_gpus = any(plan.spec.device(phase) == "cuda" for phase in plan.spec.phases)
    return f"{called} can run it.\n{_untried(version is None)}" if on_gpus else f"{called} can run it."


def _untried(is_ours: bool) -> str:
    """Say what nobody of us has seen on GPUs."""
    if is_ours:
        return "Its ranks have run on one GPU, none between GPUs yet: try one unit first."
    return "We have not run it on a GPU yet: try one unit first."


def _listed(findings: Sequence[Finding]) -> list[str]:
    """Return their messages, each behind a dash, with its rule's id as `validate` prints it."""
    return [
        textwrap.fill(f"{each.message} [{each.id}]", WIDTH, initial_indent="  - ", subsequent_indent="    ")
        for each in findings
    ]
