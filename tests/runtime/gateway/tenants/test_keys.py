"""Keys admit callers, limit them, and can be changed while the gateway runs."""

import hashlib
import json
from types import SimpleNamespace

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import URL
from starlette.requests import Request

from runtime.errors import RuntimeFailure
from runtime.gateway.core import app
from runtime.gateway.core.app import Authentication
from runtime.gateway.edge.http_errors import ApiError
from runtime.gateway.edge.idempotency import IdempotentCall
from runtime.gateway.telemetry.request_log import CallRecord
from runtime.gateway.tenants import keys
from runtime.gateway.tenants.keys import Account, KeyEntry, KeyRing, make_salt, read_keys
from runtime.protocol.messages import TENANT_DIGITS, State
from tests.runtime.gateway.conftest import ADDRESS, EOS_ID, PATIENCE_S, FakePair

KEY = "tm-mill"
MODEL = "org/tiny"
PEER = "10.1.2.3:4"


def entry(key=KEY, name="team", **limits):
    return {"name": name, "hash": "sha256:" + hashlib.sha256(key.encode()).hexdigest()} | limits


@pytest.fixture
def clock(monkeypatch):
    """Return the time in seconds, as a list of one."""
    now = [1000.0]
    monkeypatch.setattr(keys.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def file(tmp_path):
    """Return a function that writes a file of keys."""
    numbers = iter(range(9))

    def write(*entries):
        new = tmp_path / f"{next(numbers)}.json"
        new.write_text(json.dumps({"keys": entries}))
        return new.rename(tmp_path / "keys.json")

    return write


def read_refusal(call):
    with pytest.raises(ApiError) as error:
        call()
    return error.value


def test_a_key_is_known_by_its_hash(file):
    """A key is known by its hash, with the scheme in any case."""
    ring = KeyRing(file(entry("other", "other"), entry()))

    assert ring.find_account(f"Bearer {KEY}", PEER).name == "team"
    assert ring.find_account(f"bearer  {KEY} ", PEER).name == "team"


@pytest.mark.parametrize("header", [None, "", KEY, "Bearer", "Bearer tm-mil", f"Basic {KEY}", "Bearer \udcff"])
def test_who_has_no_key_is_refused_and_named(file, caplog, header):
    """A caller without a key is refused, and the log has its peer and nothing that it sent."""
    error = read_refusal(lambda: KeyRing(file(entry())).find_account(header, PEER))

    assert (error.status, error.code, error.headers()) == (401, "invalid_api_key", {"WWW-Authenticate": "Bearer"})
    (line,) = caplog.messages
    assert PEER in line
    assert "tm-" not in line


def test_a_key_gets_its_tokens_a_minute(clock):
    """A call takes all tokens that it may need and returns the rest. Retry-After is when the next may begin."""
    account = Account(KeyEntry(name="team", hash="sha256:" + "0" * 64, tokens_per_minute=600))
    first = account.begin(1, 600, is_stream=False)
    assert read_refusal(account.check_tokens).retry_after_s == 1
    first.num_used = 590
    first.end()
    account.begin(1, 110, is_stream=False)

    error = read_refusal(lambda: account.begin(1, 1, is_stream=False))
    assert (error.status, error.code, error.retry_after_s) == (429, "rate_limit_exceeded", 11)
    clock[0] += error.retry_after_s
    account.begin(1, 1, is_stream=False)


def test_a_key_has_so_many_requests_and_streams_at_a_time():
    """A key's requests and streams are limited until their calls end; a refused call takes none."""
    account = Account(KeyEntry(name="team", hash="sha256:" + "0" * 64, max_requests=3, max_streams=1))
    stream = account.begin(1, 9, is_stream=True)

    assert "1 streams" in read_refusal(lambda: account.begin(1, 9, is_stream=True)).message
    assert "3 requests" in read_refusal(lambda: account.begin(3, 9, is_stream=False)).message
    account.begin(2, 9, is_stream=False)
    stream.end()
    account.begin(1, 9, is_stream=True)


def test_keys_change_without_a_restart(file, clock, caplog):
    """A key that is gone is refused, one that stays keeps what it has begun; a broken file changes nothing.

    Tokens that were used while there was no limit do not count when there is one.
    """
    path = file(entry(max_streams=1), entry("old", "old"))
    ring = KeyRing(path)
    ring.find_account(f"Bearer {KEY}", PEER).begin(1, 900, is_stream=True)
    file(entry(max_streams=1, tokens_per_minute=600))
    ring.find_account("Bearer old", PEER)
    clock[0] += keys.LOOK_S

    assert read_refusal(lambda: ring.find_account("Bearer old", PEER)).status == 401
    assert read_refusal(lambda: ring.find_account(f"Bearer {KEY}", PEER).begin(1, 1, is_stream=True)).status == 429
    ring.find_account(f"Bearer {KEY}", PEER).begin(1, 1, is_stream=False)
    path.write_text("{")
    clock[0] += keys.LOOK_S
    assert ring.find_account(f"Bearer {KEY}", PEER).name == "team"
    assert "the keys stay as they are" in caplog.text


def test_each_of_several_gateways_holds_its_share_of_a_keys_limits(file, clock):
    """Each of several gateways has its share of a key's limits, at least one; no limit stays none."""
    ring = KeyRing(file(entry(tokens_per_minute=600, max_requests=9, max_streams=1)), num_gateways=2)
    first = ring.find_account(f"Bearer {KEY}", PEER).limits
    file(entry(max_streams=5))
    clock[0] += keys.LOOK_S
    second = ring.find_account(f"Bearer {KEY}", PEER).limits

    assert (first.tokens_per_minute, first.max_requests, first.max_streams) == (300, 4, 1)
    assert (second.tokens_per_minute, second.max_requests, second.max_streams) == (None, None, 2)


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ("{", "no file of keys"),
        ('{"keys": [{"name": "a"}]}', "`hash`"),
        ('{"keys": [{"name": "a", "hash": "tm-mill"}]}', "regex"),
        (json.dumps({"keys": [entry(), entry("other")]}), "two keys of one name"),
        (json.dumps({"keys": [entry(), entry(name="other")]}), "two keys of one hash"),
        (json.dumps({"keys": [entry(max_streams=0)]}), ">= 1"),
        (json.dumps({"keys": [entry(max_stream=1)]}), "max_stream"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(tmp_path, said, complaint):
    """A missing or broken file of keys is one sentence with its path."""
    path = tmp_path / "keys.json"
    with pytest.raises(RuntimeFailure, match="cannot read"):
        KeyRing(path)
    path.write_text(said)

    with pytest.raises(RuntimeFailure, match=complaint) as error:
        read_keys(path)
    assert str(path) in str(error.value)


def test_what_is_computed_again_counts_again(clock):
    """A call repeated under one Idempotency-Key counts again for the key's limit, and once in the log."""
    account = Account(KeyEntry(name="team", hash="sha256:" + "0" * 64, tokens_per_minute=100))
    logged, idempotent = [], IdempotentCall()
    log = SimpleNamespace(log_call=lambda begun, units, *counted, **_: logged.append(counted))
    gateway = SimpleNamespace(log=log, traces=None)
    request = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(gateway=gateway)))
    counts = {"num_prompt_tokens": 20, "num_generated_tokens": 30, "num_hit_tokens": 9}
    generation = SimpleNamespace(close=list, units={}, is_answered=True, **counts)

    for _ in range(2):
        spending = account.begin(1, 60, is_stream=False)
        app._close_call(generation, spending, idempotent, CallRecord(request, "cmpl-1", 0.0))
        spending.end()

    assert read_refusal(account.check_tokens).code == "rate_limit_exceeded"
    assert logged == [(20, 30, 9), (0, 0, 0)]


NAMES = st.none() | st.text('ab"],[', max_size=4)


@given(*[st.tuples(NAMES, NAMES)] * 2)
def test_tenants_and_salts_have_salts_of_their_own(one, other):
    """Whatever a caller asks for, he gets nobody else's salt. It is short, and tells nothing that it was made of.

    All salts of a tenant, or of callers without keys, begin alike, and no other tenant's do.
    """
    salts = make_salt(*one), make_salt(*other)
    tenants = [salt[:TENANT_DIGITS] for salt in salts]

    assert (salts[0] == salts[1]) == (one == other)
    assert (tenants[0] == tenants[1]) == (one[0] == other[0])
    assert all(len(salt) == 48 and int(salt, 16) >= 0 for salt in salts)


def test_a_host_header_opens_no_door(file, monkeypatch):
    """The Host header does not affect whether a key is needed."""
    monkeypatch.setattr(Request, "url", URL("http://x/health?/v1/completions"))  # old Starlettes make this one of it
    door = Authentication(None, SimpleNamespace(keys=KeyRing(file(entry()))))

    def ask(path):
        return door._find_account(Request({"type": "http", "path": path, "headers": [(b"host", b"x/health?")]}))

    assert read_refusal(lambda: ask("/v1/completions")).status == 401
    assert ask("/health").name is None


@pytest.mark.parametrize(("sharing", "tenant"), [("tenant", "team"), ("all", None)])
def test_a_gateway_with_keys_lets_nobody_else_in(sharing, tenant, start_gateway, join, tokenizer, wait_until):
    """A gateway with keys lets only probes in without one, and counts what their limits refuse.

    Where the launch file says so, all keys share KV.
    """
    gateway = start_gateway(keys={"keys": [entry(max_streams=1)]}, sharing=sharing)
    pair = FakePair(*(join(at=gateway, phase=phase) for phase in ("prefill", "decode")))
    pair.reply = [*tokenizer.encode_whole("tide"), EOS_ID]
    for rank in (pair.prefill, pair.decode):
        rank.say(State("ready"))
    wait_until(lambda: gateway.ready_report()["ready"], "the pair is ready")
    asked = {"model": MODEL, "prompt": "mill", "stream": True}
    url = f"http://{ADDRESS}:{gateway.ports['http']}/v1"
    with (
        openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE_S) as stranger,
        openai.OpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=PATIENCE_S) as client,
    ):
        for call in (stranger.models.list, lambda: stranger.completions.create(**asked)):
            with pytest.raises(openai.AuthenticationError):
                call()
        pair.last_may_come.clear()
        stream = client.completions.create(**asked)
        with pytest.raises(openai.RateLimitError, match="1 streams at a time"):
            client.completions.create(**asked)
        pair.last_may_come.set()
        list(stream)
        list(client.completions.create(**asked | {"extra_body": {"cache_salt": "a"}}))
    heard = [pair.prefill.hear() for _ in range(2)]
    refused = [gateway.metric("tidemill_num_requests_rejected_total", code) for code in ("overloaded", "rate_limit")]

    assert refused == [0, 1]
    assert [prefill.cache_salt for prefill in heard] == [make_salt(tenant, None), make_salt(tenant, "a")]
    assert gateway.call("POST", "/v1/nothing", 9 * 2**20 * "x")[0] == 401
    assert "tm-" not in gateway.log()
