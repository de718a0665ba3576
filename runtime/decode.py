"""What a decode rank does: requests arrive with their KV, and get one more token a step until they are finished."""

from dataclasses import dataclass

from torch import Tensor

from runtime.messages import Abort, Handover
from runtime.phase import Phase
from runtime.request import Request

__all__ = ["Arrival", "DecodePhase"]


@dataclass(frozen=True)
class Arrival:
    """A request as it came from prefill; `latents` is `[num_layers, prompt tokens, latent_dim]`."""

    handover: Handover
    latents: Tensor


class DecodePhase(Phase):
    """Requests come from prefill ranks and stay to their ends."""

    def take(self, message: Arrival | Abort) -> None:
        """A request comes, or is no longer wanted."""
        match message:
            case Arrival(handover, latents):
                self._scheduler.add(
                    Request(
                        handover.request_id,
                        handover.prompt_ids,
                        handover.sampling,
                        generated=[handover.first_token_id],
                        num_cached=len(handover.prompt_ids),
                        latents=latents,
                    )
                )
            case Abort(request_id):
                self._scheduler.abort(request_id)
