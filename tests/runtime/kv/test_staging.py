"""Memory that is pinned before requests come: nobody's piece is another's, and all of it comes back."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import RuntimeFailure
from runtime.kernels.device import HostLink
from runtime.kv.host_memory import ALIGNMENT, STAGED_SHARE, Staging, staged_bytes

NUM_BYTES = 8 * ALIGNMENT


class CopyingLink(HostLink):
    """Copies to the device go on until `end` is called."""

    def __init__(self):
        self._under_way = []

    def track_copies(self):
        self._under_way.append(copies := SimpleNamespace(have_ended=False))
        return lambda: copies.have_ended

    def end(self):
        for copies in self._under_way:
            copies.have_ended = True


class Holders:
    """Those who hold latents of `staging`."""

    def __init__(self, staging):
        self._staging, self.held = staging, []

    def take(self, num_bytes):
        """Return whether there was a gap for so many."""
        latents = self._staging.take((1, num_bytes, 1), torch.int8)
        self.held += [] if latents is None else [latents]
        return latents is not None

    def drop(self, number):
        if self.held:
            del self.held[number % len(self.held)]

    def places(self):
        """The bytes of the memory that each holds."""
        starts = [latents.storage_offset() for latents in self.held]
        return sorted((start, start + latents.nbytes) for start, latents in zip(starts, self.held, strict=True))

    def largest_gap(self):
        """As a piece may begin only at multiples of the alignment."""
        ends = [0, *(-(-end // ALIGNMENT) * ALIGNMENT for _, end in self.places())]
        return max(
            start - end for start, end in zip([*(start for start, _ in self.places()), NUM_BYTES], ends, strict=True)
        )


@given(st.lists(st.tuples(st.sampled_from(["take", "take", "drop"]), st.integers(1, 300))))
def test_pieces_never_overlap_and_all_memory_comes_back(steps):
    """Whatever comes and goes in whichever order; whoever is turned away is larger than every gap."""
    holders = Holders(Staging(HostLink(), NUM_BYTES))
    for step, number in steps:
        if step == "drop":
            holders.drop(number)
        else:
            gap = holders.largest_gap()
            assert holders.take(number) == (number <= gap)
    places = holders.places()
    holders.held.clear()

    assert all(end <= start for (_, end), (start, _) in pairwise(places))
    assert holders.take(NUM_BYTES)


def test_a_piece_is_given_out_again_when_copies_from_it_have_ended():
    """The step loop lets go of latents as soon as what it computes waits for their copy, which may still run."""
    link = CopyingLink()
    staging = Staging(link, NUM_BYTES)
    latents = staging.take((1, NUM_BYTES // 4, 1), torch.float32)
    address = latents.data_ptr()
    del latents
    refused = [staging.take((1, 1, 1), torch.float32) for _ in range(2)]
    link.end()

    assert refused == [None, None]
    assert staging.take((1, NUM_BYTES // 4, 1), torch.float32).data_ptr() == address


def test_what_is_ready_is_a_share_of_the_cache_or_a_longest_request():
    """A power of two of bytes, which is what torch pins."""

    def ready(kv_tokens, longest):
        limits = SimpleNamespace(kv_tokens=kv_tokens, max_request_tokens=longest)
        return staged_bytes(SimpleNamespace(limits=limits, kv_cache=SimpleNamespace(bytes_per_token=1)))

    assert ready(STAGED_SHARE * 4096, 100) == 4096
    assert ready(STAGED_SHARE * 4096, 4097) == 8192


def test_memory_that_cannot_be_pinned_is_one_sentence():
    """The rank ends with it before it is ready."""

    def fail(shape, dtype):
        raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ...")

    with pytest.raises(RuntimeFailure) as error:
        Staging(SimpleNamespace(empty=fail), 2**32)

    assert str(error.value) == "4.3 GB of host memory cannot be pinned for KV: CUDA error: out of memory"
