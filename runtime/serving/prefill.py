"""The work of a prefill rank: prompts to first tokens, in chunks; then each request moves to decode with its KV."""

from torch import Tensor

from runtime.protocol.bounds import why_no_address
from runtime.protocol.messages import Failed, Handover, Prefill
from runtime.serving.request import Request
from runtime.serving.step_loop import Phase

__all__ = ["PrefillPhase"]


class PrefillPhase(Phase[Prefill]):
    """Requests come from the gateway and leave with their first token."""

    def arrive(self, message: Prefill) -> None:
        """Take a prompt, and note where its request goes from here."""
        unreachable = why_no_address(message.kv_host, message.kv_port)
        if unreachable is not None:
            self._outbox.say(Failed(message.request_id, f"its KV cannot be sent on: {unreachable}"))
            return
        assert message.kv_host is not None
        assert message.kv_port is not None
        kv_address = (message.kv_host, message.kv_port)
        self._asked(message, kv_address)

    def follow(self, request: Request) -> None:
        """Hand the request over: its next token is said, or its decode rank replays those that it has."""
        assert request.kv_address is not None
        latents = self._scheduler.cache.swap_out(request.table, request.num_cached)
        self._scheduler.end(request)
        self._outbox.hand_over(*request.kv_address, self._handover(request, latents), latents)

    def _handover(self, request: Request, latents: Tensor) -> Handover:
        return Handover(
            request_id=request.id,
            kv_digest=self._launch.kv_digest,
            prompt_ids=request.prompt_ids,
            shape=list(latents.shape),
            dtype=self._launch.kv_cache.dtype,
            generated=request.generated,
            sampling=request.sampling,
        )
