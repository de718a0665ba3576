"""Real clients work: the openai package, benchmarks and agents."""

import asyncio
import json

import openai
import pytest

from tests.runtime.gateway.conftest import ADDRESS, PATIENCE_S

MODEL = "org/tiny"
EOS_ID = 1
USER = {"role": "user", "content": "mill"}
TOOLS = [{"type": "function", "function": {"name": "grind", "parameters": {"type": "object", "properties": {}}}}]
CALL = (
    "hm</think>ready<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>grind<｜tool▁sep｜>"
    '{"kg": 3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)


@pytest.fixture
def ids(tokenizer):
    """Return a function that encodes text without BOS."""
    return lambda text: tokenizer.encoder.encode(text, add_special_tokens=False).ids


def test_a_benchmark_reads_usage_from_every_chunk(client, pair, ids):
    """guidellm's request with `ignore_eos` gets usage in every chunk."""
    pair.reply = ids("tide")
    options = {"include_usage": True, "continuous_usage_stats": True}
    extra = {"ignore_eos": True, "min_tokens": 2, "stop_token_ids": [9]}

    stream = client.completions.create(
        model=MODEL, prompt="mill", max_tokens=9, stream=True, stream_options=options, extra_body=extra
    )

    used = [chunk.usage.completion_tokens for chunk in stream]
    assert used == sorted(used)
    assert used[-1] == len(pair.reply)
    sampling = pair.prefill.hear().sampling
    assert (sampling.stop_ids, sampling.min_tokens) == ([9], 2)


def test_choices_of_one_prompt_are_counted_once(client, pair, ids):
    """`n: 2` is two requests and one prompt in the usage, streamed or not."""
    pair.reply = [*ids("tide"), EOS_ID]

    answer = client.chat.completions.create(model=MODEL, messages=[USER], n=2, logit_bias={"5": 1})
    stream = client.chat.completions.create(model=MODEL, messages=[USER], n=2, stream=True)
    texts = ["", ""]
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""

    assert [choice.message.content for choice in answer.choices] == texts == ["tide", "tide"]
    prompt_ids = pair.prefill.hear().prompt_ids
    assert answer.usage.prompt_tokens == len(prompt_ids)
    assert answer.usage.completion_tokens == 2 * len(pair.reply)
    assert pair.prefill.hear().sampling.logit_bias == {5: 1.0}


def test_a_stop_string_waits_for_min_tokens(client, pair, ids):
    """A stop string before min_tokens does not end the answer."""
    pair.reply = [*ids("a"), *ids("b"), *ids("a"), *ids("c"), EOS_ID]

    answer = client.completions.create(model=MODEL, prompt="mill", stop="a", extra_body={"min_tokens": 1})

    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("ab", "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_gets_thoughts_words_and_calls(client, pair, ids, stream):
    """An agent gets thoughts, words and the call with its id, and sends the message back with the tool's answer."""
    pair.reply = [*ids(CALL), EOS_ID]
    wishes = {"model": MODEL, "messages": [USER], "tools": TOOLS, "tool_choice": "auto"}
    wishes["extra_body"] = {"thinking": {"type": "enabled"}}

    if stream:
        with client.chat.completions.stream(**wishes) as events:
            answer = events.get_final_completion()
    else:
        answer = client.chat.completions.create(**wishes)

    (choice,) = answer.choices
    (call,) = choice.message.tool_calls
    assert (choice.message.reasoning_content, choice.message.content) == ("hm", "ready")
    assert (call.function.name, json.loads(call.function.arguments)) == ("grind", {"kg": 3})
    assert choice.finish_reason == "tool_calls"
    if not stream:
        assert answer.usage.completion_tokens_details.reasoning_tokens == len(ids("hm</think>"))

    said = choice.message.model_dump()
    result = {"role": "tool", "tool_call_id": call.id, "content": "ground"}
    pair.reply = [*ids("done"), EOS_ID]
    again = client.chat.completions.create(**wishes | {"messages": [USER, said, result], "extra_body": None})
    assert again.choices[0].message.content == "done"


def test_turns_go_on_with_our_own_answers(gateway, pair, ids):
    """The asynchronous client sends three turns, each with all earlier messages as the SDK dumps them."""
    pair.reply = [*ids("tide"), EOS_ID]

    async def talk():
        base_url = f"http://{ADDRESS}:{gateway.ports['http']}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", timeout=PATIENCE_S, max_retries=0) as client:
            messages = [USER]
            for _ in range(3):
                answer = await client.chat.completions.create(model=MODEL, messages=messages, store=False)
                messages += [answer.choices[0].message.model_dump(), USER]
            return messages

    messages = asyncio.run(talk())
    assert [message["content"] for message in messages] == ["mill", *["tide", "mill"] * 3]
