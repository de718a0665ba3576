"""The work of a prefill rank: it computes prompts in chunks and draws first tokens, then requests move to decode.

A request's KV moves while its prompt is computed: each layer's latents leave as soon as they exist.
"""

from runtime.kv.sender import num_offered_blocks
from runtime.protocol.bounds import explain_bad_address
from runtime.protocol.messages import Failed, Handover, Offer, Prefill
from runtime.serving.request import Request
from runtime.serving.step_loop import PhaseRunner

__all__ = ["PrefillPhase"]


class PrefillPhase(PhaseRunner[Prefill]):
    """The phase in which requests come from the gateway, and leave for a decode rank after their first token."""

    def arrive(self, message: Prefill) -> None:
        """Queue a prompt. If the request may get further tokens at a decode rank, open the transfer of its KV there.

        If no decode rank can be called, fail the request instead.
        """
        unreachable = explain_bad_address(message.kv_host, message.kv_port)
        if unreachable is None and message.kv_ticket is None:
            unreachable = "no ticket"
        if unreachable is not None:
            self._outbox.say(Failed(message.request_id, f"its KV cannot be sent on: {unreachable}"))
            return
        assert message.kv_host is not None
        assert message.kv_port is not None
        request = self._accept_prompt(message)
        if _is_handed_over(request):
            offer, link = self._offer(request, message), self._scheduler.cache.link
            chain = _encode_chain(request, num_offered_blocks(offer))
            request.transfer = self._outbox.open_transfer(message.kv_host, message.kv_port, offer, link, chain)

    def follow(self, request: Request) -> None:
        """Hand a request over to its decode rank, after its first token or to replay its tokens there."""
        assert request.transfer is not None
        self._scheduler.end(request)
        request.transfer.finish(
            Handover(request.id, request.prompt_ids, request.generated, request.sampling, request.cache_salt)
        )

    def _offer(self, request: Request, message: Prefill) -> Offer:
        assert message.kv_ticket is not None
        num_layers, latent_dim = self._engine.token_shape
        return Offer(
            request_id=request.id,
            ticket=message.kv_ticket,
            kv_digest=self._launch.kv_digest,
            shape=[num_layers, request.num_to_prefill, latent_dim],
            dtype=self._launch.kv_cache.dtype,
        )


def _encode_chain(request: Request, num_blocks: int) -> bytes:
    """Return the root and the first `num_blocks` hashes of a request's chain of block hashes, concatenated.

    Empty if the request shares no blocks.
    """
    if request.block_root is None:
        return b""
    return b"".join([request.block_root, *request.block_hashes(0, num_blocks)])


def _is_handed_over(request: Request) -> bool:
    """Return whether the request may get further tokens at a decode rank, which needs its KV then."""
    num_drawn_here = request.num_to_prefill == request.num_tokens
    return len(request.generated) + num_drawn_here < request.sampling.max_tokens
