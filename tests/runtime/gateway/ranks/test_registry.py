"""Who may join the gateway, when a unit is ready, and what happens to connections that misbehave."""

import socket
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from runtime.protocol.frames import VERSION, encode_frame
from runtime.protocol.messages import Dismissed, Rejected, State, Token
from tests.runtime.gateway.conftest import KV_DIGEST, UNIT_DIGEST, FakePair


def test_a_unit_is_ready_when_all_its_ranks_are(gateway, join, until):
    """Two of two ranks ready make the unit ready; one of two does not. /readyz shows each."""
    decode = join(phase="decode")
    decode.say(State("ready"))
    first = join(unit="pair", num_ranks=2, rank=0, node="node-a", pid=17)
    first.say(State("ready"))
    until(lambda: gateway.state_of("pair") == ["ready"], "the first rank is ready")
    assert gateway.get("/readyz")[0] == 503

    second = join(unit="pair", num_ranks=2, rank=1)
    for state in ("joining", "ready"):
        second.say(State(state))
        until(lambda state=state: gateway.state_of("pair") == ["ready", state], f"the second rank is {state}")

    assert gateway.get("/readyz")[0] == 200
    (unit,) = [unit for unit in gateway.ready_report()["units"] if unit["unit"] == "pair"]
    assert unit["phase"] == "prefill"
    assert unit["ranks"][0] == {"rank": 0, "node": "node-a", "pid": 17, "state": "ready", "loaded": 1}


def test_a_rank_is_loading_until_it_says_otherwise(gateway, join, until):
    """Hello alone is not readiness."""
    join(unit="fresh")

    until(lambda: gateway.state_of("fresh") == ["loading"], "the rank is loading")


def test_a_loading_rank_says_how_far_it_is(gateway, join, until):
    """/readyz shows the part of its tensors that it has."""
    rank = join(unit="slow")

    def loaded():
        (unit,) = [unit for unit in gateway.ready_report()["units"] if unit["unit"] == "slow"]
        return unit["ranks"][0]["loaded"]

    until(lambda: gateway.state_of("slow") == ["loading"], "the rank is loading")
    before = loaded()
    rank.say(State("loading", 0.25))
    until(lambda: loaded() == 0.25, "a quarter is loaded")

    assert before == 0


def test_a_lost_rank_may_come_back(gateway, join, until):
    """A closed connection is lost; Hello again takes the old place."""
    join(unit="phoenix").leave()
    until(lambda: gateway.state_of("phoenix") == ["lost"], "the rank is lost")

    join(unit="phoenix", pid=4712).say(State("ready"))
    until(lambda: gateway.state_of("phoenix") == ["ready"], "the rank is back")


def test_a_unit_that_drains_answers_what_it_has_and_gets_nothing_new(gateway, pair, client, until):
    """Its request ends as ever; only then it is dismissed, and no other request reaches it."""
    pair.reply = [3, 4, 5]
    pair.last_may_come.clear()
    with ThreadPoolExecutor(1) as calls:
        answer = calls.submit(client.completions.create, model="org/tiny", prompt="the mill", max_tokens=3)
        pair.prefill.hear()
        pair.decode.say(State("draining"))
        until(lambda: gateway.state_of(pair.decode.hello.unit) == ["draining"], "the decode rank drains")

        with pytest.raises(openai.InternalServerError, match="503"):
            client.completions.create(model="org/tiny", prompt="the mill", max_tokens=3)
        assert pair.decode.heard.empty()
        pair.last_may_come.set()

        assert answer.result().usage.completion_tokens == 3
        assert pair.decode.hear() == Dismissed()


def test_an_idle_rank_that_drains_is_dismissed_at_once(pair):
    """Nobody waits for it."""
    pair.prefill.say(State("draining"))

    assert pair.prefill.hear() == Dismissed()


def test_a_process_that_calls_again_takes_its_own_place(gateway, join, client, until):
    """Its first connection is half open: the gateway knows nothing of its end, and gives it up; the request fails."""
    first = join(unit="again", phase="mixed", pid=17)
    first.say(State("ready"))
    until(lambda: gateway.state_of("again") == ["ready"], "the rank is ready")
    with ThreadPoolExecutor() as pool:
        asking = pool.submit(client.completions.create, model="org/tiny", prompt=[5, 6], max_tokens=3)
        first.hear()
        second = join(unit="again", phase="mixed", pid=17)
        until(first.is_closed_by_gateway, "the first connection is closed")
        with pytest.raises(openai.InternalServerError, match="rank 0 of unit again lost its connection"):
            asking.result(10)

    second.say(State("ready"))
    until(lambda: gateway.state_of("again") == ["ready"], "the rank is back")
    FakePair(second, second).reply = [70, 71, 72]
    answer = client.completions.create(model="org/tiny", prompt=[5, 6], max_tokens=3, temperature=0)

    assert answer.usage.completion_tokens == 3
    assert not second.is_closed_by_gateway()


@pytest.mark.parametrize("other", [{"pid": 18}, {"node": "node-1"}, {"unit_digest": "sha256:other"}])
def test_only_the_same_process_takes_its_place(gateway, join, until, other):
    """Another process, node or launch is refused while the first is connected, and the first stays."""
    first = join(unit="held", pid=17)
    until(lambda: gateway.state_of("held") == ["loading"], "the first rank joined")

    assert isinstance(join(**({"unit": "held", "pid": 17} | other)).hear(), Rejected)
    assert not first.is_closed_by_gateway()
    assert gateway.state_of("held") == ["loading"]


def test_a_copied_hello_takes_nothing_from_its_rank(gateway, join, until):
    """The same words from another address are another's."""
    first = join(unit="copied")
    until(lambda: gateway.state_of("copied") == ["loading"], "the first rank joined")

    assert isinstance(join(unit="copied", source="127.0.0.2").hear(), Rejected)
    assert not first.is_closed_by_gateway()
    assert gateway.state_of("copied") == ["loading"]


@pytest.mark.parametrize("other", [{"unit_digest": "sha256:" + "c" * 64}, {"num_ranks": 3}, {"phase": "mixed"}])
def test_a_unit_may_come_back_as_another_launch(gateway, join, until, other):
    """Once all its ranks are lost, a unit may return with another digest, size or phase; the old ranks are gone."""
    ranks = [join(unit="relaunched", num_ranks=2, rank=rank) for rank in range(2)]
    for rank in ranks:
        rank.leave()
    until(lambda: gateway.state_of("relaunched") == ["lost", "lost"], "both ranks are lost")

    join(**{"unit": "relaunched", "num_ranks": 2} | other)
    until(lambda: gateway.state_of("relaunched") == ["loading"], "the new launch replaced the old")


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
def test_a_rank_that_does_not_fit_is_refused_with_a_reason(gateway, join, until, hello, reason):
    """The connection is closed, the log says why, and /readyz never shows the rank."""
    rank = join(**({"unit": "stranger"} | hello))

    until(rank.is_closed_by_gateway, "the gateway closes the connection")
    until(lambda: reason in gateway.log(), f"the log says {reason!r}")
    assert gateway.state_of("stranger") is None
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
def test_a_refused_rank_is_told_nothing_that_it_did_not_say(gateway, join, until, hello, secrets):
    """The log has both values; whoever guesses a digest hears neither it nor who is there."""
    join(unit="known", num_ranks=2, node="node-of-the-first")
    until(lambda: gateway.state_of("known") == ["loading"], "the first rank joined")

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
def test_a_second_rank_must_be_another_of_the_same_launch(gateway, join, until, second, reason):
    """A live duplicate and a rank of another launch are refused; the first stays."""
    join(unit="taken", num_ranks=2, pid=17)
    until(lambda: gateway.state_of("taken") == ["loading"], "the first rank joined")

    late = join(**({"unit": "taken", "num_ranks": 2} | second))

    until(late.is_closed_by_gateway, "the gateway closes the second connection")
    until(lambda: reason in gateway.log(), f"the log says {reason!r}")
    assert gateway.state_of("taken") == ["loading"]


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
def test_a_stranger_on_the_registry_port_costs_nobody_but_itself(gateway, until, sent, reason):
    """Garbage ends that connection with one line in the log; the gateway goes on."""
    lines_before = gateway.log().count(reason)
    with socket.create_connection(("127.0.0.1", gateway.ports["registry"]), timeout=10) as stranger:
        stranger.sendall(sent)
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(1) == b""

    until(lambda: gateway.log().count(reason) == lines_before + 1, f"the log says {reason!r}")
    assert gateway.get("/health")[0] == 200
    assert "Traceback" not in gateway.log()


def test_a_rank_of_another_version_hears_the_gateways(gateway, until):
    """It is not let in, and what it is answered names the gateway's version where every version looks for it."""
    with socket.create_connection(("127.0.0.1", gateway.ports["registry"]), timeout=10) as newer:
        newer.sendall(b"TDML" + (VERSION + 1).to_bytes(2) + 14 * b"\x00")
        answer = newer.makefile("rb").read()

    assert answer[:6] == b"TDML" + VERSION.to_bytes(2)
    until(lambda: f"wire version {VERSION + 1}, this runtime {VERSION}" in gateway.log(), "the log names both")
    assert gateway.get("/health")[0] == 200


def test_garbage_after_hello_loses_the_rank(gateway, join, until):
    """A rank that breaks the protocol in service is closed and lost."""
    rank = join(unit="confused")
    until(lambda: gateway.state_of("confused") == ["loading"], "the rank joined")

    rank.say(rank.hello)

    until(rank.is_closed_by_gateway, "the gateway closes the connection")
    until(lambda: gateway.state_of("confused") == ["lost"], "the rank is lost")
    assert "rank 0 of unit confused said Hello twice" in gateway.log()


@pytest.mark.whole
def test_a_silent_connection_is_closed_at_the_deadline(gateway):
    """Whoever does not say Hello in time is closed."""
    with socket.create_connection(("127.0.0.1", gateway.ports["registry"]), timeout=10) as silent:
        assert silent.recv(1) == b""

    assert "no Hello within 5 s" in gateway.log()


def test_a_mixed_rank_gets_a_request_as_a_whole(gateway, join, client, until):
    """One rank says all tokens, the first and the others, and is sent nowhere with its KV."""
    rank = join(phase="mixed")
    rank.say(State("ready"))
    until(lambda: gateway.ready_report()["ready"], "a mixed unit is enough")
    unit = FakePair(rank, rank)
    unit.reply = [70, 71, 72]
    answer = client.completions.create(model="org/tiny", prompt=[5, 6], max_tokens=3, temperature=0)

    assert answer.usage.completion_tokens == 3
    assert answer.choices[0].finish_reason == "length"
    prompt = rank.hear()
    assert (prompt.prompt_ids[-2:], prompt.kv_host, prompt.kv_port) == ([5, 6], None, None)
    assert rank.heard.empty()


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_mixed_rank_shares_no_request_with_a_unit_that_has_no_partner(gateway, join, client, until, phase):
    """While a deployment changes from a pair to mixed units, half of the pair may be there: it gets nothing."""
    half, mixed = join(phase=phase), join(phase="mixed")
    for rank in (half, mixed):
        rank.say(State("ready"))
    until(lambda: gateway.ready_report()["ready"], "the mixed unit is enough, whoever else is there")
    FakePair(mixed, mixed).reply = [70, 71, 72]
    answer = client.completions.create(model="org/tiny", prompt=[5, 6], max_tokens=3, temperature=0)

    assert answer.usage.completion_tokens == 3
    assert mixed.hear().kv_host is None
    assert half.heard.empty()


def test_a_whole_pair_is_ready_beside_a_mixed_unit(gateway, pair, join, until):
    """Every request has a pair of ranks."""
    join(unit="mixed", phase="mixed").say(State("ready"))
    until(lambda: gateway.state_of("mixed") == ["ready"], "the mixed unit is ready")

    assert gateway.get("/readyz")[0] == 200
