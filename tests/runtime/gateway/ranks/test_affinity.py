"""A real gateway sends conversations back to the ranks that have their beginnings, and no tenant to another's."""

import pytest

from runtime.protocol.messages import State, Token

NUM_RANKS, PROMPT = 3, [5] * 130


class Units:
    """A prefill and a decode unit of ready ranks, which answer every prompt with a token each."""

    def __init__(self, gateway, join, client, wait_until):
        self._client = client
        self._prefill, self._decode = (
            [join(phase=phase, unit=f"{phase}-{id(self)}", num_ranks=NUM_RANKS, rank=rank) for rank in range(NUM_RANKS)]
            for phase in ("prefill", "decode")
        )
        for rank in (*self._prefill, *self._decode):
            rank.say(State("ready"))
        for rank in self._prefill:
            rank.on_prefill = self._answer(rank)
        wait_until(lambda: gateway.ready_report()["ready"], "the units are ready")

    def ask(self, prompt, salt):
        """Return the numbers of the prefill rank and of the decode rank that get a prompt."""
        self._client.completions.create(
            model="org/tiny", prompt=prompt, max_tokens=2, extra_body={"cache_salt": salt} if salt else {}
        )
        return tuple(
            _who_heard(ranks, queue) for ranks, queue in ((self._prefill, "heard"), (self._decode, "expected"))
        )

    def _answer(self, prefill):
        async def answer(prompt):
            (decode,) = [rank for rank in self._decode if not rank.expected.empty()]
            prefill.say(Token(prompt.request_id, 0, 70, None))
            decode.say(Token(prompt.request_id, 1, 70, "length"))

        return answer


def _who_heard(ranks, queue):
    (number,) = [number for number, rank in enumerate(ranks) if not getattr(rank, queue).empty()]
    getattr(ranks[number], queue).get()
    return number


@pytest.fixture
def units(gateway, join, client, wait_until):
    return Units(gateway, join, client, wait_until)


def test_a_conversation_comes_back_to_its_prefill_and_decode_rank(units):
    """Each further turn goes to the ranks of the first."""
    first = units.ask(PROMPT, None)

    assert [units.ask([*PROMPT, *[6] * 64 * turn], None) for turn in range(4)] == [first] * 4


def test_the_same_prompt_of_other_tenants_goes_round_as_if_nobody_had_sent_it(units):
    """A prompt under salts that have not sent it yet takes all ranks in turn, wherever another salt's ranks are."""
    for _ in range(2):
        units.ask(PROMPT, "victim")

    strangers = [units.ask(PROMPT, f"stranger {number}") for number in range(NUM_RANKS)]

    assert sorted(prefill for prefill, _ in strangers) == list(range(NUM_RANKS))
    assert sorted(decode for _, decode in strangers) == list(range(NUM_RANKS))
