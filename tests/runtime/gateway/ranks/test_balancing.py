"""A real gateway chooses among fake ranks by their reports."""

from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from runtime.protocol.messages import Load, State, Token

KV_TOKENS = 4096  # of each rank, as the gateway's launch file says


class Pair:
    """A prefill and a decode unit of two ready ranks each, and calls that wait for their answers."""

    def __init__(self, gateway, join, client, wait_until, pool):
        self._gateway, self._client, self._until, self._pool = gateway, client, wait_until, pool
        self._calls, self._waiting = [], []
        self.prefill, self.decode = (
            [join(unit=f"{phase}-{id(self)}", phase=phase, num_ranks=2, rank=rank) for rank in range(2)]
            for phase in ("prefill", "decode")
        )
        for rank in (*self.prefill, *self.decode):
            rank.say(State("ready"))
        wait_until(lambda: gateway.ready_report()["ready"], "the units are ready")

    def ask(self, num_tokens):
        """Send a prompt of so many tokens, and return the number of the prefill rank that gets it."""
        call = self._submit(num_tokens)
        number, prompt = self._hear()
        self._calls.append((call, number, prompt))
        return number

    def ask_and_wait(self, num_tokens):
        """Send a prompt for which no rank has room."""
        num_waiting = self._num_waiting()
        self._waiting.append(self._submit(num_tokens))
        self._until(lambda: self._num_waiting() == num_waiting + 1, "the prompt waits")

    def answer_all(self):
        """Answer every call with its one token, also those that wait until then."""
        for call, number, prompt in self._calls:
            self._answer(number, prompt)
            assert call.result(10).usage.completion_tokens == 1
        for _ in self._waiting:
            self._answer(*self._hear())
        assert all(call.result(10).usage.completion_tokens == 1 for call in self._waiting)

    def report(self, rank, load):
        """Send a rank's load, and wait until the gateway has read it and the messages after it."""
        rank.say(load)
        rank.say(State("ready", 0.5))
        self._until(lambda: self._loaded(rank.hello) == 0.5, "the load is read")

    def _submit(self, num_tokens):
        asked = {"model": "org/tiny", "prompt": [5] * num_tokens, "max_tokens": 5}
        return self._pool.submit(self._client.completions.create, **asked)

    def _hear(self):
        """Return (number of a prefill rank, the next prompt that it gets)."""
        heard = self._until(lambda: [n for n in range(2) if not self.prefill[n].heard.empty()], "the prompt is sent")
        return heard[0], self.prefill[heard[0]].hear()

    def _answer(self, number, prompt):
        self.prefill[number].say(Token(prompt.request_id, 0, 70, "length"))

    def _num_waiting(self):
        return self._gateway.metric("tidemill_num_requests_waiting")

    def _loaded(self, hello):
        (unit,) = [unit for unit in self._gateway.ready_report()["units"] if unit["unit"] == hello.unit]
        return unit["ranks"][hello.rank]["loaded"]


@pytest.fixture
def ranks(gateway, join, client, wait_until):
    with ThreadPoolExecutor() as pool:
        pair = Pair(gateway, join, client, wait_until, pool)
        yield pair
        pair.answer_all()


def test_short_prompts_stay_away_from_a_long_one(ranks):
    """Short prompts go to the rank without the long one, even if it gets more requests."""
    long = ranks.ask(100)

    assert {ranks.ask(5) for _ in range(3)} == {1 - long}


def test_what_a_rank_reports_counts(ranks):
    """A rank that reports another gateway's prompts gets none while its peer is free."""
    ranks.report(ranks.prefill[1], Load(3, 0, 300, 30000, 0, []))

    assert {ranks.ask(5) for _ in range(3)} == {0}


def test_a_full_cache_takes_as_many_as_may_wait_and_no_more(ranks, client):
    """Two decode ranks without free KV each let two requests wait, and the fifth call is refused."""
    for rank in ranks.decode:
        ranks.report(rank, Load(1, 0, 0, 0, KV_TOKENS, []))
    for _ in range(2):
        ranks.ask(5)
    for _ in range(2):
        ranks.ask_and_wait(5)

    with pytest.raises(openai.RateLimitError, match="there is room for 0 more requests now"):
        client.completions.create(model="org/tiny", prompt=[5, 6], max_tokens=5)
