"""The answer of `tidemill experts`: JSON for programs, and text for people.

This file only computes means and sums of the map that `experts.py` made. The map has the form of a plan's sections
(`plan/`).
"""

from collections import Counter
from collections.abc import Iterator
from statistics import fmean

from planner.expert_map import ExpertMap
from planner.experts.experts import ExpertsJob
from planner.facts.digest import digest_of
from planner.plan.expected import PolicyChoice
from planner.plan.sections import Slots


class Answer(Slots, PolicyChoice):
    """The answer's JSON except `seconds`, the time taken, so that the same call gives the same bytes."""

    first_layer: int  # the model's number of the layer in the first row
    logical_to_physical: list[list[list[int]]]
    replica_count: list[list[int]]
    moved_slots: int | None  # slots that differ from the previous map; None if there is none


def make_answer(job: ExpertsJob, expert_map: ExpertMap) -> Answer:
    """Return the answer to `job`, with its map."""
    slots = expert_map.logical_to_physical
    return Answer.model_validate(
        vars(Slots.model_validate(expert_map))
        | vars(PolicyChoice.model_validate(expert_map))
        | {
            "first_layer": job.first_layer,
            "logical_to_physical": slots,
            "replica_count": [[len(replicas) for replicas in layer] for layer in slots],
            "moved_slots": expert_map.moved_slots,
        }
    )


def answer_text(answer: Answer) -> str:
    """Return the map's figures as text. The map itself is only in the JSON."""
    reached, bound = answer.max_over_mean, answer.bound
    worst = max(range(len(reached)), key=reached.__getitem__)
    bound_by = ", ".join(f"{kind} {count}" for kind, count in Counter(answer.binding).most_common())
    lines = [
        f"Expert map {digest_of(answer.physical_to_logical)}",
        f"  layers          {len(reached)}, of which the first is the model's layer {answer.first_layer}",
        f"  policy          {answer.policy} ({answer.policy_reason})",
        f"  max/mean load   {fmean(reached):.4f} mean, {reached[worst]:.4f} worst (layer {worst})",
        f"  proven bound    {fmean(bound):.4f} mean, {bound[worst]:.4f} there",
        f"  bound by        {bound_by} (layers)",
        *_front_lines(answer),
        *_moves_lines(answer),
    ]
    return "\n".join(lines)


def _front_lines(answer: Answer) -> Iterator[str]:
    """Yield a line with balance and cross-node bytes for each map that was considered."""
    for point in answer.front:
        mark = "  <- chosen" if point == answer.dispatch else ""
        share = f"{point.bytes_ratio - 1:+.2%} cross-node dispatch bytes"
        anywhere = ", no groups kept" if point.policy == "global" else ""
        yield f"  front           max/mean {point.max_over_mean:.4f} mean, {share}{anywhere}{mark}"


def _moves_lines(answer: Answer) -> Iterator[str]:
    if answer.moved_slots is not None:
        yield f"  moved slots     {answer.moved_slots}"
