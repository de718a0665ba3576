"""The ranks' work that an HTTP body asks for: prompts as token ids, sampling, stop strings, all within the limits.

Here the defaults are: temperature and top_p 1, all tokens (top_k), no penalties, no logprobs, a random seed, 16 tokens
for a completion (OpenAI's) and for a chat all that is left.
The invariant: len(prompt_ids) + sampling.max_tokens <= max_request_tokens.
It does not know HTTP, and it does not choose ranks.
"""

import secrets
from dataclasses import dataclass
from typing import Any

import jinja2

from runtime.gateway.body import Body, ChatBody, CompletionBody, Message, parse_body
from runtime.gateway.http_errors import ApiError, invalid, unknown_model
from runtime.gateway.tokenizer import Tokenizer
from runtime.protocol.messages import Sampling

__all__ = ["Call", "GenerationRequest", "ServedModel", "chat_call", "completion_call"]

DEFAULT_COMPLETION_TOKENS = 16


@dataclass(frozen=True)
class ServedModel:
    """The one model of this gateway. `max_request_tokens` counts prompt and output together."""

    name: str
    max_request_tokens: int
    tokenizer: Tokenizer


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt, ready for a prefill rank."""

    prompt_ids: list[int]
    sampling: Sampling
    stops: tuple[str, ...]


@dataclass(frozen=True)
class Call:
    """One HTTP request: choice `i` of its answer is what `requests[i]` generates."""

    requests: tuple[GenerationRequest, ...]
    stream: bool
    include_usage: bool


def completion_call(raw: bytes, model: ServedModel) -> Call:
    """Read the body of /v1/completions. Raise ApiError."""
    body = parse_body(raw, CompletionBody)
    _check_model(body, model)
    return _call(body, _prompts(body.prompt, model.tokenizer), body.max_tokens, DEFAULT_COMPLETION_TOKENS, model)


def chat_call(raw: bytes, model: ServedModel) -> Call:
    """Read the body of /v1/chat/completions. Raise ApiError."""
    body = parse_body(raw, ChatBody)
    _check_model(body, model)
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise invalid("max_tokens and max_completion_tokens are one parameter; give one of them", "max_tokens")
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs is only for logprobs: true", "top_logprobs")
    prompt_ids = _chat_prompt(body.messages, model.tokenizer)
    return _call(body, [prompt_ids], body.max_completion_tokens or body.max_tokens, model.max_request_tokens, model)


def _check_model(body: Body, model: ServedModel) -> None:
    if body.model != model.name:
        raise unknown_model(body.model, model.name)


def _prompts(prompt: str | list[Any], tokenizer: Tokenizer) -> list[list[int]]:
    """Return every form of `prompt` as lists of ids."""
    if isinstance(prompt, str):
        return [_encoded(prompt, tokenizer)]
    if prompt and all(isinstance(item, int) for item in prompt):
        return [_checked_ids(prompt, tokenizer)]
    if len({type(item) for item in prompt}) != 1:
        raise invalid("prompt must be a text, texts, token ids, or lists of token ids, and not empty", "prompt")
    return [_encoded(item, tokenizer) if isinstance(item, str) else _checked_ids(item, tokenizer) for item in prompt]


def _encoded(text: str, tokenizer: Tokenizer) -> list[int]:
    if not text:
        raise invalid("prompt is an empty text", "prompt")
    return tokenizer.encode(text)


def _checked_ids(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    if not ids:
        raise invalid("prompt is an empty list of token ids", "prompt")
    unknown = [token_id for token_id in ids if not 0 <= token_id < tokenizer.num_token_ids]
    if unknown:
        raise invalid(f"prompt holds the token id {unknown[0]}, ids go to {tokenizer.num_token_ids - 1}", "prompt")
    return ids


def _chat_prompt(messages: list[Message], tokenizer: Tokenizer) -> list[int]:
    if tokenizer.chat_template is None:
        raise invalid("this model has no chat template; use /v1/completions", "messages")
    try:
        return tokenizer.encode_chat([{"role": message.role, "content": _plain(message)} for message in messages])
    except jinja2.TemplateError as error:
        raise invalid(f"the model's chat template refuses these messages: {error}", "messages") from None


def _plain(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    return "".join(part.text for part in message.content)


def _call(
    body: CompletionBody | ChatBody, prompts: list[list[int]], asked: int | None, default: int, model: ServedModel
) -> Call:
    return Call(
        requests=tuple(
            GenerationRequest(
                prompt_ids=prompt_ids,
                sampling=_sampling(body, _max_tokens(len(prompt_ids), asked, default, model), model.tokenizer),
                stops=body.stop_strings(),
            )
            for prompt_ids in prompts
        ),
        stream=bool(body.stream),
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
    )


def _max_tokens(num_prompt_tokens: int, asked: int | None, default: int, model: ServedModel) -> int:
    """Return how many tokens to generate: as asked, else the default as far as there is room for it."""
    room = model.max_request_tokens - num_prompt_tokens
    wanted = asked if asked is not None else min(default, max(room, 1))
    if wanted > room:
        raise _too_long(num_prompt_tokens, wanted, model.max_request_tokens)
    return wanted


def _too_long(num_prompt_tokens: int, wanted: int, limit: int) -> ApiError:
    total = num_prompt_tokens + wanted
    return invalid(
        f"this model takes {limit:,} tokens, prompt and answer together; "
        f"{total:,} were asked for ({num_prompt_tokens:,} in the prompt, {wanted:,} to generate)",
        code="context_length_exceeded",
    )


def _sampling(body: CompletionBody | ChatBody, max_tokens: int, tokenizer: Tokenizer) -> Sampling:
    return Sampling(
        max_tokens=max_tokens,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=secrets.randbits(63) if body.seed is None else body.seed,
        stop_ids=list(tokenizer.stop_ids),
        top_k=max(body.top_k or 0, 0),
        frequency_penalty=body.frequency_penalty or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        num_logprobs=body.num_logprobs,
    )
