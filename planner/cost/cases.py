"""List what-if cases for a day's cost: slower or faster units, more or less traffic, cheaper or dearer GPU-hours.

The units and their schedule stay as planned. To see how a plan would follow other traffic with other units, plan the
changed spec.
"""

from collections.abc import Iterator, Mapping

from planner.facts.terms import Phase
from planner.spec.schema import Spec

CHANGES = {"20% less": 0.8, "20% more": 1.2}

Rates = Mapping[Phase, float]


def list_cases(
    spec: Spec, most_per_node: Rates, ends: Mapping[Phase, tuple[float, float]]
) -> Iterator[tuple[str, Spec, Rates]]:
    """Yield (name, spec, maximum tokens/s of a node by phase) of each what-if case for a spec with a `cost`.

    `most_per_node` has the expected maximum tokens/s, and `ends` the slowest and fastest speed over the expected speed.
    """
    if spec.traffic is not None and most_per_node:
        for end, name in enumerate(("the slowest speed", "the fastest speed")):
            yield name, spec, {phase: rate * ends[phase][end] for phase, rate in most_per_node.items()}
    for words, factor in CHANGES.items():
        if spec.traffic is not None:
            yield f"{words} traffic", _with_traffic(spec, factor), most_per_node
    for words, factor in CHANGES.items():
        yield f"GPU-hours for {words}", _with_price(spec, factor), most_per_node


def _with_traffic(spec: Spec, factor: float) -> Spec:
    traffic = spec.traffic
    assert traffic is not None
    tokens = {"input_tokens": traffic.input_tokens * factor, "output_tokens": traffic.output_tokens * factor}
    return spec.model_copy(update={"traffic": traffic.model_copy(update=tokens)})


def _with_price(spec: Spec, factor: float) -> Spec:
    cost = spec.cost
    if cost is None:
        return spec
    supplies = [each.model_copy(update={"usd_per_gpu_hour": each.usd_per_gpu_hour * factor}) for each in cost.supplies]
    rates = {"usd_per_gpu_hour": cost.usd_per_gpu_hour * factor, "supplies": supplies}
    return spec.model_copy(update={"cost": cost.model_copy(update=rates)})
