"""A model of the KV cache: memory holds the blocks used most recently, and disks behind it hold blocks used twice.

All units share it, since the gateway sends prompts where their blocks are. It has a prompt's blocks as soon as the
prompt comes. A plan without kept KV gets one that is never full: it shows what the trace could give.

The runtime's ranks (`runtime/serving/fetches.py`) write a block to a disk on its second use. They remember hashes of
blocks that they have not, in a table with one place for each hash, and so does this.
"""

from collections import OrderedDict
from collections.abc import Sequence

from planner.compiler import Compiled
from planner.facts.quantisation import KV_BYTES, kv_dtype
from planner.facts.trace import BLOCK_TOKENS

__all__ = ["PrefixCache", "planned_cache"]

HASHES_PER_BLOCK = 2  # hashes remembered for each block of the disk, as in runtime/serving/fetches.py
MASK = 2**64 - 1

Blocks = OrderedDict[int, None]  # the least recently used first


class PrefixCache:
    """A prefix cache with room for `memory_blocks` blocks in memory (None: any number) and `disk_blocks` on disks."""

    def __init__(self, memory_blocks: int | None = None, disk_blocks: int = 0) -> None:
        self._tiers: tuple[Blocks, Blocks] = OrderedDict(), OrderedDict()
        self._sizes = memory_blocks, disk_blocks
        self._hashes: dict[int, int] = {}  # place in the table -> block

    def hits(self, blocks: Sequence[int], prompt_tokens: int) -> int:
        """Return how many tokens at the beginning of a prompt are cached. `blocks` are the ids of the prompt's blocks.

        The last token is always computed, since its logits are needed.
        """
        missing = (place for place, block in enumerate(blocks) if not any(block in tier for tier in self._tiers))
        return max(min(next(missing, len(blocks)) * BLOCK_TOKENS, prompt_tokens - 1), 0)

    def keep(self, blocks: Sequence[int]) -> None:
        """Keep the blocks of a prompt that has been computed. Of one prompt, the last blocks are evicted first."""
        num_twice = self._count_used_before(blocks)
        memory, disk = self._tiers
        for number, block in reversed(list(enumerate(blocks))):
            _use(memory, block)
            if number < num_twice:
                _use(disk, block)
        for tier, size in zip(self._tiers, self._sizes, strict=True):
            while size is not None and len(tier) > size:
                tier.popitem(last=False)

    def _count_used_before(self, blocks: Sequence[int]) -> int:
        """Return the number of a prompt's blocks up to the last one that was used before.

        Then mark all blocks as used.
        """
        num_places = HASHES_PER_BLOCK * self._sizes[1]
        if not num_places:
            return 0
        places = [_hash_block(block) % num_places for block in blocks]
        known = [number for number, place in enumerate(places, 1) if self._hashes.get(place) == blocks[number - 1]]
        self._hashes.update(reversed(list(zip(places, blocks, strict=True))))
        return max(known, default=0)


def planned_cache(plan: Compiled) -> PrefixCache:
    """Return an empty cache as large as the memory and disks for KV of all units that compute prompts."""
    spec, phase = plan.resolved, plan.resolved.phases[0]
    kept, section = spec.written.kv_cache, spec.phase(phase)
    if kept.memory is None:
        return PrefixCache()
    units = [unit for unit in plan.units if unit.phase == phase]
    value_bytes = KV_BYTES[kv_dtype(section.precision, section.kv_precision)]
    block_bytes = BLOCK_TOKENS * spec.loaded_model.kv_bytes_per_token(value_bytes)
    num_disks = 1 if spec.written.kubernetes.kv_cache_claim else sum(len(unit.nodes) for unit in units)
    disk_bytes = 0 if kept.disk is None else num_disks * kept.disk.size
    return PrefixCache(sum(unit.ranks for unit in units) * kept.memory // block_bytes, disk_bytes // block_bytes)


def _hash_block(block: int) -> int:
    """Return a pseudo-random hash of `block`, since the ids in a trace are consecutive.

    Source: the finalizer of splitmix64, G. Steele, D. Lea, C. Flood, Fast splittable pseudorandom number generators,
    OOPSLA 2014.
    """
    mixed = (block * 0x9E3779B97F4A7C15) & MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
    return mixed ^ (mixed >> 31)


def _use(tier: Blocks, block: int) -> None:
    tier[block] = None
    tier.move_to_end(block)
