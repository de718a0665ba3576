"""Frames that are almost right: fields at their borders, bytes flipped, cut or doubled, and wrong sizes.

Every one follows from the seed. The frame is a real one, so that most of what comes out passes the first checks.
"""

import json
import random
import struct

from runtime.protocol.frames import FRAME_PREFIX_BYTES, VERSION, encode_frame

__all__ = ["mutated_bytes", "mutated_frames"]

VALUES = [
    *(None, True, "", "\x00", "x" * 300, "\ud7ff", 0, 1, -1, 70000, 2**31, 2**63, -(2**63), 2**64, 10**40),
    *(1e-40, 1e-300, 1.5, -1.0, 1e300, [], [0], [-1], [2**40], [[]], {}, {"a": 1}, [1] * 2000),
]


def mutated_frames(message, payload, number, seed):
    """Return `number` byte strings, each a frame of `message` and `payload` with one or two changes."""
    rng = random.Random(seed)
    for _ in range(number):
        header = json.loads(encode_frame(message)[FRAME_PREFIX_BYTES:])
        changes = rng.choices(CHANGES, weights=(6, 1, 1, 1, 1), k=rng.choice((1, 1, 2)))
        data = None
        if set_field in changes:
            set_field(header, rng)
        text = json.dumps(header).encode()
        data = struct.pack("!4sHHIQ", b"TDML", VERSION, 0, len(text), len(payload)) + text + payload
        for change in changes:
            data = data if change is set_field else change(data, rng)
        yield data


def mutated_bytes(spoken, number, seed):
    """Return `number` byte strings, each one of `spoken` with one or a few changes."""
    rng = random.Random(seed)
    for _ in range(number):
        data = rng.choice(spoken)
        for change in rng.choices((flip, cut, double), k=rng.choice((1, 1, 2, 8))):
            data = change(data, rng) if data else rng.randbytes(16)
        yield data


def set_field(header, rng):
    """Set one field, at any depth, to another value."""
    place = header
    while True:
        key = rng.choice(range(len(place)) if isinstance(place, list) else sorted(place))
        if place[key] and isinstance(place[key], dict | list) and rng.random() < 0.7:
            place = place[key]
        else:
            place[key] = rng.choice(VALUES)
            return


def flip(data, rng):
    changed = bytearray(data)
    changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(data, rng):
    return data[: rng.randrange(len(data))]


def double(data, rng):
    return data + data[rng.randrange(len(data)) :]


def change_sizes(data, rng):
    sizes = [rng.choice((0, 1, 2**16, 2**31, 2**32 - 1)), rng.choice((0, 1, 2**16, 2**40, 2**64 - 1))]
    return data[:8] + struct.pack("!IQ", *sizes) + data[FRAME_PREFIX_BYTES:]


CHANGES = (set_field, flip, cut, double, change_sizes)
