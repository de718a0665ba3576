"""Embeddings: one vector of length 1 for each prompt, the hidden state of its last token before the head.

    body -> prompts of token ids -> Embed to prefill (or mixed) ranks -> Embedding from each -> OpenAI's JSON

Why the last token: only there has a causal model read the whole prompt. vLLM and SGLang by default do the same with
generating models, and normalise.
A prompt whose rank is lost goes to another rank, like a request for tokens (`resumption.py`).
The invariant: all of a call's prompts are answered, or the call fails and no rank works on any of them.

Sources: OpenAI API reference, "Create embeddings"; vLLM docs, "Pooling models": embed, LAST, normalised.
"""

import asyncio
import base64
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runtime.gateway.core.body import EmbeddingsBody, parse_body
from runtime.gateway.core.calls import ServedModel, check_model, encode_prompts, num_prompts
from runtime.gateway.core.in_flight import new_request_id
from runtime.gateway.core.resumption import MAX_RESUMPTIONS
from runtime.gateway.edge.http_errors import invalid, rank_failed
from runtime.gateway.ranks.rank_connection import Rank, RankReply
from runtime.gateway.ranks.rank_load import RequestSize
from runtime.gateway.telemetry.metrics import GatewayMetrics
from runtime.gateway.tenants.admission import Admission
from runtime.gateway.tenants.resumption_queue import ResumptionQueue
from runtime.protocol.messages import Abort, Embed, Embedding, Failed

__all__ = ["EmbeddingCall", "EmbeddingsRequest", "embeddings_json", "read_embeddings"]

MAX_INPUTS = 2048  # OpenAI's
VALUE_BYTES = 4
TOLERANCE = 1e-3  # of a vector's length, which FP32 misses by a millionth


@dataclass(frozen=True)
class EmbeddingsRequest:
    """The prompts of a body. `is_base64` asks for embeddings as base64 of FP32 instead of numbers."""

    prompts: list[list[int]]
    is_base64: bool

    @property
    def num_tokens(self) -> int:
        """The number of tokens of all prompts together."""
        return sum(map(len, self.prompts))


def read_embeddings(raw: bytes, model: ServedModel) -> EmbeddingsRequest:
    """Return the prompts in a body of /v1/embeddings. Raises ApiError if the body is wrong or a prompt is too long."""
    body = parse_body(raw, EmbeddingsBody)
    check_model(body.model, model)
    if num_prompts(body.input) > MAX_INPUTS:
        raise invalid(f"input has over {MAX_INPUTS:,} prompts", "input")
    prompts = encode_prompts(body.input, model, "input")
    longest = model.max_request_tokens - 1  # ranks count one token of an answer, too
    for prompt_ids in prompts:
        if len(prompt_ids) > longest:
            rule = f"this model takes prompts of at most {longest:,} tokens"
            raise invalid(f"{rule}, this one has {len(prompt_ids):,}", "input", "context_length_exceeded")
    return EmbeddingsRequest(prompts, body.encoding_format == "base64")


def embeddings_json(request: EmbeddingsRequest, embeddings: list[bytes], model_name: str) -> dict[str, Any]:
    """Return the answer, with the vectors in the order of the prompts."""
    vectors = [_encode_base64(values) if request.is_base64 else _unpack(values) for values in embeddings]
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": each} for index, each in enumerate(vectors)],
        "model": model_name,
        "usage": {"prompt_tokens": request.num_tokens, "total_tokens": request.num_tokens},
    }


class EmbeddingCall:
    """The prompts of one embeddings call while ranks compute them. Its creator must close it."""

    def __init__(
        self, prompts: list[list[int]], size: int, caller: str, admission: Admission, metrics: GatewayMetrics
    ) -> None:
        """Queue every prompt. Raises ApiError if there is no room for them."""
        self._queue = admission.embeddings
        self._queue.check(caller, len(prompts))
        self._metrics = metrics
        self._prompts = [_Prompt(prompt_ids, size, admission.resumptions, metrics) for prompt_ids in prompts]
        metrics.waiting.inc(len(prompts))
        self._turns = [
            self._queue.join(caller, len(prompt_ids), prompt.try_to_start, prompt.give_up)
            for prompt_ids, prompt in zip(prompts, self._prompts, strict=True)
        ]

    @property
    def units(self) -> dict[str, str]:
        """Unit name -> unit digest, for the units whose ranks got the prompts."""
        return {unit: digest for prompt in self._prompts for unit, digest in prompt.units.items()}

    async def gather(self) -> list[bytes]:
        """Return each prompt's embedding. Raises ApiError if one failed."""
        return list(await asyncio.gather(*(prompt.answer for prompt in self._prompts)))

    def close(self) -> None:
        """Abort the prompts that are not answered yet."""
        for prompt, turn in zip(self._prompts, self._turns, strict=True):
            prompt.close()
            self._queue.end(turn, turn.cost)
        self._metrics.waiting.dec(len(self._prompts))


class _Prompt:
    """One prompt to embed: at a rank, or queued for another rank after the first was lost."""

    def __init__(self, prompt_ids: list[int], size: int, resumptions: ResumptionQueue, metrics: GatewayMetrics) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.units: dict[str, str] = {}
        self._prompt_ids, self._size, self._resumptions, self._metrics = prompt_ids, size, resumptions, metrics
        self._request_id = ""
        self._rank: Rank | None = None
        self._num_resumptions = 0
        self._leave_queue: Callable[[], None] = lambda: None

    def try_to_start(self) -> bool:
        """Send the prompt to a rank that has room. Return whether any rank had room."""
        registry, size = self._resumptions.registry, RequestSize(len(self._prompt_ids), 0)
        rank = registry.choose_embedding_rank(size) if registry.embedding_room() else None
        if rank is None:
            return False
        self._rank, self._request_id = rank, new_request_id()
        self.units[rank.hello.unit] = rank.hello.unit_digest
        rank.subscribe(self._request_id, size, self._receive)
        rank.send(Embed(self._request_id, self._prompt_ids))
        return True

    def give_up(self, reason: str) -> None:
        """Fail the prompt, for this reason."""
        if not self.answer.done():
            self._metrics.failed.inc()
            self.answer.set_exception(rank_failed(reason))

    def close(self) -> None:
        """Abort the prompt if it is not answered yet."""
        self.answer.cancel()
        self._leave_queue()
        if self._rank is not None and self._rank.unsubscribe(self._request_id):
            self._rank.send(Abort(self._request_id))

    def _receive(self, rank: Rank, message: RankReply) -> None:
        rank.unsubscribe(message.request_id)
        if self.answer.done():
            return
        if isinstance(message, Embedding) and _is_embedding(message.values, self._size):
            self.answer.set_result(message.values)
        elif isinstance(message, Failed) and message.may_retry and self._num_resumptions < MAX_RESUMPTIONS:
            self._num_resumptions += 1
            self._leave_queue = self._resumptions.join(
                self.try_to_start, lambda why: self.give_up(f"{message.reason}, and {why}"), self._num_resumptions - 1
            )
        else:
            self.give_up(message.reason if isinstance(message, Failed) else f"{rank} said no embedding")


def _is_embedding(values: bytes, size: int) -> bool:
    """Return whether the bytes are a vector of `size` values and of length 1."""
    return len(values) == size * VALUE_BYTES and math.isclose(math.hypot(*_unpack(values)), 1.0, rel_tol=TOLERANCE)


def _unpack(values: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(values) // VALUE_BYTES}f", values))


def _encode_base64(values: bytes) -> str:
    return base64.b64encode(values).decode()
