"""A block's file: the block that was asked for, byte for byte, or none."""

import os
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.kv.sender import as_bytes
from runtime.kv.tiers.block_file import (
    CUT,
    DAMAGED,
    FOREIGN,
    HEADER_BYTES,
    BlockForm,
    NotThisBlock,
    read_block,
    write_parts,
)
from tests.runtime.kv.tiers.disks import FORM, latents_of, name_of, same

NAME = name_of(0)
NUM_BODY_BYTES = 100 if not os.environ.get("CI") else 1000


def file_bytes(name=NAME, form=FORM):
    return b"".join(form.parts(name, as_bytes(latents_of(name, form))))


def read(path, content, name=NAME, form=FORM):
    """What reading a file of this content gives: latents, or a reason."""
    path.write_bytes(content)
    latents = torch.empty(form.shape, dtype=form.dtype)
    file = os.open(path, os.O_RDONLY)
    try:
        read_block(file, form, name, as_bytes(latents))
    except NotThisBlock as error:
        return error.reason
    finally:
        os.close(file)
    return latents


shapes = st.tuples(st.integers(1, 3), st.just(64), st.integers(1, 5))
dtypes = st.sampled_from([torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn])


@given(shapes, dtypes, st.binary(min_size=32, max_size=32))
def test_a_block_comes_back_bit_for_bit(tmp_path_factory, shape, dtype, name):
    """Whatever its shape and type, NaNs included."""
    form = BlockForm(bytes(32), shape, dtype)
    found = read(tmp_path_factory.getbasetemp() / "block", file_bytes(name, form), name, form)

    assert same(found, latents_of(name, form))


def test_deepseeks_blocks_have_the_documented_size():
    """The module's worked example."""
    assert BlockForm(bytes(32), (61, 64, 576), torch.bfloat16).file_bytes == 4_497_536


def test_a_flipped_bit_anywhere_is_found(tmp_path):
    """In each byte of the header, and in bytes of the body drawn at random."""
    whole, draw = file_bytes(), random.Random(0)
    places = [*range(HEADER_BYTES), *draw.choices(range(HEADER_BYTES, len(whole)), k=NUM_BODY_BYTES)]
    for place in places:
        content = bytearray(whole)
        content[place] ^= 1 << draw.randrange(8)

        assert read(tmp_path / "block", content) == DAMAGED, place


def test_a_cut_file_is_found_at_every_length(tmp_path):
    """From the empty one to one byte less than all."""
    small = BlockForm(bytes(32), (1, 64, 2), torch.float8_e4m3fn)
    whole = file_bytes(NAME, small)

    assert {read(tmp_path / "block", whole[:length], NAME, small) for length in range(len(whole))} == {CUT}


def test_a_file_with_more_than_a_block_is_damaged(tmp_path):
    """A writer that went on behind its end is no writer of ours."""
    assert read(tmp_path / "block", file_bytes() + b"\0") == DAMAGED


@pytest.mark.parametrize(
    "other",
    [
        replace(FORM, block_digest=bytes(32)),
        replace(FORM, dtype=torch.float16),
        replace(FORM, shape=(1, 64, 16)),
        replace(FORM, shape=(3, 64, 8)),
    ],
    ids=["model", "dtype", "shape of equal size", "shape"],
)
def test_a_whole_file_of_another_model_is_foreign(tmp_path, other):
    """Though it lies under the right name."""
    assert read(tmp_path / "block", file_bytes(NAME, other)) == FOREIGN


def test_a_whole_file_of_another_name_is_foreign(tmp_path):
    """A renamed file is not believed."""
    assert read(tmp_path / "block", file_bytes(name_of(1))) == FOREIGN


@given(st.binary(max_size=400) | st.binary(min_size=FORM.file_bytes, max_size=FORM.file_bytes))
def test_no_other_file_is_a_block(tmp_path_factory, content):
    """Whatever its bytes are."""
    assert read(tmp_path_factory.getbasetemp() / "block", content) in (CUT, DAMAGED, FOREIGN)


def test_a_file_cut_while_it_is_read_is_found(tmp_path, monkeypatch):
    """It ends sooner than it was long."""
    monkeypatch.setattr(os, "preadv", lambda file, parts, at: 0)

    assert read(tmp_path / "block", file_bytes()) == CUT


def test_short_reads_and_writes_go_on(tmp_path, monkeypatch):
    """Where a call moves less than it could, as over a network."""
    for name in ("preadv", "pwritev"):
        move = getattr(os, name)
        monkeypatch.setattr(os, name, lambda file, parts, at, move=move: move(file, [parts[0][:100]], at))
    path = tmp_path / "block"
    with path.open("wb") as file:
        write_parts(file.fileno(), FORM.parts(NAME, as_bytes(latents_of(NAME))))
    content = path.read_bytes()

    assert content == file_bytes()
    assert same(read(path, content), latents_of(NAME))
