"""Two micro-batches take turns on a rank, so that one communicates while the other computes.

    micro-batch    a half of a step's tokens; either may be empty
    flow           one micro-batch's way through the model: a generator that stops at every `Pause`
    pause          a point where the other flow may go on; each overlap uses some of them
    stage          the part of a flow between two pauses that the overlap uses

    dual_batch (prefill), one stage a turn:
        compute    A attention, gate | B attention, gate | A experts  | B experts  | A next layer's attention, gate
        link                           A dispatch . . . . B dispatch . A combine . . B combine . .

    five_stage (decode): attention has two stages, and A is two stages ahead, so that half of the other micro-batch's
    attention hides each dispatch and each combine. The stages of a layer are
        attention 1 | attention 2, gate | dispatch, shared expert | experts, combine | sum

    none: one micro-batch, never interrupted.

All ranks of a unit run the same overlap and have the same layers, so they begin their exchanges in the same order. The
order of turns does not change what a flow computes. So the results equal those of `none`, in deterministic mode to the
last bit (`kernels/batch_invariant.py`).

A chunk of a prompt may lie in both halves. Its second part attends to the latents of its first part. They are written
by then, because the first micro-batch is never behind the other one.

Sources: DeepSeek open-infra-index, day 6 ("Computation-Communication Overlapping"); deepseek-ai/profile-data.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice, zip_longest
from typing import TypeVar

from runtime.trace import set_micro_batch

__all__ = ["OVERLAPS", "Flow", "Overlap", "Pause"]

T = TypeVar("T")


class Pause(Enum):
    """The points where a flow can be interrupted, in the order of a layer."""

    HALF_ATTENDED = auto()  # queries and latents are computed, attention is not
    GATED = auto()  # slots are chosen, nothing is sent
    DISPATCHING = auto()  # rows are on their way to the experts; the shared expert has been computed
    COMBINING = auto()  # results are on their way back
    COMBINED = auto()  # results are here


Flow = Generator[Pause, None, T]


@dataclass(frozen=True)
class Overlap:
    """The number of micro-batches, the pauses where they take turns, and the first micro-batch's lead in stages."""

    num_micro_batches: int
    pauses: frozenset[Pause]
    lead: int = 0

    def shares(self, num_tokens: int) -> list[int]:
        """Return the number of a step's tokens in each micro-batch, as equal as possible."""
        if self.num_micro_batches == 1:
            return [num_tokens]
        return [num_tokens // 2, num_tokens - num_tokens // 2]

    def run(self, flows: list[Flow[T]]) -> list[T]:
        """Run a stage of each flow in turn until all have ended. Return their results, in the order of `flows`.

        The first flow begins `lead` stages before the others.
        """
        results: dict[int, T] = {}
        stages = [self._stages(number, flow, results) for number, flow in enumerate(flows)]
        for _ in islice(stages[0], self.lead):
            pass
        for _ in zip_longest(*stages):  # runs one stage of each flow in turn
            pass
        return [results[number] for number in range(len(flows))]

    def _stages(self, number: int, flow: Flow[T], results: dict[int, T]) -> Iterator[Pause]:
        def whole() -> Flow[None]:
            results[number] = yield from flow

        set_micro_batch(number)
        for pause in whole():
            if pause in self.pauses:
                yield pause
                set_micro_batch(number)


OVERLAPS = {
    "none": Overlap(1, frozenset()),
    "dual_batch": Overlap(2, frozenset({Pause.DISPATCHING, Pause.COMBINING})),
    "five_stage": Overlap(2, frozenset(Pause), lead=2),
}
