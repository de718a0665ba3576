"""The limits of a request: the ranges of its sampling, and the checks wherever it enters a process.

    HTTP body      `gateway/core/body.py` has the same ranges as types, and answers 400 with the field's name
    Prefill        a rank answers Failed
    Handover       a decode rank answers Refused

A rank checks again what the gateway has checked, because a bad value would end the rank and its unit: an id outside the
vocabulary, or a penalty that overflows. The ranges are those that `serving/sampling.py` can compute.
"""

import ipaddress
from typing import Annotated

import msgspec

from runtime.protocol.json_grammar import MAX_SCHEMA_BYTES
from runtime.protocol.messages import Sampling

__all__ = [
    "INT32_MAX",
    "MAX_LOGPROBS",
    "Bias",
    "NumLogprobs",
    "Penalty",
    "RepetitionPenalty",
    "Seed",
    "Temperature",
    "TopP",
    "explain_bad_address",
    "explain_uncomputable",
]

INT32_MAX = 2**31 - 1

Temperature = Annotated[float, msgspec.Meta(ge=0, le=2)]
TopP = Annotated[float, msgspec.Meta(gt=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, msgspec.Meta(ge=0.01, le=2)]  # 1e-39 and below overflow FP32; 0.01 is decisive
Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Bias = Annotated[float, msgspec.Meta(ge=-100, le=100)]  # OpenAI's; FP32 has room for more
MAX_LOGPROBS = 20
NumLogprobs = Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS)]


class _BoundedSampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`Sampling` with the range of each field."""

    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=INT32_MAX)]
    temperature: Temperature
    top_p: TopP
    seed: Seed
    stop_ids: list[int]
    top_k: Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]
    frequency_penalty: Penalty
    presence_penalty: Penalty
    repetition_penalty: RepetitionPenalty
    num_logprobs: NumLogprobs | None
    min_tokens: Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]
    logit_bias: dict[int, Bias]
    json_schema: Annotated[str, msgspec.Meta(max_length=MAX_SCHEMA_BYTES)] | None


def explain_uncomputable(
    prompt_ids: list[int], generated: list[int], sampling: Sampling, vocab_size: int, max_request_tokens: int
) -> str | None:
    """Return the reason why a rank cannot continue the prompt and the tokens `generated` after it; None if it can."""
    if not prompt_ids:
        return "its prompt has 0 tokens"
    if not all(min(ids) >= 0 and max(ids) < vocab_size for ids in (prompt_ids, generated) if ids):
        return f"it has a token id outside the vocabulary of {vocab_size:,}"
    if not all(0 <= token_id < vocab_size for token_id in sampling.logit_bias):
        return f"its logit_bias has a token id outside the vocabulary of {vocab_size:,}"
    try:
        msgspec.convert(msgspec.structs.asdict(sampling), _BoundedSampling)
    except msgspec.ValidationError as error:
        return f"its sampling is out of range: {error}"
    if len(generated) >= sampling.max_tokens:
        return f"it has {len(generated):,} tokens already of the {sampling.max_tokens:,} that it asks for"
    num_tokens = len(prompt_ids) + sampling.max_tokens
    if num_tokens > max_request_tokens:  # it would wait for pages for ever, and so would all requests behind it
        return f"it could grow to {num_tokens:,} tokens, this unit takes {max_request_tokens:,}"
    return None


def explain_bad_address(host: str | None, port: int | None) -> str | None:
    """Return the reason why the address cannot be called; None if it can. A rank has an IP address, never a name."""
    if host is None or port is None:
        return "no address"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"{host!r} is not an IP address"
    if address.is_unspecified or "%" in host:  # after % comes the name of one machine's interface
        return f"{host!r} is not one machine's address"
    if not 1 <= port <= 65535:
        return f"{port} is not a port"
    return None
