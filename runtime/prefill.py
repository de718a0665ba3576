"""What a prefill rank does with a step: whole prompts, as many as fit, each to its first token and a handover.

ask: `has_work`. act: `step`, which may work on nothing, because another rank of the unit has something to do.
"""

from collections import deque

from torch import Tensor

from runtime.engine import Engine
from runtime.launch import UnitLaunch
from runtime.messages import Abort, FromGateway, Handover, Prefill, Token
from runtime.network import Network
from runtime.rank_metrics import RankMetrics
from runtime.sampling import finish_reason, sample

__all__ = ["PrefillPhase", "next_batch"]


class PrefillPhase:
    """The prefill policy of one rank."""

    def __init__(self, engine: Engine, launch: UnitLaunch, network: Network, metrics: RankMetrics) -> None:
        self._engine, self._launch, self._network, self._metrics = engine, launch, network, metrics
        self._waiting: deque[Prefill] = deque()

    def take(self, message: FromGateway) -> None:
        """A request comes, or is no longer wanted."""
        match message:
            case Prefill():
                self._waiting.append(message)
            case Abort(request_id=request_id):
                self._waiting = deque(request for request in self._waiting if request.request_id != request_id)

    def has_work(self) -> bool:
        """A prompt waits."""
        return bool(self._waiting)

    def step(self) -> None:
        """Compute a batch of prompts; say each first token; hand over what goes on."""
        batch = next_batch(self._waiting, self._launch.limits.max_batch_tokens)
        logits, latents = self._engine.prefill([request.prompt_ids for request in batch])
        self._metrics.prompts_computed(sum(len(request.prompt_ids) for request in batch))
        for request, logits_V, latent in zip(batch, logits, latents, strict=True):
            self._finish(request, logits_V, latent)

    def _finish(self, request: Prefill, logits_V: Tensor, latents: Tensor) -> None:
        token_id = sample(logits_V, request.sampling, len(request.prompt_ids) - 1)
        reason = finish_reason(token_id, 1, request.sampling)
        self._network.say(Token(request.request_id, token_id, reason))
        if reason is None:
            self._network.hand_over(
                request.kv_host, request.kv_port, self._handover(request, token_id, latents), latents
            )

    def _handover(self, request: Prefill, token_id: int, latents: Tensor) -> Handover:
        return Handover(
            request_id=request.request_id,
            kv_digest=self._launch.kv_digest,
            num_tokens=len(request.prompt_ids),
            shape=list(latents.shape),
            dtype=self._launch.kv_cache.dtype,
            first_token_id=token_id,
            sampling=request.sampling,
        )


def next_batch(waiting: deque[Prefill], max_batch_tokens: int) -> list[Prefill]:
    """Take prompts in order while they fit together; the first always goes, so that none waits for ever."""
    batch: list[Prefill] = []
    room = max_batch_tokens
    while waiting and (not batch or len(waiting[0].prompt_ids) <= room):
        batch.append(waiting.popleft())
        room -= len(batch[-1].prompt_ids)
    return batch
