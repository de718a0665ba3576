"""Turn an HTTP body into requests for ranks: prompts as token ids, sampling and stop strings, all within the limits.

This file has the defaults: temperature and top_p of 1, all tokens (top_k), no penalties, no logprobs. The seed follows
from the Idempotency-Key, or is random without one. A completion gets 16 tokens (OpenAI's default), a chat all the room
that its prompt leaves.
The invariant: len(prompt_ids) + sampling.max_tokens <= max_request_tokens.
It does not know HTTP, and it does not choose ranks.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from runtime.gateway.core.answer_parts import AnswerForm
from runtime.gateway.core.body import ChatBody, CompletionBody, convert_body, parse_body, read_object
from runtime.gateway.core.conversation import ChatPrompt, Conversation, Json, Message, render_chat_prompt
from runtime.gateway.core.tokenizer import Tokenizer
from runtime.gateway.edge.http_errors import ApiError, invalid, unknown_model, unsupported, unusable_schema
from runtime.gateway.ranks.prefix_index import NO_HASHES, BlockHashes, hash_blocks
from runtime.gateway.tenants.keys import make_salt
from runtime.protocol.json_grammar import explain_unread_schema
from runtime.protocol.messages import Sampling

__all__ = [
    "Call",
    "GenerationRequest",
    "PendingCall",
    "ServedModel",
    "check_ids",
    "check_length",
    "check_model",
    "check_num_messages",
    "encode_prompts",
    "num_prompts",
    "read_chat",
    "read_chat_document",
    "read_completion",
]

DEFAULT_COMPLETION_TOKENS = 16


@dataclass(frozen=True)
class ServedModel:
    """The one model of this gateway. `max_request_tokens` counts prompt and output together."""

    name: str
    max_request_tokens: int
    tokenizer: Tokenizer


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt, ready for a prefill rank. `answer` is the form in which to read its text; None means plain text.

    The prompt reuses cached KV only of requests with the same `cache_salt`, which is a hash (`keys.py`). `block_hashes`
    are the gateway's own hashes of the prompt's blocks (`prefix_index.py`), which depend on the salt.
    """

    prompt_ids: list[int]
    sampling: Sampling
    stops: tuple[str, ...]
    answer: AnswerForm | None = None
    cache_salt: str = ""
    block_hashes: BlockHashes = field(default_factory=lambda: NO_HASHES, compare=False)  # implied by prompt and salt


@dataclass(frozen=True)
class Call:
    """One HTTP call. Choice `i` of its answer is what `requests[i]` generates.

    `num_prompt_tokens` counts a prompt once, however many choices it has.
    """

    requests: tuple[GenerationRequest, ...]
    num_prompt_tokens: int
    stream: bool
    include_usage: bool = False
    usage_in_every_chunk: bool = False
    echo: Json = field(default_factory=dict)  # fields of the body that the answer repeats
    body_salt: str | None = None  # `cache_salt` as the body has it

    def assign_tenant(self, name: str | None) -> "Call":
        """Return a copy with the tenant's cache salt and block hashes of each prompt, so that tenants share no KV.

        Hashing takes time and memory for each prompt.
        """
        salt = make_salt(name, self.body_salt)
        prompts = {id(request.prompt_ids): request.prompt_ids for request in self.requests}
        hashes = {key: hash_blocks(salt, prompt_ids) for key, prompt_ids in prompts.items()}
        return replace(
            self,
            requests=tuple(
                replace(request, cache_salt=salt, block_hashes=hashes[id(request.prompt_ids)])
                for request in self.requests
            ),
        )

    @property
    def max_tokens(self) -> int:
        """The most tokens, of prompts and answers together, that the call may use."""
        return self.num_prompt_tokens + sum(request.sampling.max_tokens for request in self.requests)


@dataclass(frozen=True)
class PendingCall:
    """A checked body whose prompts are not encoded yet, so that refusing the body for lack of room costs no encoding.

    `prepare` encodes the prompts and returns the call, or raises ApiError. Encoding takes time and memory for each
    choice.
    """

    num_choices: int
    prepare: Callable[[], Call]


def read_completion(raw: bytes, model: ServedModel, seed: int | None = None) -> PendingCall:
    """Return the pending call in a body of /v1/completions. A seed in the body takes precedence over `seed`.

    Raises ApiError if the body is wrong, or asks for something that is not supported.
    """
    body = parse_body(raw, CompletionBody)
    check_model(body.model, model)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise unsupported("best_of is not supported by this server; leave it out", "best_of")
    return PendingCall(num_prompts(body.prompt) * (body.n or 1), partial(_build_completion_call, body, model, seed))


def read_chat(raw: bytes, model: ServedModel, seed: int | None = None) -> PendingCall:
    """Return the pending call in a body of /v1/chat/completions. A seed in the body takes precedence over `seed`.

    Raises ApiError if the body is wrong, or asks for something that is not supported.
    """
    return read_chat_document(read_object(raw), model, seed)


def read_chat_document(document: Json, model: ServedModel, seed: int | None = None) -> PendingCall:
    """Return the pending call in a body of /v1/chat/completions that is already parsed as a JSON object.

    Raises ApiError if the body is wrong, or asks for something that is not supported.
    """
    body = convert_body(document, ChatBody)
    check_model(body.model, model)
    requested_tokens = body.max_completion_tokens or body.max_tokens
    if body.max_tokens not in (None, requested_tokens):
        raise invalid("max_tokens and max_completion_tokens are one parameter; give one of them", "max_tokens")
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs is only for logprobs: true", "top_logprobs")
    return PendingCall(body.n or 1, partial(_build_chat_call, body, document, requested_tokens, model, seed))


def check_model(name: str | None, model: ServedModel) -> None:
    """Raises ApiError if the body names a model that is not served."""
    if name not in (None, model.name):
        raise unknown_model(name, model.name)


def encode_prompts(prompt: str | list[Any], model: ServedModel, param: str = "prompt") -> list[list[int]]:
    """Return the token ids of each prompt, for all forms that `prompt` may have.

    Raises ApiError, with the name `param`, if a prompt is too long or has an unknown token.
    """
    if isinstance(prompt, str):
        return [_encode_text(prompt, model, param)]
    if prompt and all(isinstance(item, int) for item in prompt):
        return [check_ids(prompt, model.tokenizer, param)]
    if len({type(item) for item in prompt}) != 1:
        raise invalid(f"{param} must be a text, texts, token ids, or lists of token ids, and not empty", param)
    return [
        _encode_text(item, model, param) if isinstance(item, str) else check_ids(item, model.tokenizer, param)
        for item in prompt
    ]


def num_prompts(prompt: str | list[Any]) -> int:
    """Return the number of prompts in `prompt`, even if it is malformed.

    A list that begins with a number is one prompt.
    """
    is_one = isinstance(prompt, str) or all(isinstance(item, int) for item in prompt[:1])
    return 1 if is_one else len(prompt)


def _build_completion_call(body: CompletionBody, model: ServedModel, seed: int | None) -> Call:
    prompts = encode_prompts(body.prompt, model)
    return _build_call(body, prompts, body.max_tokens, DEFAULT_COMPLETION_TOKENS, model, seed)


def _build_chat_call(
    body: ChatBody, document: Json, requested_tokens: int | None, model: ServedModel, seed: int | None
) -> Call:
    check_num_messages(body.messages, model)
    prompt = _render_prompt(body, document, model.tokenizer)
    json_schema = _read_json_schema(body, prompt.answer)
    check_length(prompt.text, model)
    prompt_ids = model.tokenizer.encode_whole(prompt.text)
    return _build_call(
        body, [prompt_ids], requested_tokens, model.max_request_tokens, model, seed, prompt.answer, json_schema
    )


def _encode_text(text: str, model: ServedModel, param: str) -> list[int]:
    if not text:
        raise invalid(f"{param} is an empty text", param)
    check_length(text, model)
    return model.tokenizer.encode(text)


def check_length(text: str, model: ServedModel) -> None:
    """Raises ApiError if the text surely has too many tokens. Not all of it is encoded."""
    limit = model.max_request_tokens
    if model.tokenizer.is_too_long(text, limit):
        rule = f"this model takes {limit:,} tokens, prompt and answer together; this prompt of {len(text):,} characters"
        raise invalid(f"{rule} has more", code="context_length_exceeded")


def check_num_messages(messages: Sequence[Message], model: ServedModel) -> None:
    """Raises ApiError if there are more messages than the model takes tokens.

    Called before the template renders them.
    """
    limit = model.max_request_tokens
    if len(messages) > limit:
        rule = f"this model takes {limit:,} tokens, prompt and answer together; {len(messages):,} messages have more"
        raise invalid(rule, "messages", "context_length_exceeded")


def check_ids(ids: Sequence[int], tokenizer: Tokenizer, param: str = "prompt") -> list[int]:
    """Return the ids as a list. Raises ApiError, with the name `param`, if there are no ids or one is unknown."""
    if not ids:
        raise invalid(f"{param} is an empty list of token ids", param)
    unknown = [token_id for token_id in ids if not 0 <= token_id < tokenizer.num_token_ids]
    if unknown:
        raise invalid(f"{param} holds the token id {unknown[0]}, ids go to {tokenizer.num_token_ids - 1}", param)
    return list(ids)


def _render_prompt(body: ChatBody, document: Json, tokenizer: Tokenizer) -> ChatPrompt:
    options = body.template_options
    if body.thinking is not None:
        options |= _thinking_option(body.thinking.type == "enabled", tokenizer)
    tools, raw_tools = (body.tools or [], document.get("tools") or []) if _read_tool_choice(body) else ([], [])
    conversation = Conversation(body.messages, document["messages"], tools, raw_tools)
    return render_chat_prompt(conversation, options, tokenizer.chat_template)


def _read_tool_choice(body: ChatBody) -> bool:
    """Return whether the model may call tools. Raises ApiError if the body demands a call."""
    if body.tool_choice not in (None, "none", "auto"):
        raise unsupported("tool_choice is only supported as none or auto by this server", "tool_choice")
    return bool(body.tools) and body.tool_choice != "none"


def _read_json_schema(body: ChatBody, answer: AnswerForm) -> str | None:
    """Return the JSON schema that the answer must follow, as one text for all choices; None if there is none.

    Raises ApiError if the answer cannot be JSON or the schema is too large. `schemas.py` checks its content.
    """
    schema = body.json_schema()
    if schema is None:
        return None
    conflicts = {
        "a model that thinks first": answer.opening == "thinking",
        "tools": answer.tool_calls is not None,
        "ignore_eos": bool(body.ignore_eos),
        "min_tokens": bool(body.min_tokens),
    }
    for name, is_there in conflicts.items():
        if is_there:
            raise unsupported(f"response_format in JSON is not supported together with {name}", "response_format")
    reason = explain_unread_schema(schema)
    if reason is not None:
        raise unusable_schema(reason)
    return schema


def _thinking_option(thinks: bool, tokenizer: Tokenizer) -> dict[str, bool]:
    """Return the template's variable that turns thinking on or off, as `thinks` says.

    Return no variable if the template has none but always does what `thinks` says. Raises ApiError if there is no
    template, or if it always does the opposite.
    """
    template = tokenizer.chat_template
    if template is not None and "thinking" in template.options:
        return {"thinking": thinks}
    if template is not None and template.thinks == thinks:
        return {}
    raise unsupported("thinking is not a choice that this model's chat template gives", "thinking")


def _build_call(
    body: CompletionBody | ChatBody,
    prompts: list[list[int]],
    requested_tokens: int | None,
    default: int,
    model: ServedModel,
    seed: int | None,
    answer: AnswerForm | None = None,
    json_schema: str | None = None,
) -> Call:
    seed = seed if body.seed is None else body.seed
    limits = [_choose_max_tokens(len(prompt_ids), requested_tokens, default, model) for prompt_ids in prompts]
    _check_ids_of_sampling(body, model.tokenizer)
    options = body.stream_options
    return Call(
        requests=tuple(
            GenerationRequest(
                prompt_ids,
                _build_sampling(body, limit, _choice_seed(seed, choice), model.tokenizer, json_schema),
                _stop_strings(body, answer),
                answer,
            )
            for prompt_ids, limit in zip(prompts, limits, strict=True)
            for choice in range(body.n or 1)
        ),
        num_prompt_tokens=sum(map(len, prompts)),
        stream=bool(body.stream),
        include_usage=options is not None and bool(options.include_usage),
        usage_in_every_chunk=options is not None and bool(options.include_usage and options.continuous_usage_stats),
        body_salt=body.cache_salt,
    )


def _stop_strings(body: CompletionBody | ChatBody, answer: AnswerForm | None) -> tuple[str, ...]:
    """Return the texts that end an answer. Without parallel tool calls, the end mark of a call is one of them."""
    is_single = isinstance(body, ChatBody) and body.parallel_tool_calls is False
    if is_single and answer is not None and answer.tool_calls is not None:
        return (*body.stop_strings(), answer.call_end)
    return body.stop_strings()


def _check_ids_of_sampling(body: CompletionBody | ChatBody, tokenizer: Tokenizer) -> None:
    for param, ids in (("logit_bias", body.logit_bias), ("stop_token_ids", body.stop_token_ids)):
        if ids:
            check_ids(list(ids), tokenizer, param)


def _choose_max_tokens(num_prompt_tokens: int, requested_tokens: int | None, default: int, model: ServedModel) -> int:
    """Return how many tokens to generate: the requested number, or else `default`, cut to the room beside the prompt.

    Raises ApiError if the prompt leaves no room for the requested number, or for one token.
    """
    room = model.max_request_tokens - num_prompt_tokens
    num_wanted = requested_tokens if requested_tokens is not None else min(default, max(room, 1))
    if num_wanted > room:
        raise _context_error(num_prompt_tokens, num_wanted, model.max_request_tokens)
    return num_wanted


def _context_error(num_prompt_tokens: int, num_wanted: int, limit: int) -> ApiError:
    total = num_prompt_tokens + num_wanted
    return invalid(
        f"this model takes {limit:,} tokens, prompt and answer together; "
        f"{total:,} were asked for ({num_prompt_tokens:,} in the prompt, {num_wanted:,} to generate)",
        code="context_length_exceeded",
    )


def _build_sampling(
    body: CompletionBody | ChatBody, max_tokens: int, seed: int, tokenizer: Tokenizer, json_schema: str | None
) -> Sampling:
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise invalid(f"min_tokens ({min_tokens:,}) is over the {max_tokens:,} tokens to generate", "min_tokens")
    end_of_text = () if body.ignore_eos else tokenizer.stop_ids
    is_greedy = body.top_p == 0  # top_p of 0 keeps only the likeliest token
    return Sampling(
        max_tokens=max_tokens,
        temperature=0.0 if is_greedy else 1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if is_greedy or body.top_p is None else body.top_p,
        seed=seed,
        stop_ids=[*end_of_text, *(body.stop_token_ids or ())],
        top_k=max(body.top_k or 0, 0),
        frequency_penalty=body.frequency_penalty or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        num_logprobs=body.num_logprobs,
        min_tokens=min_tokens,
        logit_bias=body.logit_bias or {},
        json_schema=json_schema,
    )


def _choice_seed(seed: int | None, choice: int) -> int:
    """Return the seed of a prompt's `choice`-th answer: consecutive from `seed` and wrapping around, or else random."""
    return secrets.randbits(63) if seed is None else (seed + choice + 2**63) % 2**64 - 2**63
