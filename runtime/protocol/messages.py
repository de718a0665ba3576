"""The messages between gateway, prefill ranks and decode ranks, in one file that shows the life of a request.

    rank    -> gateway    Hello, again once it has loaded; State when it changes, then Token, Embedding and Failed for
                          requests, and PrefixHit before the first token of one; Load now and then, when what the rank
                          has to do has changed; StepTime now and then; Pong. On a connection that follows another one:
                          Renewal first, and Moved last on the old one
    gateway -> rank       Prefill and Embed start a request (at a prefill or mixed rank); Expect announces its KV to a
                          decode rank; Abort ends one; Dismissed lets a draining rank end; Rejected ends it at once;
                          Wait sends it no requests; Ping asks whether it lives; Renewed answers Renewal
    prefill -> decode     Offer, answered by Proceed; then Pieces of the prompt's latent KV as they are computed, then
                          Handover, answered by Accepted. Refused may come instead of either answer, or between them
    node    -> leader     Claim once; answered by Wait, or Place, whenever that changes, or Rejected

A request: gateway --Expect--> decode rank
           gateway --Prefill--> prefill rank --Token (the first)--> gateway
                                prefill rank --Offer--> decode rank --Proceed--> prefill rank
                                prefill rank --KV, Handover--> decode rank --Token, Token, ...--> gateway
"""

from typing import Annotated, Literal

import msgspec

__all__ = [
    "TENANT_DIGITS",
    "Abort",
    "Accepted",
    "Amount",
    "Claim",
    "Dismissed",
    "Embed",
    "Embedding",
    "Expect",
    "Failed",
    "FromDecode",
    "FromGateway",
    "FromLeader",
    "FromPrefill",
    "FromRank",
    "Handover",
    "HandoverReply",
    "Hello",
    "Load",
    "Logprobs",
    "Moved",
    "Offer",
    "Piece",
    "Ping",
    "Place",
    "Pong",
    "Prefill",
    "PrefixHit",
    "Proceed",
    "RankState",
    "Refused",
    "Rejected",
    "Renewal",
    "Renewed",
    "Sampling",
    "State",
    "StepTime",
    "Token",
    "Wait",
    "gateway_name",
]

RankState = Literal["loading", "joining", "ready", "draining"]
FinishReason = Literal["stop", "length"]
Amount = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
TENANT_DIGITS = 16  # of a salt, hexadecimal; prompts whose salts begin alike share room on a disk, not KV


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to draw the next token. Temperature 0 is greedy; `stop_ids` end the text (eos), and are not part of it.

    `top_k` 0 keeps all tokens. Two penalties are subtracted from the logits of generated tokens: the frequency penalty
    once for each occurrence, the presence penalty once. The repetition penalty (1: none) counts the prompt's tokens
    too: it divides their positive logits and multiplies the negative ones. With `num_logprobs` each token comes with
    its logprob and with this many of the likeliest. `stop_ids` cannot be drawn before there are `min_tokens`.
    `logit_bias` is added to the logits of its token ids. With a `json_schema` (its text) the answer is JSON that the
    schema allows.
    """

    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    stop_ids: list[int]
    top_k: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    num_logprobs: int | None = None
    min_tokens: int = 0
    logit_bias: dict[int, float] = {}  # msgspec copies the default
    json_schema: str | None = None


class Logprobs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The natural logarithm of a token's probability, and of the likeliest tokens' in its place, best first."""

    chosen: float
    best: list[tuple[int, float]]


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=str.lower):
    """A message on the wire. Its tag is its class's lower-case name."""


class Hello(_Message):
    """A rank introduces itself. `kv_host` is None unless it is a decode rank, which receives KV there.

    `for_node` is the planned node that this node, a spare, replaces. When the rank has loaded, it sends Hello again if
    it has digests to compare. Only `kv_digest` differs then: it covers the plan and, if the plan names no weights, the
    unit's weights. If the rank has read tokenizer.json, that file's digest follows after a space.
    """

    unit: str
    phase: Literal["prefill", "decode", "mixed"]
    rank: int
    num_ranks: int
    node: str
    pid: int
    unit_digest: str
    kv_digest: str
    kv_host: str | None
    kv_port: int | None
    for_node: str | None = None

    def add_loaded_digests(self, kv_digest: str, tokenizer_digest: str | None) -> "Hello":
        """Return this Hello with the digests of what the rank has loaded."""
        said = kv_digest if tokenizer_digest is None else f"{kv_digest} {tokenizer_digest}"
        return msgspec.structs.replace(self, kv_digest=said)

    def loaded_digests(self) -> tuple[str, str | None]:
        """Return (KV digest, tokenizer's digest or None), which `add_loaded_digests` has put together."""
        kv_digest, _, tokenizer_digest = self.kv_digest.partition(" ")
        return kv_digest, tokenizer_digest or None


class Renewal(_Message):
    """A connected rank has called again, with its current certificate, and wants to continue on this connection."""

    hello: Hello


class Renewed(_Message):
    """The answer to Renewal: the rank may continue here, once it has sent the ticket on its old connection."""

    ticket: str


class Moved(_Message):
    """The rank's last message on this connection. Later ones come on the connection that got the ticket."""

    ticket: str


class State(_Message):
    """The rank's own state. The unit is ready when all its ranks are. `loaded` is the loaded share of its tensors."""

    state: RankState
    loaded: float = 1.0


class Load(_Message):
    """A rank's present work, for all gateways together.

    `num_waiting` of its `num_requests` are outside the cache. `prompt_tokens` are not computed yet, and core attention
    will form `attention_pairs` for them. `kv_tokens` counts the tokens of all requests so far, each request's in whole
    pages. `arrived` are the requests that no earlier Load on this connection included.
    """

    num_requests: Amount
    num_waiting: Amount
    prompt_tokens: Amount
    attention_pairs: Amount
    kv_tokens: Amount
    arrived: list[str]


class StepTime(_Message):
    """The recent time of a rank's own work in a step, without its waits for peers, in microseconds."""

    own_us: Amount


class Token(_Message):
    """Token number `index`, from 0, of a request's answer.

    With `finish_reason` "stop", `token_id` is the stop id itself and not text.
    """

    request_id: str
    index: int
    token_id: int
    finish_reason: FinishReason | None
    logprobs: Logprobs | None = None


class PrefixHit(_Message):
    """The rank had the latents of the prompt's first `num_tokens` tokens. The message is not sent for 0 tokens."""

    request_id: str
    num_tokens: Amount


class Failed(_Message):
    """The request ended without an answer.

    If it `may_retry`, the fault is the rank's, and another rank may answer it.
    """

    request_id: str
    reason: str
    may_retry: bool = False


class Prefill(_Message):
    """Compute this prompt, draw the next token, then hand the request over to the decode rank at `kv_host:kv_port`.

    The decode rank accepts the KV with the ticket `kv_ticket`. Host, port and ticket are None at a mixed rank, which
    continues the request itself. A request that lost its ranks comes with the tokens that they `generated`, and its
    next token is drawn. The request finds only the KV of requests with the same `cache_salt`. The salt's first
    TENANT_DIGITS name the tenant.
    """

    request_id: str
    prompt_ids: list[int]
    sampling: Sampling
    kv_host: str | None = None
    kv_port: int | None = None
    kv_ticket: str | None = None
    generated: list[int] = []  # msgspec copies the default
    cache_salt: str = ""


class Expect(_Message):
    """Accept this request's KV, once, from the peer that shows the ticket."""

    request_id: str
    ticket: str


class Embed(_Message):
    """Compute this prompt and send the embedding of its last token; no tokens follow."""

    request_id: str
    prompt_ids: list[int]


class Embedding(_Message):
    """The answer to Embed: `[hidden_size]` in FP32, little-endian, of length 1."""

    request_id: str
    values: bytes


class Abort(_Message):
    """Nobody waits for this request any more, so the rank can drop it."""

    request_id: str


class Ping(_Message):
    """The gateway asks for a Pong, because it has heard nothing from the rank for a while."""


class Pong(_Message):
    """The answer to Ping: the rank's process runs, even if a step takes long."""


class Dismissed(_Message):
    """The rank is draining, and no request that the gateway sent needs it any more."""


class Rejected(_Message):
    """The called process refuses this rank or node, and would refuse it again."""

    reason: str


class Offer(_Message):
    """A request's KV comes next: latents of `shape` `[num_layers, num_cached, latent_dim]`.

    The payload lets the decode rank find the latents that it has already. It holds the root of the chain of block
    hashes, then the hashes of the whole blocks before the last cached token. Without a payload the request shares
    nothing.
    """

    request_id: str
    ticket: str
    kv_digest: str
    shape: list[int]
    dtype: Literal["fp32", "bf16"]


class Piece(_Message):
    """The payload is `[num_tokens, latent_dim]` of one layer from position `start` on, C order; `checksum` its CRC-32.

    The pieces of a layer come in order and without gaps; layers may take turns. A piece that was written to the decode
    rank's memory has no payload.
    """

    layer: Amount
    start: Amount
    num_tokens: Amount
    checksum: Amount


class Proceed(_Message):
    """The decode rank takes an offer. It has the latents of tokens before `start`; the others are to be sent.

    With an `address`, a prefill rank on the same machine may write the latents there, all layers of those tokens.
    `agent` is NIXL's description of that memory, in base64. Otherwise Pieces bring the latents.
    """

    request_id: str
    start: Amount
    agent: str | None = None
    address: Amount | None = None


class Handover(_Message):
    """A request moves to decode: all of its KV has been sent.

    The KV covers at least the prompt's tokens, and never the last token in `generated`. The decode rank computes the
    missing tokens before it draws.
    """

    request_id: str
    prompt_ids: list[int]
    generated: list[int]
    sampling: Sampling
    cache_salt: str = ""


class Accepted(_Message):
    """The decode rank has the request and its KV."""

    request_id: str


class Refused(_Message):
    """The decode rank does not take the request."""

    request_id: str
    reason: str


class Claim(_Message):
    """A node of a unit asks for its place in the unit. `address` tells pods on one node apart."""

    unit_digest: str
    node: str
    address: str


class Place(_Message):
    """Sent to a node: its place in the unit is `number`."""

    number: int


class Wait(_Message):
    """Tells a node that there is no place now, or a rank that it gets no work because of the weights that it loaded."""

    reason: str


FromRank = Hello | Renewal | Moved | State | Load | StepTime | PrefixHit | Token | Embedding | Failed | Pong
FromGateway = Prefill | Embed | Expect | Abort | Dismissed | Rejected | Wait | Renewed | Ping
FromPrefill = Offer | Piece | Handover
HandoverReply = Accepted | Refused
FromDecode = Proceed | Accepted | Refused
FromLeader = Place | Wait | Rejected


def gateway_name(request_id: str) -> str:
    """Return the name of a request's gateway. Ids are GATEWAY-NUMBER, because several gateways use the same ranks."""
    return request_id.rpartition("-")[0]
