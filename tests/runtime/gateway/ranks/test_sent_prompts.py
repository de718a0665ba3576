"""The gateway learns what ranks hold from the prompts that it sent them."""

from types import SimpleNamespace

import numpy as np
import pytest

from runtime.gateway.ranks.prefix_index import PrefixIndex, hash_blocks
from runtime.gateway.ranks.rank_connection import Rank
from runtime.gateway.ranks.rank_load import HeldPrefix, RankLimits, RequestSize, Work
from runtime.gateway.ranks.router import pick
from runtime.gateway.ranks.sent_prompts import find_held
from runtime.gateway.tenants.keys import make_salt
from runtime.protocol.counting import attention_pairs
from runtime.protocol.messages import Hello, Load, PrefixHit, State, Token

FIRST, SECOND = list(range(640)), list(range(700, 1340))


class Ranks:
    """Ranks of a phase as the gateway sees them, and what it has learnt."""

    def __init__(self, num_ranks=2, phase="prefill", num_blocks=1024):
        self.index, self._phase = PrefixIndex(num_blocks), phase
        transport = SimpleNamespace(get_write_buffer_size=lambda: 0, abort=lambda: None)
        self._writer = SimpleNamespace(write=lambda data: None, transport=transport)
        self.all = [self._join(number) for number in range(num_ranks)]

    def send(self, number, request_id, token_ids, salt=""):
        names = hash_blocks(salt, token_ids)
        self.all[number].subscribe(request_id, RequestSize(len(token_ids), 10), lambda *_: None, names)

    def answer(self, number, request_id, found=0):
        if found:
            self.all[number].handle(PrefixHit(request_id, found))
        self.all[number].handle(Token(request_id, 0, 5, None))
        self.all[number].unsubscribe(request_id)

    def num_known(self, token_ids, salt=""):
        prompts = [rank.prompts for rank in self.all]
        return find_held(prompts, hash_blocks(salt, token_ids), len(token_ids))

    def choose(self, token_ids):
        loads, size = [rank.load for rank in self.all], RequestSize(len(token_ids), 10)
        return pick(loads, size, 0, find_held=lambda loads: self.num_known(token_ids)).rank

    def restart(self, number):
        self.all[number].fail_all("lost")
        self.all[number] = self._join(number)

    def _join(self, number):
        hello = Hello(f"{self._phase}-0", self._phase, number, 2, "node-0", 1, "sha256:unit", "sha256:kv", None, None)
        rank = Rank(hello, self._writer, RankLimits(16, 65_536, 0), self.index)
        rank.handle(State("ready"))
        return rank


def test_a_rank_holds_what_it_was_sent_and_computes_it_until_the_first_token():
    """A rank holds a prompt's whole blocks, except the block of its last token."""
    ranks = Ranks()
    ranks.send(1, "a", FIRST)
    before, load = ranks.num_known(FIRST), ranks.all[1].load.work
    ranks.answer(1, "a")

    assert before == [HeldPrefix(0), HeldPrefix(576, 576)]
    assert load == Work(1, 640, attention_pairs(0, 640), 0)
    assert ranks.num_known([*FIRST, 1]) == [HeldPrefix(0), HeldPrefix(640)]


def test_a_prompt_counts_with_what_the_rank_is_expected_to_compute():
    """A prompt counts with the tokens that its rank must still compute, unless a report says more."""
    ranks = Ranks()
    ranks.send(0, "a", FIRST)
    ranks.answer(0, "a")
    ranks.send(0, "b", [*FIRST, *range(100)])
    expected = ranks.all[0].load.work
    ranks.all[0].handle(Load(1, 0, 740, attention_pairs(0, 740), 0, ["b"]))

    assert expected == Work(1, 100, attention_pairs(640, 740), 0)
    assert ranks.all[0].load.work.prompt_tokens == 740


def test_equal_prompts_that_come_together_go_to_one_rank():
    """Equal prompts go to one rank, where each further one adds only 64 tokens."""
    ranks = Ranks()
    chosen = []
    for number in range(12):
        chosen.append(ranks.choose(FIRST))
        ranks.send(chosen[-1], str(number), FIRST)

    assert chosen[:9] == [0] * 9
    assert 1 in chosen[9:]


@pytest.mark.parametrize("num_tail", [1, 64, 256])
def test_a_flood_with_one_beginning_spreads_when_the_queue_takes_longer_than_the_beginning(num_tail):
    """Prompts with one beginning spread to another rank when the queue exceeds the beginning's 640 tokens."""
    ranks = Ranks(3)
    ranks.send(0, "warm", FIRST)
    ranks.answer(0, "warm")
    given = [0, 0, 0]
    for number in range(40):
        prompt = [*FIRST, *range(2000 + number, 2000 + number + num_tail)]
        chosen = ranks.choose(prompt)
        waiting = [rank.load.work.prompt_time for rank in ranks.all]
        beginning = Work(0, 640, attention_pairs(0, 640), 0).prompt_time

        assert chosen == 0 or waiting[0] >= beginning * (ranks.num_known(prompt)[chosen] == HeldPrefix(0))

        ranks.send(chosen, str(number), prompt)
        given[chosen] += 1

    assert (min(given) > 0) == (40 * num_tail > 640)


def test_a_rank_that_found_less_has_lost_what_it_used_before():
    """A rank that found less than expected has lost its older blocks, and holds what it computes now."""
    ranks = Ranks()
    for name, prompt in (("old", range(3000, 3640)), ("a", FIRST), ("b", SECOND)):
        ranks.send(0, name, list(prompt))
        ranks.answer(0, name)
    ranks.send(0, "again", FIRST)
    ranks.answer(0, "again", found=64)

    assert [ranks.num_known(list(prompt))[0].num_tokens for prompt in (FIRST, SECOND, range(3000, 3640))] == [
        576,
        576,
        0,
    ]


def test_what_a_tenant_lost_says_nothing_of_another_tenants_blocks():
    """A rank that lost one tenant's blocks still holds another's, and has lost the first's under all of its salts."""
    ranks = Ranks()
    one, same, other = make_salt("one", None), make_salt("one", "a"), make_salt("other", None)
    for name, salt in (("same", same), ("other", other), ("a", one)):
        ranks.send(0, name, FIRST, salt)
        ranks.answer(0, name)
    ranks.send(0, "again", FIRST, one)
    ranks.answer(0, "again")

    assert [ranks.num_known(FIRST, salt)[0].num_tokens for salt in (one, same, other)] == [576, 0, 576]


def test_a_decode_rank_holds_a_prompt_from_its_first_token_there():
    """A decode rank holds a prompt once it generates, keeps it as it says nothing of hits, and draws the next turn."""
    ranks = Ranks(phase="decode")
    ranks.send(1, "a", FIRST)
    on_its_way = ranks.choose([*FIRST, *SECOND]), ranks.num_known(FIRST)[1]
    for request_id, prompt in (("a", FIRST), ("b", [*FIRST, *SECOND])):
        ranks.send(1, request_id, prompt)
        ranks.answer(1, request_id)

    assert on_its_way == (0, HeldPrefix(576, 576))
    assert ranks.choose([*FIRST, *SECOND, 1]) == 1
    assert ranks.num_known([*FIRST, *SECOND, 1])[1] == HeldPrefix(1280)


def test_a_decode_rank_is_believed_to_hold_no_more_than_its_pages():
    """Blocks that a decode rank's cache has no pages for are forgotten, those of the oldest prompts first."""
    ranks = Ranks(1, "decode", num_blocks=16)
    prompts = [list(range(first, first + 640)) for first in range(0, 40_000, 1000)]
    for number, prompt in enumerate(prompts):
        ranks.send(0, str(number), prompt)
        ranks.answer(0, str(number))
    hashes = [each for prompt in prompts for each in hash_blocks("", prompt)]

    assert sum(ranks.index.last_use(ranks.all[0].prompts.place, np.array([each])) > 0 for each in hashes) == 16
    assert ranks.num_known(prompts[-1])[0].num_tokens > 0


def test_a_prompt_that_is_given_up_proves_nothing_about_older_ones():
    """A prompt that is given up does not change what the rank held before."""
    ranks = Ranks()
    ranks.send(0, "old", SECOND)
    ranks.answer(0, "old")
    ranks.send(0, "a", FIRST)
    ranks.send(0, "b", FIRST)
    ranks.all[0].unsubscribe("a")
    given_up = ranks.num_known(FIRST)[0]
    ranks.answer(0, "b")

    assert given_up == HeldPrefix(0)
    assert ranks.num_known(SECOND)[0] == HeldPrefix(576)


def test_a_rank_that_comes_again_holds_nothing():
    """A rank that reconnects holds nothing, and a late answer changes nothing."""
    ranks = Ranks()
    ranks.send(0, "a", FIRST)
    ranks.answer(0, "a")
    ranks.send(0, "b", SECOND)
    lost = ranks.all[0]
    ranks.restart(0)
    lost.unsubscribe("b")

    assert ranks.num_known(FIRST) == [HeldPrefix(0), HeldPrefix(0)]
