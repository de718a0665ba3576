"""The common part of the prefill, decode and mixed phases: a step is schedule, run, postprocess.

`prefill.py`, `decode.py` and `mixed.py` say how requests come, and what follows a token. All ranks of a unit step
together, so `step` is also called when `has_work` is false here and true on another rank.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from torch import Tensor
from torch.nn.functional import normalize

from runtime.errors import RequestFailure
from runtime.kernels.device import HostLink
from runtime.kv.blocks import root_hash
from runtime.kv.cache import LatentCache
from runtime.kv.host_memory import HostMemory
from runtime.launch import UnitLaunch
from runtime.model.engine import Engine
from runtime.protocol.bounds import explain_uncomputable
from runtime.protocol.counting import attention_pairs
from runtime.protocol.messages import Abort, Embed, Embedding, Failed, Load, Offer, Prefill, PrefixHit, Sampling, Token
from runtime.serving.batched_sampling import DrawnToken, PendingDraw, draw
from runtime.serving.constraint import Constraints
from runtime.serving.fetches import SlowTier
from runtime.serving.load_report import LoadReport
from runtime.serving.request import Request, Transfer
from runtime.serving.sampling import finish_reason, logprobs, sample
from runtime.serving.scheduler import Batch, Scheduler

__all__ = ["Outbox", "PhaseRunner", "StepCounters", "embedding_bytes"]

Arriving = TypeVar("Arriving")
NO_SAMPLING = Sampling(max_tokens=1, temperature=0.0, top_p=1.0, seed=0, stop_ids=[])  # for requests that draw nothing


class Outbox(Protocol):
    """Sends a phase's messages. No call waits until they have arrived."""

    def say(self, message: PrefixHit | Token | Embedding | Failed) -> None:
        """Send a message about a request to its gateway."""

    def say_load(self, load: Load) -> None:
        """Send the rank's load to all gateways, and later to gateways that connect."""

    def open_transfer(self, host: str, port: int, offer: Offer, link: HostLink, chain: bytes = b"") -> Transfer:
        """Return a transfer that takes a request's KV to a decode rank. `link` copies it to host memory.

        `chain` has the root and the hashes of the blocks that the decode rank may have already.
        """


class StepCounters(Protocol):
    """Counts what the steps of a phase compute."""

    def watch_requests(self, scheduler: Scheduler) -> None:
        """Measure the rank's requests and KV cache from now on."""

    def count_prompts(self, num_tokens: int, num_pairs: int) -> None:
        """Count the tokens of prompts that a step computed, and their pairs of core attention."""


class PhaseRunner(ABC, Generic[Arriving]):
    """One rank's requests and their steps.

    `Arriving` is the type of the messages that bring requests: Prefill or, for decode, Hold, Release and
    ArrivedRequest.
    """

    def __init__(
        self,
        engine: Engine,
        launch: UnitLaunch,
        outbox: Outbox,
        counters: StepCounters,
        block_digest: bytes | None = None,
        memory: HostMemory | None = None,
    ) -> None:
        """Begin without requests.

        The hashes of the blocks in which requests share KV begin with `block_digest`; None: no sharing.

        `memory` is the ledger of the rank's host memory.
        """
        self._engine, self._launch, self._outbox, self._counters = engine, launch, outbox, counters
        self._block_digest = block_digest
        cache = engine.new_cache(launch.limits.kv_tokens, memory, launch.limits.host_bytes)
        self._scheduler = Scheduler(cache, launch.limits)
        self._constraints = Constraints(engine.checkpoint, engine.config.vocab_size)
        counters.watch_requests(self._scheduler)
        self._report = LoadReport(self._scheduler, outbox.say_load)

    @property
    def tokenizer_digest(self) -> str | None:
        """Return the digest of the tokenizer.json that constrains answers in JSON; None if the rank read none."""
        return self._constraints.tokenizer_digest

    @property
    def cache(self) -> LatentCache:
        """Return the rank's KV cache."""
        return self._scheduler.cache

    def use(self, slow: SlowTier) -> None:
        """Keep blocks of the prefix cache in a slow tier too, behind the host tier, which the cache must have."""
        self._scheduler.use(slow)

    def prepare(self) -> None:
        """Do slow preparations, such as compiling kernels, before requests come. A collective of the unit."""
        limits = self._launch.limits
        self._engine.warm_up(self._scheduler.cache, limits.max_request_tokens, limits.max_batch_tokens)

    def receive(self, message: Arriving | Embed | Abort) -> None:
        """Take a request that has arrived, or drop one that is aborted."""
        if isinstance(message, Abort):
            self.abort(message.request_id)
        elif isinstance(message, Embed):
            self._add(Request(message.request_id, message.prompt_ids, NO_SAMPLING, embeds=True))
        else:
            self.arrive(message)

    @abstractmethod
    def arrive(self, message: Arriving) -> None:
        """Take a message that brings a request or, in decode, that holds or releases a prefix."""

    def abort(self, request_id: str) -> None:
        """Drop a request that nobody waits for, if this rank has it."""
        for request in self._scheduler.abort(request_id):
            _cancel_transfer(request)

    def has_work(self) -> bool:
        """Return whether a request runs or waits."""
        return self._scheduler.has_work()

    def rest(self) -> None:
        """Copy blocks to host memory, in a turn of the loop in which no rank of the unit has work."""
        self._scheduler.rest()

    def tell_load(self) -> None:
        """Report this rank's load to the gateways, if it has changed."""
        self._report.tell()

    def step(self) -> None:
        """Compute chunks of prompts, and a token for each request that decodes. Send the results.

        The results are tokens, embeddings, how much of each prompt was in the cache, and requests that found no room.
        """
        batch = self._scheduler.schedule()
        for request in self._scheduler.take_crowded_out():
            _cancel_transfer(request)
            self._outbox.say(Failed(request.id, "this rank holds as much KV outside its cache as it may", True))
        rows, states = self._compute(batch)
        self._counters.count_prompts(
            sum(len(chunk.token_ids) for chunk in batch.prefilling),
            sum(attention_pairs(chunk.start, chunk.end) for chunk in batch.prefilling),
        )
        chunks = (*batch.prefilling, *batch.decoding)
        for request, chunk, row, state_D in zip(batch.requests, chunks, rows, states, strict=True):
            was_prefilling = request.is_prefilling
            self._scheduler.advance(request, chunk.end)
            if request.is_prefilling:
                continue
            if was_prefilling and request.num_hits:
                self._outbox.say(PrefixHit(request.id, min(request.num_hits, len(request.prompt_ids))))
            if request.embeds:
                assert state_D is not None
                self._scheduler.end(request)
                self._outbox.say(Embedding(request.id, embedding_bytes(state_D)))
            elif request.is_computed:
                assert row is not None
                self._postprocess(request, row)
            else:
                self.follow(request)

    def follow(self, request: Request) -> None:
        """Act on a request after a token that is not its last. The default is to go on in the next step."""

    def _accept_prompt(self, message: Prefill) -> Request:
        """Queue a prompt, with any tokens that lost ranks have generated for it. Return the queued request.

        In deterministic mode these tokens are replayed, otherwise they are prefilled.
        """
        request = Request(
            message.request_id,
            message.prompt_ids,
            message.sampling,
            generated=list(message.generated),
            num_generated_to_prefill=0 if self._launch.deterministic else len(message.generated),
            block_root=None if self._block_digest is None else root_hash(self._block_digest, message.cache_salt),
            cache_salt=message.cache_salt,
            shares_answer=not self._launch.deterministic,
        )
        self._add(request)
        return request

    def _add(self, request: Request) -> None:
        """Queue a request, or tell the gateway why this rank cannot compute it.

        The gateway's limits may differ, because the gateway may also serve units of an older launch.
        """
        vocab_size, limit = self._engine.config.vocab_size, self._launch.limits.max_request_tokens
        reason = explain_uncomputable(request.prompt_ids, request.generated, request.sampling, vocab_size, limit)
        if reason is None:
            self._scheduler.add(request)
        else:
            self._outbox.say(Failed(request.id, reason))

    def _compute(self, batch: Batch) -> tuple[Sequence[Tensor | DrawnToken | None], Sequence[Tensor | None]]:
        """Run the model.

        Return a result and a hidden state for each chunk. A result is logits on the host, or the token drawn on a
        device; it is None if no token is to be drawn. The states are None unless a request embeds.
        """
        cache = self._scheduler.cache
        if not any(request.embeds for request in batch.requests):
            logits = self._engine.step(batch.prefilling, batch.decoding, cache)
            return _draw_rows(logits, batch, cache.link), [None] * len(batch.requests)
        logits, states = self._engine.step_to_embed(batch.prefilling, batch.decoding, cache)
        return _draw_rows(logits, batch, cache.link), list(cache.link.to_host(states))

    def _postprocess(self, request: Request, row: Tensor | DrawnToken) -> None:
        try:
            token = _draw_token(request, row, self._constraints)
        except RequestFailure as error:
            self._end(request)
            self._outbox.say(Failed(request.id, str(error)))
            return
        request.generated.append(token.token_id)
        self._outbox.say(token)
        if token.finish_reason is None:
            self.follow(request)
        else:
            self._end(request)

    def _end(self, request: Request) -> None:
        self._scheduler.end(request)
        _cancel_transfer(request)


def embedding_bytes(state_D: Tensor) -> bytes:
    """Return a hidden state as an embedding: of length 1, in FP32, little-endian."""
    normed_D = normalize(state_D.float(), dim=0)
    return normed_D.numpy().astype("<f4").tobytes()


def _cancel_transfer(request: Request) -> None:
    if request.transfer is not None:
        request.transfer.cancel()


def _draw_rows(logits: Tensor, batch: Batch, link: HostLink) -> Sequence[Tensor | DrawnToken | None]:
    if _is_on_host(logits):
        return logits.unbind()
    chunks = (*batch.prefilling, *batch.decoding)
    draws = {
        number: PendingDraw(request.sampling, chunk.end - 1, len(request.generated))
        for number, (request, chunk) in enumerate(zip(batch.requests, chunks, strict=True))
        if chunk.end == request.num_tokens and not request.embeds
    }
    drawn = draw(logits, draws, link)
    return [drawn.get(number) for number in range(len(logits))]


def _is_on_host(logits: Tensor) -> bool:
    return logits.device.type == "cpu"


def _draw_token(request: Request, row: Tensor | DrawnToken, constraints: Constraints) -> Token:
    """Return the message with the request's next token. Raises RequestFailure if no token can be drawn."""
    index = len(request.generated)
    drawn = row if isinstance(row, DrawnToken) else _draw_on_host(row, request, constraints)
    reason = finish_reason(drawn.token_id, index + 1, request.sampling)
    return Token(request.id, index, drawn.token_id, reason, drawn.logprobs)


def _draw_on_host(logits_V: Tensor, request: Request, constraints: Constraints) -> DrawnToken:
    try:
        allowed_V = constraints.allowed_tokens(request)
        position = request.num_cached - 1
        token_id = sample(logits_V, request.sampling, position, request.generated, request.prompt_ids, allowed_V)
        return DrawnToken(token_id, logprobs(logits_V, token_id, request.sampling))
    except RuntimeError as error:  # raised by torch if it cannot draw from these logits
        raise RequestFailure(f"its next token cannot be drawn: {error}") from error
