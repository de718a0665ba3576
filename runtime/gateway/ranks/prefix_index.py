"""Remembers which rank has which prefixes of prompts in its cache, so that prompts are sent there.

    hash     of the previous block's hash and of a block's 64 token ids; the first block's follows this gateway's secret
             and the salt (a quarter of its bits are a hash of the salt's tenant)
    index    for each rank, the hashes of the prompts' blocks that this gateway sent there, by their last use

The hashes are this gateway's own. Ranks hash blocks in their own way (`kv/blocks.py`), and no hashes are exchanged. The
salt is the tenant's, so where a prompt goes says nothing about what other tenants ask. The secret keeps callers from
finding prompts with equal hashes.

    [rank R, bucket B, way W]    a hash belongs in one bucket and lies in any of its ways

In a full bucket a new hash replaces the oldest one, if nobody used it for FRESH_NS; otherwise the oldest of the tenant
with most hashes there. Ranks give up pages by the same rule (`kv/idle.py`). So a tenant who floods a rank with prompts
makes the gateway forget his own, and not the others' that the rank still has.

A hash and its last use take 16 bytes. Each rank has room for more hashes than its pages and host memory hold: it shows
by what it finds that it has lost blocks, and then `forget_unused_since` follows it. A wrong entry only costs a worse
choice, so hashes of 64 bits are enough, and two tenants may have the same bits.

Worked example: a rank got a prompt of 150 tokens. A prompt of 200 tokens that begins with the same 140 finds two blocks
there, and misses 72 tokens.

Models: the approximate prefix scorer of llm-d's endpoint picker, which keeps as many hashes of each server as its cache
has blocks, and does not hear what was found (llm-d/llm-d-router
pkg/epp/framework/plugins/requestcontrol/dataproducer/approximateprefix); the block hashes of vLLM.
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from runtime.protocol.block_chain import chain_blocks
from runtime.protocol.messages import TENANT_DIGITS

__all__ = ["NO_HASHES", "BlockHashes", "PrefixIndex", "hash_blocks"]

BlockHashes: TypeAlias = NDArray[np.uint64]

NO_HASHES: BlockHashes = np.zeros(0, dtype=np.uint64)
SECRET = secrets.token_bytes(32)
HASH_BYTES, TENANT_BYTES = 8, 2  # the tenant's are the highest
TENANT_SHIFT = np.uint64(8 * (HASH_BYTES - TENANT_BYTES))
FRESH_NS = 600 * 10**9  # FRESH_S of `kv/idle.py`, so that index and ranks forget the same tenants
NEVER = np.uint64(2**64 - 1)  # a last use after all others
WAYS = 8
ENTRY_BYTES = HASH_BYTES + 8  # a hash and its last use
NUM_BLOCKS = 2**16  # of a rank; assumed: 4.2 million tokens, 295 GB of DeepSeek-V3's KV in BF16
MAX_BYTES = 64 * 2**20  # assumed: enough for 64 ranks with all their blocks, or for 512 with 524,000 tokens each
FIRST_RANKS = 4  # the index has room for so many, and for twice as many whenever there are more


def hash_blocks(salt: str, token_ids: Sequence[int]) -> BlockHashes:
    """Return the hash of each whole block of these tokens."""
    tenant = hashlib.sha256(SECRET + salt[:TENANT_DIGITS].encode()).digest()[:TENANT_BYTES]
    digests = chain_blocks(hashlib.sha256(SECRET + salt.encode()).digest(), token_ids)
    hashes = (digest[: HASH_BYTES - TENANT_BYTES] + tenant for digest in digests)
    return np.frombuffer(b"".join(hashes), dtype="<u8").astype(np.uint64)


class PrefixIndex:
    """The hashes of the blocks at each rank.

    `add_rank` gives a rank its row in the index (its place), until `remove_rank`.
    """

    def __init__(
        self,
        num_blocks: int = NUM_BLOCKS,
        max_bytes: int = MAX_BYTES,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Remember `num_blocks` blocks of each rank, or fewer if all ranks' blocks would take over `max_bytes`."""
        self._max_bytes = max_bytes
        self._most_buckets = max(-(-num_blocks // WAYS), 1)
        self._free = list(range(FIRST_RANKS))
        self._clock_ns = clock_ns
        self._last_time = 0  # of a use: no two hashes are used at the same nanosecond
        self._allocate(FIRST_RANKS)

    @property
    def num_bytes(self) -> int:
        """The memory that hashes and their last uses take."""
        return self._hashes_RBW.nbytes + self._used_RBW.nbytes

    def add_rank(self) -> int:
        """Take a free row of the index for a new rank, and return its number. If there is none, double the rows.

        If that takes too much memory, start empty, with fewer blocks for each rank.
        """
        if not self._free:
            self._grow()
        return self._free.pop()

    def remove_rank(self, place: int) -> None:
        """Forget the rank whose row in the index is `place`."""
        self._hashes_RBW[place] = self._used_RBW[place] = 0
        self._free.append(place)

    def find(self, hashes: BlockHashes, places: Sequence[int]) -> list[int]:
        """Return for each rank in `places` how many of a prompt's blocks, from the first on, the rank has.

        A hit never follows a miss, so the number is found by bisection, at all ranks at once.
        """
        found = np.zeros(len(places), dtype=np.int64)
        if not len(hashes) or not places:
            return [0] * len(places)
        places_R = np.array(places)
        hits = np.flatnonzero(self._has(places_R, hashes[:1]))
        low, high = np.ones(len(hits), dtype=np.int64), np.full(len(hits), len(hashes))
        while (low < high).any():
            middle = (low + high + 1) // 2
            has = self._has(places_R[hits], hashes[middle - 1])
            low, high = np.where(has, middle, low), np.where(has, high, middle - 1)
        found[hits] = low
        return [int(number) for number in found]

    def last_use(self, place: int, hashes: BlockHashes) -> int:
        """Return the time in ns at which a rank last used the last of these blocks.

        Return 0 if the rank does not have the last block.
        """
        buckets, is_same = self._locate(place, hashes[-1:])
        return int(self._used_RBW[place, buckets][is_same].max(initial=0))

    def use(self, place: int, hashes: BlockHashes) -> None:
        """Record that a rank uses or computes these blocks now. The first block counts as used most recently."""
        keys = hashes[::-1]
        begin = max(self._last_time + 1, self._clock_ns())
        times = np.arange(begin, begin + len(keys), dtype=np.uint64)
        self._last_time = begin + len(keys) - 1
        buckets, is_same = self._locate(place, keys)
        is_known = is_same.any(axis=1)
        self._used_RBW[place, buckets[is_known], is_same[is_known].argmax(axis=1)] = times[is_known]
        new = np.flatnonzero(~is_known)
        while len(new):  # one hash of each bucket at a time
            _, first = np.unique(buckets[new], return_index=True)
            now = new[first]
            ways = self._choose_ways(place, buckets[now])
            self._hashes_RBW[place, buckets[now], ways] = keys[now]
            self._used_RBW[place, buckets[now], ways] = times[now]
            new = np.delete(new, first)

    def forget(self, place: int, hashes: BlockHashes) -> None:
        """Forget that a rank has these blocks."""
        buckets, is_same = self._locate(place, hashes)
        number, ways = np.nonzero(is_same)
        self._hashes_RBW[place, buckets[number], ways] = self._used_RBW[place, buckets[number], ways] = 0

    def forget_unused_since(self, place: int, time: int, hashes: BlockHashes) -> None:
        """Forget a rank's blocks last used at or before `time` (ns), of the tenant that `hashes` belong to."""
        is_tenants = self._hashes_RBW[place] >> TENANT_SHIFT == hashes[0] >> TENANT_SHIFT
        is_old = is_tenants & (self._used_RBW[place] <= time)
        self._hashes_RBW[place][is_old] = self._used_RBW[place][is_old] = 0

    def _allocate(self, num_ranks: int) -> None:
        """Allocate an empty index for `num_ranks` ranks; the system takes memory as it is written."""
        self._num_buckets = min(self._most_buckets, max(self._max_bytes // (num_ranks * WAYS * ENTRY_BYTES), 1))
        shape = num_ranks, self._num_buckets, WAYS
        self._hashes_RBW: NDArray[np.uint64] = np.zeros(shape, dtype=np.uint64)
        self._used_RBW: NDArray[np.uint64] = np.zeros(shape, dtype=np.uint64)

    def _grow(self) -> None:
        hashes_RBW, used_RBW, num_ranks = self._hashes_RBW, self._used_RBW, len(self._hashes_RBW)
        num_buckets = self._num_buckets
        self._allocate(2 * num_ranks)
        if self._num_buckets == num_buckets:
            self._hashes_RBW[:num_ranks], self._used_RBW[:num_ranks] = hashes_RBW, used_RBW
        self._free += range(2 * num_ranks - 1, num_ranks - 1, -1)

    def _has(self, places: NDArray[np.int64], keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return for each rank, given by its row in the index (`places`), whether the index has the rank's key.

        `keys` has one key per rank, or a single key for all.
        """
        rows_RW = self._hashes_RBW[places, keys % self._num_buckets]
        return (rows_RW == keys[:, None]).any(axis=1)

    def _choose_ways(self, place: int, buckets: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return for each bucket the way (the place in it) for its next hash.

        A free way is taken if there is one. Otherwise it is the least recently used of the stale ways and of those of
        the tenant that has most ways in the bucket.
        """
        used_BW = self._used_RBW[place, buckets]
        is_stale_BW = used_BW <= max(self._last_time - FRESH_NS, 0)  # a free way was never used
        if is_stale_BW.any(axis=1).all():  # usual while the index is not full: the oldest way is a stale one
            return used_BW.argmin(axis=1)
        tenants_BW = (self._hashes_RBW[place, buckets] >> TENANT_SHIFT).astype(np.uint16)
        is_same_BWW = tenants_BW[:, :, None] == tenants_BW[:, None, :]
        num_names_BW = np.bitwise_count(is_same_BWW.view(np.uint64)[:, :, 0])  # WAYS bools are one integer
        has_most_BW = num_names_BW == num_names_BW.max(axis=1, keepdims=True)
        return np.where(is_stale_BW | has_most_BW, used_BW, NEVER).argmin(axis=1)

    def _locate(self, place: int, keys: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """Return each key's bucket, and whether each of the bucket's ways has the key, `[num_keys, WAYS]`."""
        buckets = keys % self._num_buckets
        return buckets, self._hashes_RBW[place, buckets] == keys[:, None]
