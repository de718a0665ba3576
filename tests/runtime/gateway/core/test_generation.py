"""An answer between its rank and its reader, without sockets: its bounds and its ends."""

import asyncio
import json
from collections import Counter
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from runtime.gateway.core import generation
from runtime.gateway.core.calls import Call, GenerationRequest, ServedModel, read_chat
from runtime.gateway.core.generation import Choice, Generation
from runtime.gateway.core.tokenizer import load_tokenizer
from runtime.gateway.edge.http_errors import ApiError
from runtime.gateway.ranks.prefix_index import PrefixIndex
from runtime.gateway.ranks.rank_connection import Rank
from runtime.gateway.ranks.rank_load import RankLimits
from runtime.gateway.telemetry.metrics import GatewayMetrics
from runtime.gateway.tenants.admission import Admission, QueueLimits
from runtime.gateway.tenants.resumption_queue import ResumptionQueue
from runtime.protocol.messages import Hello, Logprobs, Sampling, Token
from tests.runtime.gateway.conftest import TOOL_TEMPLATE

HELLO = Hello("mixed-0", "mixed", 0, 1, "node-0", 1, "sha256:unit", "sha256:kv", None, None)


class Unit:
    """A mixed rank that the test plays. Every answer is of `a`, one token at a time."""

    def __init__(self):
        writer = SimpleNamespace(
            write=lambda data: None, transport=SimpleNamespace(get_write_buffer_size=lambda: 0, abort=lambda: None)
        )
        self.rank = Rank(HELLO, writer, RankLimits(16, 4096, 0), PrefixIndex(64))
        self.measured = CollectorRegistry()
        self._metrics = GatewayMetrics(self.measured, "tiny")
        self._num_said = Counter()
        self._tokenizer = SimpleNamespace(token_bytes=[b"a", b"b"], num_token_ids=2)

    def ask(self, *stops, num_logprobs=None):
        registry = SimpleNamespace(
            room=lambda size: 1,
            choose_ranks=lambda size, names: (self.rank, self.rank),
            num_answer_ranks=lambda: 1,
            num_prompt_ranks=lambda: 1,
            embedding_room=lambda size: 1,
            least_prompt_tokens=lambda: 0,
            call_on_room=lambda call: None,
        )
        resumptions = ResumptionQueue(registry, self._metrics, wait_s=1)
        sampling = Sampling(100, 0.0, 1.0, 0, [], num_logprobs=num_logprobs)
        request = GenerationRequest([0], sampling, stops)
        call = Call((request,), num_prompt_tokens=1, stream=True)
        admission = Admission(resumptions, self._metrics, QueueLimits(0, 256, 1.0))
        return Generation(call, "caller", admission, self._tokenizer, self._metrics)

    def say(self, token_id, finish_reason=None, logprobs=None):
        """Send one token of every request that somebody still reads."""
        for request_id in list(self.rank._listeners):
            index = self._num_said[request_id]
            self._num_said[request_id] += 1
            self.rank.handle(Token(request_id, index, token_id, finish_reason, logprobs))

    def measure(self, name):
        return self.measured.get_sample_value(f"tidemill_{name}", {"model_name": "tiny"})


async def read(answer):
    """Return the text up to its end, and the error that ended it."""
    text = ""
    try:
        while (delta := await answer.next_delta()) is not None:
            text += delta.text
    except ApiError as error:
        return text, error
    return text, None


def test_a_reader_that_stalls_is_given_up(monkeypatch):
    """A reader that stalls is given up at a bound, its rank hears Abort, and it reads the reason last."""
    monkeypatch.setattr(generation, "MAX_UNREAD_TOKENS", 5)

    async def run():
        unit = Unit()
        answer = unit.ask()
        for _ in range(50):
            unit.say(0)
        assert len(answer._inbox) == 6
        assert unit.rank.load.work.num_requests == 0
        return await read(answer)

    text, error = asyncio.run(run())

    assert text == "aaaaa"
    assert (error.status, error.message) == (503, "the request was given up: its client does not read the answer")


def test_a_last_token_says_that_it_is_the_last():
    """A last token without a finish_reason fails the request, so that its caller does not wait for ever."""

    async def run():
        unit = Unit()
        answer = unit.ask()
        for _ in range(100):
            unit.say(0)
        return await asyncio.wait_for(read(answer), 5)

    text, error = asyncio.run(run())

    assert (text, error.code) == ("a" * 99, "rank_failed")
    assert "not that it is the last" in error.message


def test_a_reader_that_keeps_up_reads_any_number(monkeypatch):
    """A reader that keeps up reads any number of tokens."""
    monkeypatch.setattr(generation, "MAX_UNREAD_TOKENS", 5)

    async def run():
        unit = Unit()
        answer = unit.ask()
        reading = asyncio.ensure_future(read(answer))
        for _ in range(50):
            unit.say(0)
            await asyncio.sleep(0)
        unit.say(1, "length")
        return await reading

    assert asyncio.run(run()) == ("a" * 50 + "b", None)


def test_tokens_that_came_together_are_read_without_waiting():
    """Tokens that came together are read at once, and a failure after them by the next read."""

    async def run():
        unit = Unit()
        answer = unit.ask()
        unit.say(0)
        unit.say(1)
        unit.rank.fail_all("gone", may_retry=False)
        texts = [(await answer.next_delta()).text]
        while (delta := answer.poll_delta()) is not None:
            texts.append(delta.text)
        return texts, await read(answer)

    texts, (rest, error) = asyncio.run(run())

    assert (texts, rest) == (["a", "b"], "")
    assert "gone" in error.message


def test_a_prompt_goes_through_its_phases():
    """The first token ends the first phase and begins the second."""

    async def run():
        unit = Unit()
        answer = unit.ask()
        before = answer.phases
        unit.say(0)
        unit.say(1, "length")
        return before, answer.phases

    (waiting,), (prefill, decode) = asyncio.run(run())

    assert [phase.name for phase in (waiting, prefill, decode)] == ["prefill", "prefill", "decode"]
    assert {(phase.unit, phase.rank) for phase in (waiting, prefill, decode)} == {("mixed-0", 0)}
    assert waiting.started_at == prefill.started_at < prefill.ended_at == decode.started_at < decode.ended_at


def test_an_answer_that_ends_at_a_stop_string_counts_as_answered():
    """An answer that ends at a stop string counts in latencies; one whose reader left does not."""

    async def run():
        unit = Unit()
        answers = [unit.ask("b"), unit.ask()]
        for token_id in (0, 0, 1):
            unit.say(token_id)
        text, error = await read(answers[0])
        for answer in answers:
            answer.close()
        return text, error, unit

    text, error, unit = asyncio.run(run())

    assert (text, error, unit.rank.load.work.num_requests) == ("aa", None, 0)
    assert unit.measure("e2e_request_latency_seconds_count") == 1
    assert unit.measure("num_requests_running") == 0


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (None, Logprobs(-0.5, [])),
        (1, None),
        (1, Logprobs(-0.5, [(0, -0.5), (1, -1.0)])),
        (0, Logprobs(-0.5, [(0, -0.5)])),
        (2, Logprobs(-0.5, [(0, -0.5)])),
        (2, Logprobs(-0.5, [(0, -0.5), (0, -0.5)])),
        (2, Logprobs(-0.5, [(0, -1.0), (1, -0.5)])),
        (0, Logprobs(0.5, [])),
        (0, Logprobs(float("nan"), [])),
        (1, Logprobs(-0.5, [(0, float("-inf"))])),
    ],
)
def test_other_logprobs_than_were_asked_for_fail_a_request(asked, said):
    """A token with other logprobs than the request wants fails it."""

    async def run():
        unit = Unit()
        answer = unit.ask(num_logprobs=asked)
        unit.say(0, logprobs=said)
        return await asyncio.wait_for(read(answer), 5)

    text, error = asyncio.run(run())

    assert (text, error.code) == ("", "rank_failed")
    assert "said other logprobs than were asked for" in error.message


@pytest.mark.parametrize("said", [(-(10**6), None), (2, None), (0, Logprobs(-0.5, [(1, -0.5), (2**40, -1.0)]))])
def test_a_token_id_outside_the_vocabulary_fails_its_request_alone(said):
    """A token id outside the vocabulary fails its request, and the rank stays in use."""
    token_id, logprobs = said

    async def run():
        unit = Unit()
        answer = unit.ask()
        unit.say(token_id, logprobs=logprobs)
        told = await asyncio.wait_for(read(answer), 5)
        after = unit.ask()
        unit.say(0, "length")
        return *told, await read(after)

    text, error, after = asyncio.run(run())

    assert (text, error.status, error.code) == ("", 503, "rank_failed")
    assert "rank 0 of unit mixed-0 said a token id outside the vocabulary" in error.message
    assert after == ("a", None)


CALLS = {"plain": "f<｜tool▁sep｜>{arguments}", "fenced": "function<｜tool▁sep｜>f\n```json\n{arguments}\n```"}


@pytest.mark.parametrize("form", CALLS)
@pytest.mark.parametrize("several", [None, True, False])
def test_a_caller_may_want_one_call_at_a_time(write_checkpoint, tmp_path, form, several):
    """`parallel_tool_calls: false` ends an answer after its first whole call."""
    template = TOOL_TEMPLATE + ("{# ```json\n #}" if form == "fenced" else "")
    tokenizer = load_tokenizer(write_checkpoint(tmp_path, chat_template=template))
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "parallel_tool_calls": several}
    body["tools"] = [{"type": "function", "function": {"name": "f"}}]
    (request,) = read_chat(json.dumps(body).encode(), ServedModel("tiny", 640, tokenizer)).prepare().requests
    calls = "".join(
        f"<｜tool▁call▁begin｜>{CALLS[form].format(arguments=each)}<｜tool▁call▁end｜>" for each in ("[1]", "[2]")
    )
    text = tokenizer.encode_whole(f"hm</think>so<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>")
    choice, parts = Choice(0, request, tokenizer), []
    for index, token_id in enumerate([*text, 1]):
        if choice.finish_reason is None:
            parts += choice.push(Token("r", index, token_id, "stop" if index == len(text) else None)).parts

    told = ["".join(part.arguments for part in parts if getattr(part, "index", None) == call) for call in (0, 1)]
    assert request.answer.tool_calls == form
    assert told == (["[1]", ""] if several is False else ["[1]", "[2]"])
    assert choice.finish_reason == "tool_calls"
