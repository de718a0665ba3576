"""Pulumi's wire format and plain JSON values, in both directions.

The wire is a protobuf Struct with three peculiarities: every number is a double; a value that is not known yet, at
preview, is a certain string; and a secret is a certain kind of map, sent even to providers that asked for none in their
own configuration. Whole numbers become `int` here, since a server refuses `replicas: 2.0`; secrets lose their mark, and
`mark_secrets` puts it back.

A null is dropped: it means nothing to Kubernetes, and Pulumi's languages write it for values that are not set.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.struct_pb2 import ListValue, Struct, Value
from pulumi.runtime import rpc

__all__ = ["UNKNOWN", "decode_struct", "encode_struct", "has_secret", "has_unknown", "mark_secrets"]

UNKNOWN = rpc.UNKNOWN

SIGNATURE_KEY = "4dabf18193072939515e22adb298388d"
SECRET_SIGNATURE = "1b47061264138c4ac30d75fd1eb44270"  # noqa: S105  a tag of the protocol, no secret


def decode_struct(struct: Struct) -> dict[str, Any]:
    """Return a wire Struct as plain values. A value that is not known yet becomes the string `UNKNOWN`."""
    return {key: _plain(value) for key, value in sorted(struct.fields.items()) if not _is_null(value)}


def encode_struct(values: Mapping[str, Any]) -> Struct:
    """Return plain values as a wire Struct."""
    struct = Struct()
    for key, value in values.items():
        struct.fields[key].CopyFrom(_value(value))
    return struct


def mark_secrets(values: Struct, given: Struct) -> Struct:
    """Return `values`, marked as secret wherever `given` is. A list with a secret item is secret as a whole."""
    marked = Struct()
    for key, value in values.fields.items():
        marked.fields[key].CopyFrom(_mark(value, given.fields[key]) if key in given.fields else value)
    return marked


def has_unknown(value: Any) -> bool:
    """Return whether `value` or a part of it is not known yet."""
    if isinstance(value, dict):
        return any(map(has_unknown, value.values()))
    if isinstance(value, list):
        return any(map(has_unknown, value))
    return isinstance(value, str) and value == UNKNOWN


def has_secret(value: Value) -> bool:
    """Return whether `value` or a part of it is secret."""
    parts = [*value.list_value.values, *value.struct_value.fields.values()]
    return _is_secret(value) or any(map(has_secret, parts))


def _mark(value: Value, given: Value) -> Value:
    if _is_secret(value):
        return value
    if value.HasField("struct_value") and given.HasField("struct_value") and not _is_secret(given):
        return Value(struct_value=mark_secrets(value.struct_value, given.struct_value))
    if not has_secret(given):
        return value
    secret = Value()
    secret.struct_value.fields[SIGNATURE_KEY].string_value = SECRET_SIGNATURE
    secret.struct_value.fields["value"].CopyFrom(value)
    return secret


def _is_secret(value: Value) -> bool:
    fields = value.struct_value.fields
    return SIGNATURE_KEY in fields and fields[SIGNATURE_KEY].string_value == SECRET_SIGNATURE


def _plain(value: Value) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return _plain(value.struct_value.fields["value"]) if _is_secret(value) else decode_struct(value.struct_value)
    if kind == "list_value":
        return [_plain(each) for each in value.list_value.values]
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() else number
    if kind == "bool_value":
        return value.bool_value
    return None if _is_null(value) else value.string_value


def _is_null(value: Value) -> bool:
    return value.WhichOneof("kind") in (None, "null_value")


def _value(plain: Any) -> Value:
    if isinstance(plain, Mapping):
        return Value(struct_value=encode_struct(plain))
    if isinstance(plain, str):
        return Value(string_value=plain)
    if isinstance(plain, Sequence):
        return Value(list_value=ListValue(values=map(_value, plain)))
    if isinstance(plain, bool):
        return Value(bool_value=plain)
    if plain is None:
        return Value(null_value=0)
    return Value(number_value=plain)
