"""The answer of `tidemill experts`: the contract's JSON, and text for people.

It computes nothing of its own beyond means and sums; `experts.py` does.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from statistics import fmean
from typing import Any

from planner.estimate.sampled import max_over_mean_sampled
from planner.expert_map import ExpertMap, count_uncovered
from planner.experts.experts import ExpertsAnswer, ExpertsJob
from planner.experts.stages import link_totals, stage_moves
from planner.facts.quantities import gb
from planner.plan.expected import Weighed
from planner.plan.figures import one_more_slot
from planner.plan.sections import Map

__all__ = ["answer_json", "answer_text"]


def answer_json(job: ExpertsJob, answer: ExpertsAnswer) -> dict[str, Any]:
    """Return the contract's keys, without `seconds`: the same call gives the same bytes."""
    expert_map = answer.expert_map
    slots = expert_map.logical_to_physical
    more = one_more_slot(answer.one_more_slot, job.sizes.slots_per_gpu, _bytes(job, len(job.loads)))
    return (
        Map.model_validate(expert_map).model_dump(mode="json")
        | {
            "first_layer": job.first_layer,
            "logical_to_physical": slots,
            "replica_count": [[len(replicas) for replicas in layer] for layer in slots],
            "max_over_mean_sampled": _sampled(job, expert_map),
            "coverage": job.coverage,
            "uncovered_experts": count_uncovered(expert_map.physical_to_logical, job.domains) if job.domains else None,
            "one_more_slot": more and more.model_dump(),
            "moved_slots": expert_map.moved_slots,
            "windows": _windows_json(expert_map),
        }
        | Weighed.model_validate(expert_map).model_dump(mode="json")
        | _moves_json(job, expert_map)
    )


def _sampled(job: ExpertsJob, expert_map: ExpertMap) -> list[float] | None:
    """Return max over mean of sampled steps, or None when the tokens of a step are not given."""
    if job.step_pairs is None:
        return None
    return list(max_over_mean_sampled(expert_map, job.loads, job.sizes, job.step_pairs))


def _windows_json(expert_map: ExpertMap) -> dict[str, Any] | None:
    """Return the figures of each window; None for a single window, and for tokens that stay near."""
    if expert_map.windows is None:
        return None
    outcome = asdict(expert_map.windows)
    return outcome | {"of_mean_map": outcome["of_mean_map"] or None}


def _bytes(job: ExpertsJob, num_experts: int) -> int | None:
    """Return the bytes of `num_experts` experts of one layer; None when their size is not given."""
    return None if job.expert_bytes is None else num_experts * job.expert_bytes


def _moves_json(job: ExpertsJob, expert_map: ExpertMap) -> dict[str, Any]:
    """Return the way from the previous map, if there is one: stages, and the experts and bytes that cross each link."""
    if job.previous is None:
        return {}
    stages = stage_moves(job.previous, expert_map.physical_to_logical, job.sizes)
    links = Counter((each.from_gpu, each.to_gpu) for stage in stages for each in stage.transfers)
    return {
        "keep_map": expert_map.moved_slots == 0,
        "stages": [
            {
                "layer": stage.layer,
                "spare_slots": stage.spare_slots,
                "transfers": [asdict(transfer) for transfer in stage.transfers],
            }
            for stage in stages
        ],
        "links": [
            {"from_gpu": sender, "to_gpu": to, "experts": count, "bytes": _bytes(job, count)}
            for (sender, to), count in sorted(links.items())
        ],
        "link_totals": [
            asdict(total) | {"bytes": _bytes(job, total.experts), "busiest_bytes": _bytes(job, total.busiest_experts)}
            for total in link_totals(stages, job.sizes)
        ],
    }


def answer_text(job: ExpertsJob, answer: ExpertsAnswer, document: dict[str, Any]) -> str:
    """Return the figures of the map for people; the map itself is for programs. `document` is the answer as JSON."""
    expert_map = answer.expert_map
    reached, bound = expert_map.max_over_mean, expert_map.bound
    worst = max(range(len(reached)), key=reached.__getitem__)
    bound_by = ", ".join(f"{kind} {count}" for kind, count in Counter(expert_map.binding).most_common())
    lines = [
        f"Expert map {expert_map.sha256}",
        f"  layers          {len(reached)}, of which the first is the model's layer {job.first_layer}",
        f"  policy          {expert_map.policy} ({expert_map.policy_reason})",
        f"  max/mean load   {fmean(reached):.4f} mean, {reached[worst]:.4f} worst (layer {worst})",
        f"  proven bound    {fmean(bound):.4f} mean, {bound[worst]:.4f} there",
        f"  bound by        {bound_by} (layers)",
        *_windows_lines(expert_map),
        *_front_lines(expert_map),
        *_sampled_lines(job, document["max_over_mean_sampled"]),
        *_one_more_lines(job, answer.one_more_slot),
        *_coverage_lines(job),
        *_moves_lines(job, document),
    ]
    return "\n".join(lines)


def _windows_lines(expert_map: ExpertMap) -> Iterator[str]:
    """Yield what is balanced, and what the map reaches in each window."""
    if (windows := expert_map.windows) is None:
        return
    yield "  max/mean is of  " + ("the mean of windows" if windows.quantile is None else _quantile(windows.quantile))
    if windows.of_mean_map:
        yield f"  instead of      {fmean(windows.of_mean_map):.4f} mean, of the map for the mean of windows"
    for number, (reached, bound) in enumerate(zip(windows.max_over_mean, windows.bound, strict=True)):
        figures = f"{fmean(reached):.4f} mean, {max(reached):.4f} worst, bound {fmean(bound):.4f}"
        yield f"  window {number:<8} max/mean {figures}"


def _quantile(quantile: float) -> str:
    return "the worst window" if quantile == 1 else f"the {quantile:g} quantile of windows"


def _front_lines(expert_map: ExpertMap) -> Iterator[str]:
    """Yield balance against cross-node bytes, where there was a choice."""
    for point in expert_map.front:
        mark = "  <- chosen" if point == expert_map.dispatch else ""
        share = f"{point.bytes_ratio - 1:+.2%} cross-node dispatch bytes"
        anywhere = ", no groups kept" if point.policy == "global" else ""
        yield f"  front           max/mean {point.max_over_mean:.4f} mean, {share}{anywhere}{mark}"


def _sampled_lines(job: ExpertsJob, sampled: list[float] | None) -> Iterator[str]:
    if sampled:
        yield f"  in one step     {fmean(sampled):.4f} mean, {max(sampled):.4f} worst (of {job.step_pairs:,} pairs)"


def _one_more_lines(job: ExpertsJob, with_one_more: ExpertMap | None) -> Iterator[str]:
    if with_one_more is not None:
        reached, bound = fmean(with_one_more.max_over_mean), fmean(with_one_more.bound)
        cost = "" if job.expert_bytes is None else f", for {gb(len(job.loads) * job.expert_bytes)} a GPU"
        yield f"  one more slot   max/mean {reached:.4f} mean, bound {bound:.4f}{cost}"


def _coverage_lines(job: ExpertsJob) -> Iterator[str]:
    if job.coverage != "none":
        yield f"  coverage        no expert goes dark when one {job.coverage} dies"
        yield "                  (it pays only with a runtime that masks dead ranks)"


def _moves_lines(job: ExpertsJob, document: dict[str, Any]) -> Iterator[str]:
    if job.previous is None:
        return
    keep = ": keep the map" if document["keep_map"] else ""
    yield f"  moved slots     {document['moved_slots']}{keep}"
    for total in document["link_totals"]:
        size = "" if total["busiest_bytes"] is None else f", {gb(total['busiest_bytes'])}"
        yield (
            f"  by {total['kind']:<12} {total['experts']} experts, most at GPU {total['busiest_gpu']}, which "
            f"{total['direction']} {total['busiest_experts']}{size}"
        )
