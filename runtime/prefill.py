"""What a prefill rank does: prompts to their first tokens, in chunks; then each request moves to decode with its KV."""

from torch import Tensor

from runtime.messages import Abort, FromGateway, Handover, Prefill
from runtime.phase import Phase
from runtime.request import Request

__all__ = ["PrefillPhase"]


class PrefillPhase(Phase):
    """Requests come from the gateway and leave with their first token."""

    def take(self, message: FromGateway) -> None:
        """A request comes, or is no longer wanted."""
        match message:
            case Prefill(request_id, prompt_ids, sampling, kv_host, kv_port):
                assert kv_host is not None
                assert kv_port is not None
                self._add(Request(request_id, prompt_ids, sampling, kv_address=(kv_host, kv_port)))
            case Abort(request_id):
                self._scheduler.abort(request_id)

    def follow(self, request: Request) -> None:
        """The first token is said: hand the request over."""
        assert request.kv_address is not None
        latents = self._scheduler.cache.take_out(request.table, request.num_cached)
        self._scheduler.end(request)
        self._network.hand_over(*request.kv_address, self._handover(request, latents), latents)

    def _handover(self, request: Request, latents: Tensor) -> Handover:
        return Handover(
            request_id=request.id,
            kv_digest=self._launch.kv_digest,
            prompt_ids=request.prompt_ids,
            shape=list(latents.shape),
            dtype=self._launch.kv_cache.dtype,
            first_token_id=request.generated[0],
            sampling=request.sampling,
        )
