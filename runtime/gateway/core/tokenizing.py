"""`/tokenize` and `/detokenize`: text to the model's token ids and back.

A chat gets the ids that /v1/chat/completions would send, with tools and the template's options. A text that is surely
too long for the model is refused, as it is there.
Source: vLLM, "OpenAI-compatible server", for the two routes and their keys.
"""

from typing import Any

from runtime.gateway.core.body import DetokenizeBody, TokenizeBody, convert_body, parse_body, read_object
from runtime.gateway.core.calls import ServedModel, check_ids, check_length, check_model, check_num_messages
from runtime.gateway.core.conversation import Conversation, Json, render_chat_prompt
from runtime.gateway.edge.http_errors import invalid

__all__ = ["detokenize", "tokenize"]


def tokenize(raw: bytes, model: ServedModel) -> dict[str, Any]:
    """Return the answer to POST /tokenize. Raises ApiError if the body is wrong or its text too long."""
    document = read_object(raw)
    body = convert_body(document, TokenizeBody)
    check_model(body.model, model)
    ids = _encode(body, document, model)
    names = [model.tokenizer.spell(token_id).name for token_id in ids] if body.return_token_strs else None
    return {"count": len(ids), "max_model_len": model.max_request_tokens, "tokens": ids, "token_strs": names}


def detokenize(raw: bytes, model: ServedModel) -> dict[str, Any]:
    """Return the answer to POST /detokenize. Raises ApiError if the body is wrong or an id is unknown."""
    body = parse_body(raw, DetokenizeBody)
    check_model(body.model, model)
    if len(body.tokens) > model.max_request_tokens:
        raise invalid(f"give at most {model.max_request_tokens} tokens, which is a whole request", "tokens")
    ids = check_ids(body.tokens, model.tokenizer, "tokens") if body.tokens else []
    return {"prompt": model.tokenizer.decode(ids)}


def _encode(body: TokenizeBody, document: Json, model: ServedModel) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise invalid("give either prompt or messages", "prompt")
    if body.messages is None:
        assert body.prompt is not None
        check_length(body.prompt, model)
        plain = model.tokenizer.encode_whole if body.add_special_tokens is False else model.tokenizer.encode
        return plain(body.prompt)
    if body.add_special_tokens:
        raise invalid("add_special_tokens is only for prompt: a chat template writes its own", "add_special_tokens")
    check_num_messages(body.messages, model)
    conversation = Conversation(body.messages, document["messages"], body.tools or [], document.get("tools") or [])
    chat = render_chat_prompt(conversation, body.chat_template_kwargs or {}, model.tokenizer.chat_template)
    check_length(chat.text, model)
    return model.tokenizer.encode_whole(chat.text)
