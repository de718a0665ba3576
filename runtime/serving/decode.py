"""The work of a decode rank: requests arrive with their KV, and each step draws a token for each of them.

An Abort comes from the gateway. If it comes before the request's KV, it ends the transfer (`kv/receiver.py`), so no
request arrives here after its Abort.

Before a request arrives, this rank may be asked to hold what it has of the prompt (`kv/held_prefix.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from runtime.kv.held_prefix import HeldPrefix
from runtime.protocol.messages import Handover
from runtime.serving.request import Request
from runtime.serving.step_loop import PhaseRunner

__all__ = ["ArrivedRequest", "DecodePhase", "Hold", "Release"]


@dataclass(frozen=True)
class Hold:
    """A message to hold the blocks that this rank has of an offered prompt.

    The blocks are held until the prompt's request arrives or a Release comes. `answer` is called with the number of
    tokens in these blocks.
    """

    prefix: HeldPrefix
    answer: Callable[[int], object]


@dataclass(frozen=True)
class Release:
    """A message to release a held prefix, whose request will not arrive."""

    prefix: HeldPrefix


@dataclass(frozen=True)
class ArrivedRequest:
    """A request from a prefill rank. Its `latents` `[num_layers, T, latent_dim]` continue those of its `prefix`."""

    handover: Handover
    latents: Tensor
    prefix: HeldPrefix = field(default_factory=HeldPrefix)


class DecodePhase(PhaseRunner[Hold | Release | ArrivedRequest]):
    """The phase in which requests come from prefill ranks and stay until they are complete."""

    def prepare(self) -> None:
        """Record decode steps on the rank's cache, if the device can replay them."""
        limits = self._launch.limits
        self._engine.capture_steps(self._scheduler.cache, limits.max_requests, limits.max_request_tokens)

    def arrive(self, message: Hold | Release | ArrivedRequest) -> None:
        """Hold or release a prefix, or queue an arrived request with its latents."""
        match message:
            case Hold(prefix, answer):
                answer(self._scheduler.prefixes.hold(prefix))
            case Release(prefix):
                self._scheduler.prefixes.release(prefix)
            case ArrivedRequest():
                self._scheduler.add(self._request(message))

    def _request(self, arrival: ArrivedRequest) -> Request:
        handover, prefix = arrival.handover, arrival.prefix
        return Request(
            handover.request_id,
            handover.prompt_ids,
            handover.sampling,
            generated=list(handover.generated),
            num_cached=prefix.num_tokens + arrival.latents.shape[1],
            num_kept=prefix.num_tokens,
            latents=arrival.latents,
            prefix=prefix,
            table=prefix.table,  # the same list: it is empty once the prefix gives way
            block_root=prefix.root,
            cache_salt=handover.cache_salt,
            hashes=list(prefix.hashes),
            shares_answer=not self._launch.deterministic,
            can_start_over=False,
        )
