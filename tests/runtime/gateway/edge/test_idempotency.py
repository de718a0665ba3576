"""A call that comes again under its key is drawn alike and counted once; another body is refused."""

import pytest

from runtime.gateway.edge import idempotency
from runtime.gateway.edge.http_errors import ApiError
from runtime.gateway.edge.idempotency import KEPT_S, MAX_CHARACTERS, IdempotencyKeys

PATH, BODY = "/v1/completions", b'{"prompt": "mill"}'


def test_the_seed_follows_from_the_key_at_every_gateway():
    """The seed follows from key and account at every gateway."""
    first, second = (IdempotencyKeys().begin_request("order-7", "alice", PATH, BODY) for _ in range(2))
    others = [IdempotencyKeys().begin_request(*call, PATH, BODY) for call in (("order-8", "alice"), ("order-7", "bob"))]

    assert first.seed == second.seed >= 0
    assert first.digest == second.digest
    assert len({first.seed, *(other.seed for other in others)}) == 3


def test_a_call_without_a_key_draws_at_random():
    """A call without a key draws at random, and nothing of it is kept."""
    keys = IdempotencyKeys()

    assert keys.begin_request(None, "alice", PATH, BODY).seed is None
    assert keys.begin_request(None, "alice", PATH, b"another").digest is None


def test_tokens_count_once_however_often_the_call_comes():
    """A repeated call counts only the tokens beyond those counted before."""
    keys = IdempotencyKeys()

    assert keys.begin_request("order-7", None, PATH, BODY).count(10, 3) == (10, 3)
    assert keys.begin_request("order-7", None, PATH, BODY).count(10, 8) == (0, 5)
    assert keys.begin_request("order-7", None, PATH, BODY).count(10, 8) == (0, 0)


@pytest.mark.parametrize("other", [(PATH, b'{"prompt": "tide"}'), ("/v1/chat/completions", BODY)])
def test_another_call_under_the_same_key_is_refused(other):
    """Another body under the same key is refused."""
    keys = IdempotencyKeys()
    keys.begin_request("order-7", "alice", PATH, BODY)

    with pytest.raises(ApiError) as error:
        keys.begin_request("order-7", "alice", *other)

    assert error.value.status == 422
    keys.begin_request("order-7", "bob", *other)


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_call_that_ranks_never_had_does_not_spend_its_key(has_begun):
    """A key is free for another body until ranks have had the call."""
    keys = IdempotencyKeys()
    call = keys.begin_request("order-7", None, PATH, b"wrong")
    call.has_begun = has_begun
    keys.end_request(call)

    if has_begun:
        with pytest.raises(ApiError, match="Idempotency"):
            keys.begin_request("order-7", None, PATH, BODY)
    else:
        keys.begin_request("order-7", None, PATH, BODY)


def test_a_key_is_free_when_the_last_request_of_its_call_has_ended():
    """A key is held until the last of its equal requests has ended or left."""
    keys = IdempotencyKeys()
    first, second = (keys.begin_request("order-7", None, PATH, b"wrong") for _ in range(2))
    keys.end_request(first)
    with pytest.raises(ApiError, match="Idempotency"):
        keys.begin_request("order-7", None, PATH, BODY)
    keys.end_request(second)

    keys.begin_request("order-7", None, PATH, BODY)


def test_a_call_that_was_forgotten_frees_no_other_calls_key():
    """A forgotten call that ends does not free the key for which another call has taken its place."""
    now = [0.0]
    keys = IdempotencyKeys(lambda: now[0])
    forgotten = keys.begin_request("order-7", None, PATH, b"wrong")
    now[0] = KEPT_S + 1
    keys.begin_request("order-7", None, PATH, BODY)
    keys.end_request(forgotten)

    with pytest.raises(ApiError, match="Idempotency"):
        keys.begin_request("order-7", None, PATH, b"wrong")


@pytest.mark.parametrize("key", ["", "k" * (MAX_CHARACTERS + 1), "a\x00b"])
def test_what_is_no_key_is_refused(key):
    """A malformed key is refused with the rule, and nothing is kept."""
    with pytest.raises(ApiError) as error:
        IdempotencyKeys().begin_request(key, None, PATH, BODY)

    assert error.value.status == 400
    assert "Idempotency-Key must have 1 to 255 characters" in error.value.message


def test_a_key_is_forgotten_after_a_day_and_when_there_are_too_many(monkeypatch):
    """A key is forgotten after a day, or when there are too many."""
    monkeypatch.setattr(idempotency, "MAX_KEPT", 3)
    now = [0.0]
    keys = IdempotencyKeys(lambda: now[0])
    keys.begin_request("old", None, PATH, BODY).count(10, 3)
    now[0] = KEPT_S + 1
    assert keys.begin_request("old", None, PATH, BODY).count(10, 3) == (10, 3)
    for number in range(3):
        keys.begin_request(f"other-{number}", None, PATH, BODY)

    assert keys.begin_request("old", None, PATH, BODY).count(10, 3) == (10, 3)
    assert len(keys._calls) <= 3
