"""The hash chain of a prompt's blocks. Ranks and gateways make it in the same way, each from its own beginning.

    digest    sha256 of the previous digest (or the chain's beginning) and the block's PAGE_TOKENS token ids

So a digest stands for all tokens up to the end of its block. Tokens after the last whole block have none.
"""

import hashlib
from array import array
from collections.abc import Sequence

from runtime.protocol.counting import PAGE_TOKENS

__all__ = ["chain_blocks"]

ID_BYTES = 4


def chain_blocks(beginning: bytes, token_ids: Sequence[int]) -> list[bytes]:
    """Return the digest of each whole block of these tokens."""
    ids = array("I", token_ids)
    assert ids.itemsize == ID_BYTES
    num_blocks, block_bytes = len(ids) // PAGE_TOKENS, PAGE_TOKENS * ID_BYTES
    content, digest, digests = memoryview(ids).cast("B"), beginning, []
    for number in range(num_blocks):
        chained = hashlib.sha256(digest)
        chained.update(content[number * block_bytes : (number + 1) * block_bytes])
        digest = chained.digest()
        digests.append(digest)
    return digests
