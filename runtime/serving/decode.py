"""The work of a decode rank: requests arrive with their KV, and each step draws a token for each of them.

An Abort comes from the gateway. If it comes before the request's KV, it ends the transfer (`kv/receiver.py`), so no
request arrives here after its Abort.
"""

from dataclasses import dataclass

from torch import Tensor

from runtime.protocol.messages import Handover
from runtime.serving.request import Request
from runtime.serving.step_loop import Phase

__all__ = ["Arrival", "DecodePhase"]


@dataclass(frozen=True)
class Arrival:
    """A request as it came from prefill; `latents` is `[num_layers, num_cached, latent_dim]`."""

    handover: Handover
    latents: Tensor


class DecodePhase(Phase[Arrival]):
    """Requests come from prefill ranks and stay to their ends."""

    def prepare(self) -> None:
        """Record steps on the cache, if the device can replay them."""
        limits = self._launch.limits
        self._engine.capture_steps(self._scheduler.cache, limits.max_requests, limits.max_request_tokens)

    def arrive(self, message: Arrival) -> None:
        """Queue a prompt with its latents and its tokens so far."""
        handover = message.handover
        self._scheduler.add(
            Request(
                handover.request_id,
                handover.prompt_ids,
                handover.sampling,
                generated=list(handover.generated),
                num_cached=message.latents.shape[1],
                latents=message.latents,
            )
        )
