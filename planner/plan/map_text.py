"""A plan's expert maps as text: how even they are, what was weighed, what moves, and what one more slot would give."""

from collections.abc import Iterator
from statistics import fmean

from planner.expert_map import ExpertMap, FrontPoint
from planner.facts.engine_models import ENGINE_MODELS
from planner.facts.engines import ENGINES
from planner.facts.quantities import gb
from planner.facts.terms import Phase
from planner.layout.memory import node_bytes
from planner.plan.columns import filled, table
from planner.plan.estimated import Estimated
from planner.schedule.starts import BYTES_PER_GBIT

__all__ = ["expert_maps_text"]


def expert_maps_text(plan: Estimated) -> str:
    """Return the fullest GPU over the mean of each map, what would be had instead, and what moves."""
    rows: list[tuple[str, ...]] = [("expert map", "max/mean", "bound", "in a step", "worst layer", "sha256")]
    for phase, each in plan.expert_maps.items():
        worst = max(each.max_over_mean)
        ratios = [f"{fmean(ratio):.3f}" for ratio in (each.max_over_mean, each.bound, plan.sampled[phase])]
        rows.append((phase, *ratios, f"{worst:.3f} (MoE layer {each.max_over_mean.index(worst)})", each.sha256[7:19]))
    drawn = plan.spec.expert_load
    loads = f"those of {drawn.file}" if drawn.file else f"drawn with alpha {drawn.alpha:g}, seed {drawn.seed}"
    note = (
        'max/mean is the load of the fullest GPU over the mean, averaged over MoE layers; "in a step" is what to '
        f"expect of a single step of the largest size. Expert loads are {loads}."
    )
    lines = [table(rows), *filled(note), *_where_tokens_go(plan)]
    return "\n".join([*lines, *_moves(plan), *_one_more_slot(plan), *_fronts(plan)])


def _where_tokens_go(plan: Estimated) -> Iterator[str]:
    """Say which replicas tokens go to, where that is not any of them alike; and where an engine knows no maps."""
    rules = {each.split for each in plan.expert_maps.values()}
    if "local_first" in rules:
        yield from filled("Tokens go to a replica on their own GPU or node first (split: local_first).")
    name = plan.spec.engine_name
    if "first_on_node" in rules:
        yield from filled(f"Tokens go to a replica on their own GPU, else to the first on their node, as in {name}.")
    if not ENGINES[name].reads_map:
        model = ENGINE_MODELS[name][plan.spec.engine_version or ""].get(plan.model.model_type)
        if model is not None and not model.replicas:
            yield from filled(
                f"{name} reads no map, and moves no experts of {model.architecture}: they stay in order. These figures "
                "are the best that maps could reach."
            )
            return
        yield from filled(
            f"{name} reads no map: it starts with experts in order, and moves them by loads that it measures itself. "
            "These figures are the best that its maps could reach."
        )


def _moves(plan: Estimated) -> Iterator[str]:
    """Say how many slots differ from the previous plan's maps, and what that takes."""
    for phase, each in plan.expert_maps.items():
        if each.moved_slots is not None:
            num_slots = sum(map(len, each.physical_to_logical))
            moved = f"{phase}: {each.moved_slots:,} of {num_slots:,} slots differ from the previous plan's"
            yield from filled(f"{moved}: keep the map." if each.moved_slots == 0 else f"{moved}{_restart(plan, phase)}")


def _restart(plan: Estimated, phase: Phase) -> str:
    """Return the bytes of the experts that move, and how long the units read that restart for them."""
    layout = next(each for each in plan.layouts if each.phase == phase)
    memory = next((each for each in plan.memory if each.phase == phase), None)
    units = "its unit restarts" if layout.num_units == 1 else f"each of its {layout.num_units} units restarts"
    pods = "The pods are named at the end."
    if memory is None:
        return f". For its new map {units}. {pods}"
    read = node_bytes(memory, layout.ep_size, layout.attention_tp, plan.spec.cluster.gpus_per_node)
    seconds = read / (plan.spec.kubernetes.load_rate * BYTES_PER_GBIT)
    return (
        f", {gb(plan.moved_bytes(phase) or 0)} of experts in a unit. For its new map {units} and reads all of its "
        f"weights, {gb(round(read))} a node: {seconds:,.0f} s at kubernetes.load_rate. {pods}"
    )


def _one_more_slot(plan: Estimated) -> Iterator[str]:
    """What it would give and cost, of phases whose slots keep the map where it is."""
    for phase, more in plan.one_more_slot.items():
        slot_bytes = plan.slot_bytes(phase)
        cost = "" if slot_bytes is None else f" and take {gb(slot_bytes)} per GPU"
        now, then, reached = (fmean(each) for each in (plan.expert_maps[phase].bound, more.bound, more.max_over_mean))
        yield from filled(
            f"{phase}: with these slots no map is below {now:.3f}; one more slot per GPU would give {reached:.3f} "
            f"(bound {then:.3f}){cost}."
        )


def _fronts(plan: Estimated) -> Iterator[str]:
    """Balance against bytes between nodes, of phases where groups of experts can stay on nodes."""
    for phase, each in plan.expert_maps.items():
        if not each.front:
            continue
        rows: list[tuple[str, ...]] = [(f"{phase} alternatives", "max/mean", "bytes", "")]
        rows += [_front_row(point, "chosen" if point == each.dispatch else "") for point in each.front]
        if each.dispatch is not None and each.dispatch not in each.front:
            rows.append(_front_row(each.dispatch, "chosen: near the previous plan's"))
        yield f"\n{table(rows)}"
        yield from filled(
            f"Bytes are what one token is expected to send between nodes in one MoE layer's dispatch. {_choice(each)}"
        )


def _choice(expert_map: ExpertMap) -> str:
    """Say why the map is the one that it is; a map near the previous plan's is on no front."""
    if expert_map.dispatch is None or expert_map.dispatch in expert_map.front:
        return "The lowest max/mean x bytes is chosen."
    return "Without the previous plan, the lowest max/mean x bytes would be chosen."


def _front_row(point: FrontPoint, mark: str) -> tuple[str, ...]:
    kept = "all groups on their nodes" if point.extra_bytes_per_token == 0 else "a few experts on two nodes"
    what = "any expert on any node" if point.policy == "global" else kept
    num_bytes = point.bytes_per_token + point.extra_bytes_per_token
    return what, f"{point.max_over_mean:.3f}", f"{num_bytes:,.0f}", mark
