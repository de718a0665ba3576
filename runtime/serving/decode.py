"""The work of a decode rank: requests arrive with their KV, and get one more token a step until they are finished.

An Abort comes on the gateway's line and may overtake the handover that it is about. So an Abort for a request that is
not here is remembered, and the request dropped when it comes; if it never does, its id is forgotten after many others.
"""

from collections import deque
from dataclasses import dataclass

from torch import Tensor

from runtime.launch import UnitLaunch
from runtime.model.engine import Engine
from runtime.protocol.messages import Handover
from runtime.serving.request import Request
from runtime.serving.step_loop import Outbox, Phase, StepCounters

__all__ = ["Arrival", "DecodePhase"]

MAX_REMEMBERED = 4096  # assumed: more than are aborted while a handover takes its 30 s at the most


@dataclass(frozen=True)
class Arrival:
    """A request as it came from prefill; `latents` is `[num_layers, num_cached, latent_dim]`."""

    handover: Handover
    latents: Tensor


class DecodePhase(Phase[Arrival]):
    """Requests come from prefill ranks and stay to their ends."""

    def __init__(self, engine: Engine, launch: UnitLaunch, outbox: Outbox, counters: StepCounters) -> None:
        super().__init__(engine, launch, outbox, counters)
        self._aborted_before_arrival: deque[str] = deque(maxlen=MAX_REMEMBERED)

    def arrive(self, message: Arrival) -> None:
        """Take a prompt with its latents and its tokens so far, unless nobody waits for it any more."""
        handover = message.handover
        if handover.request_id in self._aborted_before_arrival:
            return
        self._scheduler.add(
            Request(
                handover.request_id,
                handover.prompt_ids,
                handover.sampling,
                generated=list(handover.generated),
                num_cached=handover.shape[1],
                latents=message.latents,
            )
        )

    def abort(self, request_id: str) -> bool:
        """Drop a request that nobody waits for any more, whether it is here or on its way."""
        was_here = super().abort(request_id)
        if not was_here:
            self._aborted_before_arrival.append(request_id)
        return was_here
