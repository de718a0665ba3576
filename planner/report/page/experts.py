"""The page's figures of GPUs' loads with and without the expert map: per layer, and in the layer of the fullest GPU."""

from collections.abc import Iterator, Sequence

from planner.estimate.gpu_loads import GpuLoads
from planner.facts.terms import Phase
from planner.plan.plan import Plan
from planner.plan.sections import Map
from planner.report.page.figures import Area, Figure, Line, Steps, Table, by_phase
from planner.report.report import Report

WIDE = 10  # width of a column in units of the drawing; inside, GAP is left free on each side
GAP = 1.5
NUM_LABELS = 8
LOAD = "load over mean"


def show_experts(plan: Plan, report: Report) -> Iterator[Figure]:
    """Yield two figures for each phase, of the fullest GPU by layer and of all GPUs of one layer.

    A phase on a single GPU has nothing to balance, and no figure.
    """
    for phase, balance in by_phase(plan.balance):
        expert_map = plan.expert_maps[balance.expert_map]
        if plan.phases[phase].ep_size > 1:
            yield _by_layer(phase, expert_map, balance.gpu_loads, _say_means(report, phase))
            if balance.gpu_loads is not None:
                yield _by_gpu(phase, balance.gpu_loads, expert_map.bound[balance.gpu_loads.moe_layer])


def _say_means(report: Report, phase: Phase) -> str:
    names = ("max_over_mean", "bound", "max_over_mean_of_worst_layer")
    mean, bound, worst = (report.text(f"balance.{phase}", name) for name in names)
    return f"Mean of the layers {mean}, their bound {bound}; worst layer {worst}. 1 is perfectly even."


def _by_layer(phase: Phase, expert_map: Map, loads: GpuLoads | None, note: str) -> Steps:
    after, bound, before = expert_map.max_over_mean, expert_map.bound, loads.max_in_order if loads else ()
    lines = [Line("bound", _staircase(bound))] + ([Line("before", _staircase(before))] if before else [])
    rows = [
        (str(layer), f"{before[layer]:.3f}" if before else "-", f"{load:.3f}", f"{bound[layer]:.3f}")
        for layer, load in enumerate(after)
    ]
    return Steps(
        title=f"{phase}: the fullest GPU of each MoE layer",
        end=WIDE * len(after),
        labels=_labels(len(after)),
        areas=[
            Area(
                f"load {phase}",
                [(WIDE * layer + GAP, WIDE * (layer + 1) - GAP, 0.0, load)],
                f"MoE layer {layer}: {load:.3f}",
            )
            for layer, load in enumerate(after)
        ],
        lines=lines,
        table=Table(("MoE layer", "in order", "with the map", "bound"), rows),
        legend=_legend(phase, has_before=bool(before)),
        y_title=LOAD,
        note=note,
    )


def _by_gpu(phase: str, loads: GpuLoads, bound: float) -> Steps:
    mapped, in_order = sorted(loads.mapped, reverse=True), sorted(loads.in_order, reverse=True)
    rows = [
        (str(gpu), f"{before:.3f}", f"{after:.3f}")
        for gpu, (before, after) in enumerate(zip(loads.in_order, loads.mapped, strict=True))
    ]
    return Steps(
        title=f"{phase}: GPUs of MoE layer {loads.moe_layer}, the fullest first",
        end=WIDE * len(mapped),
        labels=_labels(len(mapped)),
        areas=[
            Area(
                f"load {phase}",
                [(WIDE * place, WIDE * (place + 1), 0.0, load) for place, load in enumerate(mapped)],
                "",
            )
        ],
        lines=[Line("bound", [(0, bound), (WIDE * len(mapped), bound)]), Line("before", _staircase(in_order))],
        table=Table(("rank", "in order", "with the map"), rows),
        legend=_legend(phase, has_before=True),
        y_title=LOAD,
    )


def _legend(phase: str, *, has_before: bool) -> dict[str, str]:
    before = {"before": "experts in order, without a map"} if has_before else {}
    return {f"load {phase}": "with the map", **before, "bound": "with these slots, no map is below this bound"}


def _staircase(values: Sequence[float]) -> list[tuple[float, float]]:
    return [(WIDE * (place + side), value) for place, value in enumerate(values) for side in (0, 1)]


def _labels(number: int) -> list[tuple[float, str]]:
    """Return labels for at most NUM_LABELS of `number` columns: (position of the column's middle, column)."""
    step = next(size for size in (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**6) if number <= size * NUM_LABELS)
    return [(WIDE * (place + 0.5), str(place)) for place in range(0, number, step)]
