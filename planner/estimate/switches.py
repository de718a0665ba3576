"""Predict how long a unit's first change of its expert map takes in service, and how long that holds up its steps.

    rounds     in each, every rank receives up to two experts of one layer; moves are spread evenly
    seconds    rounds x (a round's fixed time + its bytes / link) + 2 x bytes of a rank's slots / compare
    stall      rounds x (a round's fixed stall + its bytes / exchange)

A first change compares all slots twice: it learns their checksums before, and checks them after the last round. Later
changes of a unit are promised by its former ones (`stacks/measured/moved.py`).

Measured, both in docs/performance.md: on CPUs, 12 changes of the demo's decode unit on three nodes (15 rounds in 1.6 to
2.5 s and 119 to 206 ms of stall, 4 rounds in 0.4 s and 16 to 26 ms), comparisons at 0.15 s a GB; on a GPU, two changes
of layers of DeepSeek-V3's width (12 rounds of 88 MB and 6.2 GB of slots a rank in 10.5 and 6.4 s; a round takes effect
in at most 11.4 ms). Assumed: the link of GPUs' hosts, since nothing was measured between two.
"""

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from planner.facts.terms import Device
from planner.layout.memory import STAGED_EXPERTS

__all__ = ["SwitchTimes", "predict_first_switch"]


@dataclass(frozen=True)
class _Rates:
    """The seconds of a round that do not depend on bytes, and the bytes a second of what does."""

    round_s: float
    stall_s: float
    link: float
    exchange: float
    compare: float


RATES: dict[Device, _Rates] = {
    "cpu": _Rates(round_s=0.13, stall_s=0.01, link=1e9, exchange=5e9, compare=6.7e9),  # link and exchange assumed
    "cuda": _Rates(round_s=0.0, stall_s=0.0, link=1e9, exchange=7.7e9, compare=1.2e9),  # link assumed
}


class SwitchTimes(NamedTuple):
    """The seconds of a change, and for how many of these the unit does not compute."""

    seconds: float
    stall_s: float


def predict_first_switch(
    device: Device, num_bytes: int, expert_bytes: int, num_layers: int, num_slots: int, num_ranks: int
) -> SwitchTimes:
    """Return the times of a unit's first change, which moves `num_bytes` of experts of `expert_bytes` each.

    The unit has `num_ranks` ranks and, in each of `num_layers` MoE layers, `num_slots` slots.
    """
    rates, moves = RATES[device], num_bytes // expert_bytes
    rounds = max(min(moves, num_layers), ceil(moves / (STAGED_EXPERTS * num_ranks)))
    round_bytes = min(STAGED_EXPERTS, moves) * expert_bytes
    slot_bytes = num_layers * num_slots // num_ranks * expert_bytes
    return SwitchTimes(
        rounds * (rates.round_s + round_bytes / rates.link) + 2 * slot_bytes / rates.compare,
        rounds * (rates.stall_s + round_bytes / rates.exchange),
    )
