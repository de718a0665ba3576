"""A written frame is read back, and bytes that are no frame are refused in one sentence."""

import asyncio
import hashlib
import json
import struct
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import WireError, WireVersionError
from runtime.protocol.frames import (
    FRAME_PREFIX_BYTES,
    MAX_HEADER_BYTES,
    STRANGER_HEADER_BYTES,
    VERSION,
    FrameReader,
    encode_frame,
)
from runtime.protocol.messages import (
    Abort,
    Amount,
    Claim,
    FromGateway,
    FromLeader,
    FromPrefill,
    FromRank,
    HandoverReply,
    Logprobs,
    Proceed,
    Rejected,
    Sampling,
)

ANY_MESSAGE = FromRank | FromGateway | FromPrefill | HandoverReply | Claim | FromLeader | Proceed
MAX_PAYLOAD = 1000
PREFIX = struct.Struct("!4sHHIQ")

# Text as JSON can carry it: no lone surrogates.
texts = st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.integers(-(2**63), 2**63 - 1)
amounts = st.integers(0, 2**62)
types = get_args(ANY_MESSAGE)
st.register_type_strategy(str, texts)
st.register_type_strategy(int, numbers)
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))


def messages_of(kind):
    """Draw any value of a message type, by its annotations."""
    annotations = {name: kind.__annotations__[name] for name in kind.__struct_fields__}
    bounded = {Amount: amounts, Amount | None: st.none() | amounts}
    return st.builds(
        kind, **{name: bounded[each] if each in bounded else st.from_type(each) for name, each in annotations.items()}
    )


st.register_type_strategy(Sampling, messages_of(Sampling))
messages = st.one_of([messages_of(kind) for kind in types])


def read_all(data, kind=ANY_MESSAGE):
    """Return every frame of `data`, from a stream that then closes."""

    async def read():
        stream = asyncio.StreamReader()
        stream.feed_data(data)
        stream.feed_eof()
        reader, frames = FrameReader(stream, kind, MAX_PAYLOAD), []
        while (frame := await reader.read()) is not None:
            frames.append(frame)
        return frames

    return asyncio.run(read())


def refusal(data, kind=ANY_MESSAGE):
    with pytest.raises(WireError) as error:
        read_all(data, kind)
    assert "\n" not in str(error.value)
    return str(error.value)


@given(st.lists(st.tuples(messages, st.binary(max_size=50)), max_size=4))
def test_frames_round_trip(frames):
    """Any messages and payloads come back in order, and the close gives None."""
    data = b"".join(encode_frame(message, len(payload)) + payload for message, payload in frames)

    assert read_all(data) == frames


@given(st.lists(messages, min_size=1, max_size=6), st.data())
def test_messages_come_out_whatever_pieces_they_come_in(messages, data):
    """Messages in any pieces come out in order, buffered or waited for."""
    sent = b"".join(map(encode_frame, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=5)))
    pieces = [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]

    async def read():
        stream = asyncio.StreamReader()
        reader, heard = FrameReader(stream, ANY_MESSAGE), []
        feeding = asyncio.ensure_future(feed(stream))
        while (frame := await reader.read()) is not None:
            heard.append(frame[0])
            while (message := reader.read_buffered()) is not None:
                heard.append(message)
        await feeding
        return heard

    async def feed(stream):
        for piece in pieces:
            stream.feed_data(piece)
            await asyncio.sleep(0)
        stream.feed_eof()

    assert asyncio.run(read()) == messages


def test_what_came_together_is_there_without_waiting():
    """A second message in the same piece is there without waiting; an incomplete third one is not."""

    async def read():
        stream = asyncio.StreamReader()
        reader = FrameReader(stream, ANY_MESSAGE)
        stream.feed_data(encode_frame(Abort("a")) + encode_frame(Abort("b")) + encode_frame(Abort("c"))[:-1])
        return (await reader.read())[0], reader.read_buffered(), reader.read_buffered()

    assert asyncio.run(read()) == (Abort("a"), Abort("b"), None)


@given(messages, st.binary(min_size=1, max_size=50), st.data())
def test_a_frame_cut_short_is_refused(message, payload, data):
    """A close anywhere inside a frame is refused as such."""
    frame = encode_frame(message, len(payload)) + payload
    cut = data.draw(st.integers(1, len(frame) - 1))

    assert refusal(frame[:cut]) == "the peer closed the connection inside a frame"


@given(st.binary(min_size=FRAME_PREFIX_BYTES, max_size=200).filter(lambda data: not data.startswith(b"TDML")))
def test_garbage_is_refused(garbage):
    """Bytes of another protocol are refused."""
    assert refusal(garbage) == "the peer does not speak Tidemill's wire protocol"


def test_an_http_request_is_refused():
    """An HTTP request is refused."""
    assert "wire protocol" in refusal(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")


@given(st.binary(max_size=100))
def test_garbage_inside_a_header_is_refused(header):
    """A right prefix before JSON that is broken, or no message, is refused."""
    refusal(PREFIX.pack(b"TDML", VERSION, 0, len(header), 0) + header)


@pytest.mark.parametrize(
    "header",
    [
        b'"\xff\xfe"',
        b'{"type": "abort", "request_id": "\xff"}',
        b'{"type": "abort", "request_id": 7}',
        b'{"type": "abort", "request_id": "a", "surprise": 1}',
        b'{"type": "abort"}',
        b'{"type": "explode"}',
        b'{"request_id": "a"}',
        b"[" * 5000,
        b"",
    ],
)
def test_a_message_of_no_known_form_is_refused(header):
    """A header that is not UTF-8, has a wrong type, key or tag, or is absurdly nested is refused."""
    assert "a message cannot be read" in refusal(PREFIX.pack(b"TDML", VERSION, 0, len(header), 0) + header)


@pytest.mark.parametrize("kind", [FromRank, FromGateway, FromPrefill, HandoverReply, Claim, FromLeader])
def test_a_deeply_nested_message_is_refused(kind):
    """A message that is nested beyond Python's recursion limit is refused like other garbage."""
    header = b'{"type":' + b"[" * 100_000

    assert "a message cannot be read" in refusal(PREFIX.pack(b"TDML", VERSION, 0, len(header), 0) + header, kind)


def test_a_message_for_somebody_else_is_refused():
    """A reader refuses messages of another set, such as a gateway's own."""
    assert "cannot be read" in refusal(encode_frame(Abort("a")), FromRank)


def test_another_version_names_both():
    """Another version is refused with both versions, whatever follows in the frame."""
    with pytest.raises(WireVersionError, match=f"^the peer speaks wire version {VERSION + 1}, this runtime {VERSION}$"):
        read_all(PREFIX.pack(b"TDML", VERSION + 1, 0, 2**32 - 1, 2**64 - 1))


# Version -> sha256 of its messages' JSON Schema. A line that was released stays; other messages are another version.
MESSAGES = {
    1: "dbfd4a336de04a7fc46b3041bf4914d775d5537b4ca8ab7514c808d26ab2471f",
    2: "480bce1eccf766e2928006a9a97c61f6a928776132bb82c55cc7d215efd9f852",
    3: "60d1c0697a60447f5a8e44e0bb639cb6a6609204eafdde6c1fffdd07d29a34a5",
    4: "49fb96c4a998b0b67d40a181a8736d28c5e162b0e73d2111c8e63209d68c2fe2",
    5: "5d6806c102ace8de06ab0651d5910ede189db5ff69f103c9f9cdc7203c6de979",
    6: "e0db8237fa430e295ddf1fe76501ef5f2ca3fa57dd809c930f1981f26943c9ca",
    7: "9e30fb93ebad2dc7111bb657275ad47bf30ca1c57d30dfb6cf2185425c2a6ec3",
    8: "16b60f59ebd93b50ed49d02bf7de149bf55508051a560972aef471a775ffbef7",
    9: "207e3581c7f114d54c91cfceb267b2fafd82c38d1a9615d2dc8a5dc955b88f8f",
    10: "0daba6db0d4aecf67c8b161b43a6b5fb0750005a09736c480f4345728aafae29",
    11: "35117091e64d713943ce8b70e2cf8c84cb932034dde68c19c3c4b2996b82b9d9",
}


def test_a_version_has_its_messages():
    """A changed message needs a new `VERSION`, which the planner must have too."""
    kinds = [*types, Sampling, Logprobs]
    _, schemas = msgspec.json.schema_components(kinds)
    fields = {
        kind: {key: value for key, value in schema.items() if key != "description"} for kind, schema in schemas.items()
    }

    assert len(fields) == len(kinds)
    assert hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest() == MESSAGES[VERSION]


@pytest.mark.parametrize(("header_bytes", "payload_bytes"), [(MAX_HEADER_BYTES + 1, 0), (2, MAX_PAYLOAD + 1)])
def test_oversize_is_refused_before_it_is_read(header_bytes, payload_bytes):
    """A size over the limit is refused by the prefix alone."""
    assert "over" in refusal(PREFIX.pack(b"TDML", VERSION, 0, header_bytes, payload_bytes))


def test_the_largest_numbers_are_refused_too():
    """The largest sizes do not overflow into small ones."""
    refusal(PREFIX.pack(b"TDML", VERSION, 0, 2**32 - 1, 2**64 - 1))


def test_a_strangers_header_is_short():
    """A header that is too long as the first of a connection is read later."""
    frame = encode_frame(Rejected("x" * STRANGER_HEADER_BYTES))

    async def read(is_first):
        stream = asyncio.StreamReader()
        stream.feed_data(frame if not is_first else frame[:FRAME_PREFIX_BYTES])
        frames = FrameReader(stream, ANY_MESSAGE)
        return await (frames.read_first("claim", 600) if is_first else frames.read_header())

    with pytest.raises(WireError, match=f"over the limit of {STRANGER_HEADER_BYTES:,}"):
        asyncio.run(read(is_first=True))
    assert asyncio.run(read(is_first=False))[0] == Rejected("x" * STRANGER_HEADER_BYTES)


def test_a_clean_close_is_none():
    """A close between frames is no error."""
    assert read_all(b"") == []


def test_the_prefix_is_what_the_docstring_says():
    """The prefix has 20 bytes and gives the size of the JSON after it."""
    frame = encode_frame(Abort("a"), 5)

    assert FRAME_PREFIX_BYTES == PREFIX.size == 20
    assert PREFIX.unpack(frame[:20]) == (b"TDML", VERSION, 0, len(frame) - 20, 5)
    assert msgspec.json.decode(frame[20:]) == {"type": "abort", "request_id": "a"}
