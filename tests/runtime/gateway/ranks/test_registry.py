"""Ranks join the gateway, make units ready, and are closed when they misbehave."""

import socket
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from runtime.protocol.frames import VERSION, encode_frame
from runtime.protocol.messages import Dismissed, Rejected, State, Token
from tests.runtime.gateway.conftest import KV_DIGEST, UNIT_DIGEST, FakePair


def test_a_unit_is_ready_when_all_its_ranks_are(gateway, join, wait_until):
    """A unit is ready when all its ranks are, and /readyz shows each."""
    decode = join(phase="decode")
    decode.say(State("ready"))
    first = join(unit="pair", num_ranks=2, rank=0, node="node-a", pid=17)
    first.say(State("ready"))
    wait_until(lambda: gateway.rank_states("pair") == ["ready"], "the first rank is ready")
    assert gateway.get("/readyz")[0] == 503

    second = join(unit="pair", num_ranks=2, rank=1)
    for state in ("joining", "ready"):
        second.say(State(state))
        wait_until(lambda state=state: gateway.rank_states("pair") == ["ready", state], f"the second rank is {state}")

    assert gateway.get("/readyz")[0] == 200
    (unit,) = [unit for unit in gateway.ready_report()["units"] if unit["unit"] == "pair"]
    assert unit["phase"] == "prefill"
    assert unit["ranks"][0] == {"rank": 0, "node": "node-a", "pid": 17, "state": "ready", "loaded": 1}


def test_a_rank_is_loading_until_it_says_otherwise(gateway, join, wait_until):
    """A rank that has only said Hello is loading."""
    join(unit="fresh")

    wait_until(lambda: gateway.rank_states("fresh") == ["loading"], "the rank is loading")


def test_a_loading_rank_says_how_far_it_is(gateway, join, wait_until):
    """/readyz shows the loaded part of a rank's tensors."""
    rank = join(unit="slow")

    def loaded():
        (unit,) = [unit for unit in gateway.ready_report()["units"] if unit["unit"] == "slow"]
        return unit["ranks"][0]["loaded"]

    wait_until(lambda: gateway.rank_states("slow") == ["loading"], "the rank is loading")
    before = loaded()
    rank.say(State("loading", 0.25))
    wait_until(lambda: loaded() == 0.25, "a quarter is loaded")

    assert before == 0


def test_a_lost_rank_may_come_back(gateway, join, wait_until):
    """A rank whose connection closed is lost, and its Hello takes the old place."""
    join(unit="phoenix").leave()
    wait_until(lambda: gateway.rank_states("phoenix") == ["lost"], "the rank is lost")

    join(unit="phoenix", pid=4712).say(State("ready"))
    wait_until(lambda: gateway.rank_states("phoenix") == ["ready"], "the rank is back")


def test_a_unit_that_drains_answers_what_it_has_and_gets_nothing_new(gateway, pair, client, wait_until):
    """A draining unit answers its requests, gets no new ones, and is then dismissed."""
    pair.reply = [3, 4, 5]
    pair.last_may_come.clear()
    with ThreadPoolExecutor(1) as calls:
        answer = calls.submit(client.completions.create, model="org/tiny", prompt="the mill", max_tokens=3)
        pair.prefill.hear()
        pair.decode.say(State("draining"))
        wait_until(lambda: gateway.rank_states(pair.decode.hello.unit) == ["draining"], "the decode rank drains")

        with pytest.raises(openai.InternalServerError, match="503"):
            client.completions.create(model="org/tiny", prompt="the mill", max_tokens=3)
        assert pair.decode.heard.empty()
        pair.last_may_come.set()

        assert answer.result().usage.completion_tokens == 3
        assert pair.decode.hear() == Dismissed()


def test_an_idle_rank_that_drains_is_dismissed_at_once(pair):
    """An idle rank that drains is dismissed at once."""
    pair.prefill.say(State("draining"))

    assert pair.prefill.hear() == Dismissed()


def test_a_process_that_calls_again_takes_its_own_place(gateway, join, client, wait_until):
    """A process that calls again replaces its half-open connection, whose request fails."""
    first = join(unit="again", phase="mixed", pid=17)
    first.say(State("ready"))
    wait_until(lambda: gateway.rank_states("again") == ["ready"], "the rank is ready")
    with ThreadPoolExecutor() as pool:
        asking = pool.submit(client.completions.create, model="org/tiny", prompt=[5, 6], max_tokens=3)
        first.hear()
        second = join(unit="again", phase="mixed", pid=17)
        wait_until(first.is_closed_by_gateway, "the first connection is closed")
        with pytest.raises(openai.InternalServerError, match="rank 0 of unit again lost its connection"):
            asking.result(10)

    second.say(State("ready"))
    wait_until(lambda: gateway.rank_states("again") == ["ready"], "the rank is back")
    FakePair(second, second).reply = [70, 71, 72]
    answer = client.completions.create(model="org/tiny", prompt=[5, 6], max_tokens=3, temperature=0)

    assert answer.usage.completion_tokens == 3
    assert not second.is_closed_by_gateway()


@pytest.mark.parametrize("other", [{"pid": 18}, {"node": "node-1"}, {"unit_digest": "sha256:other"}])
def test_only_the_same_process_takes_its_place(gateway, join, wait_until, other):
    """While a rank is connected, another process, node or launch is refused for its place."""
    first = join(unit="held", pid=17)
    wait_until(lambda: gateway.rank_states("held") == ["loading"], "the first rank joined")

    assert isinstance(join(**({"unit": "held", "pid": 17} | other)).hear(), Rejected)
    assert not first.is_closed_by_gateway()
    assert gateway.rank_states("held") == ["loading"]


def test_a_copied_hello_takes_nothing_from_its_rank(gateway, join, wait_until):
    """A copied Hello from another address takes nothing from its rank."""
    first = join(unit="copied")
    wait_until(lambda: gateway.rank_states("copied") == ["loading"], "the first rank joined")

    assert isinstance(join(unit="copied", source="127.0.0.2").hear(), Rejected)
    assert not first.is_closed_by_gateway()
    assert gateway.rank_states("copied") == ["loading"]


@pytest.mark.parametrize("other", [{"unit_digest": "sha256:" + "c" * 64}, {"num_ranks": 3}, {"phase": "mixed"}])
def test_a_unit_may_come_back_as_another_launch(gateway, join, wait_until, other):
    """Once all its ranks are lost, a unit may return with another digest, size or phase."""
    ranks = [join(unit="relaunched", num_ranks=2, rank=rank) for rank in range(2)]
    for rank in ranks:
        rank.leave()
    wait_until(lambda: gateway.rank_states("relaunched") == ["lost", "lost"], "both ranks are lost")

    join(**{"unit": "relaunched", "num_ranks": 2} | other)
    wait_until(lambda: gateway.rank_states("relaunched") == ["loading"], "the new launch replaced the old")


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        ({"kv_digest": "sha256:other"}, "its kv_digest is sha256:other, the gateway's is sha256:aaa"),
        ({"rank": 2, "num_ranks": 2}, "it counts 2 ranks"),
        ({"rank": 1, "num_ranks": 10**9}, "it counts 1000000000 ranks"),
        ({"unit": "x" * 10_000}, "its unit is no name of at most 253 characters that can be shown"),
        ({"unit": "x" * 1_000_000}, "over the limit of 16,384"),
        ({"node": "n" * 254}, "its node is no name of at most 253 characters"),
        ({"node": "a\nWARNING all is lost"}, "its node is no name"),
        ({"for_node": "\x1b[31m"}, "its for_node is no name"),
        ({"phase": "decode", "kv_host": None}, "it is a decode rank and takes no KV"),
        ({"phase": "decode", "kv_port": 70000}, "it takes KV where nobody can send it: 70000 is not a port"),
        ({"phase": "decode", "kv_port": -1}, "it takes KV where nobody can send it: -1 is not a port"),
        ({"phase": "decode", "kv_host": "10.0.0.9\x00"}, "is not an IP address"),
        ({"phase": "decode", "kv_host": "fe80::1%\x00"}, "is not one machine's address"),
        ({"phase": "decode", "kv_host": "fe80::1%eth0"}, "is not one machine's address"),
        ({"phase": "decode", "kv_host": "0.0.0.0"}, "is not one machine's address"),
    ],
)
def test_a_rank_that_does_not_fit_is_refused_with_a_reason(gateway, join, wait_until, hello, reason):
    """A rank that does not fit is refused with the reason in the log, and /readyz does not show it."""
    rank = join(**({"unit": "stranger"} | hello))

    wait_until(rank.is_closed_by_gateway, "the gateway closes the connection")
    wait_until(lambda: reason in gateway.log(), f"the log says {reason!r}")
    assert gateway.rank_states("stranger") is None
    assert max(map(len, gateway.log().splitlines())) < 1_000
    assert "\nWARNING all is lost" not in gateway.log()


@pytest.mark.parametrize(
    ("hello", "secrets"),
    [
        ({"kv_digest": "sha256:guess"}, [KV_DIGEST]),
        ({"unit": "known", "num_ranks": 2, "rank": 1, "unit_digest": "sha256:guess"}, [UNIT_DIGEST]),
        ({"unit": "known", "num_ranks": 2, "pid": 18}, ["node-of-the-first", "4711", UNIT_DIGEST]),
    ],
)
def test_a_refused_rank_is_told_nothing_that_it_did_not_say(gateway, join, wait_until, hello, secrets):
    """A refused rank hears neither the right digest nor who is there; the log has both values."""
    join(unit="known", num_ranks=2, node="node-of-the-first")
    wait_until(lambda: gateway.rank_states("known") == ["loading"], "the first rank joined")

    said = join(**hello).hear()

    assert isinstance(said, Rejected)
    assert not [secret for secret in secrets if secret in said.reason]


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ({"rank": 0, "pid": 18}, "process 17 on node-0 is connected as that rank"),
        ({"rank": 1, "unit_digest": "sha256:other"}, "it was launched as prefill of 2 with unit_digest sha256:other"),
    ],
)
def test_a_second_rank_must_be_another_of_the_same_launch(gateway, join, wait_until, second, reason):
    """A live duplicate, and a rank of another launch, are refused, and the first stays."""
    join(unit="taken", num_ranks=2, pid=17)
    wait_until(lambda: gateway.rank_states("taken") == ["loading"], "the first rank joined")

    late = join(**({"unit": "taken", "num_ranks": 2} | second))

    wait_until(late.is_closed_by_gateway, "the gateway closes the second connection")
    wait_until(lambda: reason in gateway.log(), f"the log says {reason!r}")
    assert gateway.rank_states("taken") == ["loading"]


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: gateway\r\n\r\n", "does not speak Tidemill's wire protocol"),
        (encode_frame(State("ready")), "its first message is State, not Hello"),
        (encode_frame(Token("x", 0, 1, None), payload_bytes=2**40), "payload of 1,099,511,627,776 bytes"),
        (b"TDML", "inside a frame"),
        (b"", "it closed before its Hello"),
    ],
)
def test_a_stranger_on_the_registry_port_costs_nobody_but_itself(gateway, wait_until, sent, reason):
    """Garbage at the registry's port ends its connection with one line in the log."""
    lines_before = gateway.log().count(reason)
    with socket.create_connection(("127.0.0.1", gateway.ports["registry"]), timeout=10) as stranger:
        stranger.sendall(sent)
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(1) == b""

    wait_until(lambda: gateway.log().count(reason) == lines_before + 1, f"the log says {reason!r}")
    assert gateway.get("/health")[0] == 200
    assert "Traceback" not in gateway.log()


def test_a_rank_of_another_version_hears_the_gateways(gateway, wait_until):
    """A rank of another version is refused, and reads the gateway's version in the prefix."""
    with socket.create_connection(("127.0.0.1", gateway.ports["registry"]), timeout=10) as newer:
        newer.sendall(b"TDML" + (VERSION + 1).to_bytes(2) + 14 * b"\x00")
        answer = newer.makefile("rb").read()

    assert answer[:6] == b"TDML" + VERSION.to_bytes(2)
    wait_until(lambda: f"wire version {VERSION + 1}, this runtime {VERSION}" in gateway.log(), "the log names both")
    assert gateway.get("/health")[0] == 200


def test_garbage_after_hello_loses_the_rank(gateway, join, wait_until):
    """A connected rank that breaks the protocol is lost."""
    rank = join(unit="confused")
    wait_until(lambda: gateway.rank_states("confused") == ["loading"], "the rank joined")

    rank.say(rank.hello)

    wait_until(rank.is_closed_by_gateway, "the gateway closes the connection")
    wait_until(lambda: gateway.rank_states("confused") == ["lost"], "the rank is lost")
    assert "rank 0 of unit confused said Hello twice" in gateway.log()


@pytest.mark.whole
def test_a_silent_connection_is_closed_at_the_deadline(gateway):
    """A connection without Hello is closed at the deadline."""
    with socket.create_connection(("127.0.0.1", gateway.ports["registry"]), timeout=10) as silent:
        assert silent.recv(1) == b""

    assert "no Hello within 5 s" in gateway.log()


def test_a_mixed_rank_gets_a_request_as_a_whole(gateway, join, client, wait_until):
    """A mixed rank gets the whole request and sends all its tokens."""
    rank = join(phase="mixed")
    rank.say(State("ready"))
    wait_until(lambda: gateway.ready_report()["ready"], "a mixed unit is enough")
    unit = FakePair(rank, rank)
    unit.reply = [70, 71, 72]
    answer = client.completions.create(model="org/tiny", prompt=[5, 6], max_tokens=3, temperature=0)

    assert answer.usage.completion_tokens == 3
    assert answer.choices[0].finish_reason == "length"
    prompt = rank.hear()
    assert (prompt.prompt_ids[-2:], prompt.kv_host, prompt.kv_port) == ([5, 6], None, None)
    assert rank.heard.empty()


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_mixed_rank_shares_no_request_with_a_unit_that_has_no_partner(gateway, join, client, wait_until, phase):
    """Beside mixed units, a prefill or decode unit without a partner gets nothing."""
    half, mixed = join(phase=phase), join(phase="mixed")
    for rank in (half, mixed):
        rank.say(State("ready"))
    wait_until(lambda: gateway.ready_report()["ready"], "the mixed unit is enough, whoever else is there")
    FakePair(mixed, mixed).reply = [70, 71, 72]
    answer = client.completions.create(model="org/tiny", prompt=[5, 6], max_tokens=3, temperature=0)

    assert answer.usage.completion_tokens == 3
    assert mixed.hear().kv_host is None
    assert half.heard.empty()


def test_a_whole_pair_is_ready_beside_a_mixed_unit(gateway, pair, join, wait_until):
    """A whole pair gets requests beside a mixed unit."""
    join(unit="mixed", phase="mixed").say(State("ready"))
    wait_until(lambda: gateway.rank_states("mixed") == ["ready"], "the mixed unit is ready")

    assert gateway.get("/readyz")[0] == 200
