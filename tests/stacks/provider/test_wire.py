"""Values over Pulumi's wire and back."""

import pytest
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct
from hypothesis import given
from hypothesis import strategies as st

from stacks.provider.wire import UNKNOWN, decode_struct, encode_struct, has_unknown, mark_secrets

SCALARS = st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=10,
)
MAPS = st.dictionaries(st.text(max_size=4), VALUES, max_size=4)


def typed(value):
    """The value with the type of each scalar: in Python `2 == 2.0 == True + True`."""
    if isinstance(value, dict):
        return {key: typed(each) for key, each in value.items()}
    return [typed(each) for each in value] if isinstance(value, list) else (type(value), value)


def whole(value):
    """The value with each whole number an integer."""
    if isinstance(value, dict):
        return {key: whole(each) for key, each in value.items()}
    if isinstance(value, list):
        return list(map(whole, value))
    return int(value) if isinstance(value, float) and value.is_integer() else value


@pytest.mark.slow
@given(MAPS)
def test_what_goes_over_the_wire_comes_back(values):
    """Empty maps and lists too; a whole number is an integer again, which a server insists on."""
    assert typed(decode_struct(encode_struct(values))) == typed(whole(values))


def test_a_null_says_nothing():
    """Pulumi's languages write it for what is not set."""
    assert decode_struct(encode_struct({"a": None, "b": {"c": None, "d": 1}})) == {"b": {"d": 1}}


def secret(value):
    """The value as the wire marks it."""
    return {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "value": value}


def wire(values):
    return json_format.ParseDict(values, Struct())


def test_a_secret_is_its_value():
    """Who computes with it needs no mark."""
    assert decode_struct(wire({"data": secret({"a": "x"})})) == {"data": {"a": "x"}}


def test_what_was_given_as_a_secret_is_one_again():
    """Secrets are marked at any depth; a list that has one is secret as a whole, and nothing is marked twice."""
    given = wire({"data": {"key": secret("x"), "name": "y"}, "args": ["a", secret("b")], "gone": secret("z")})
    found = encode_struct({"data": {"key": "other", "name": "y", "new": "n"}, "args": ["a", "c"], "more": 1})

    marked = mark_secrets(found, given)

    assert marked == wire(
        {"data": {"key": secret("other"), "name": "y", "new": "n"}, "args": secret(["a", "c"]), "more": 1}
    )
    assert mark_secrets(marked, given) == marked


def test_what_is_not_known_yet_is_found_at_any_depth():
    """Such a manifest is not sent to a server."""
    assert has_unknown({"a": [{"b": UNKNOWN}]})
    assert not has_unknown({"a": [{"b": "known"}]})
