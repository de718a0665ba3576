"""Hashes of blocks of latent KV, so that equal prefixes of prompts are computed once.

    block   PAGE_TOKENS tokens of one request in every layer: what a page holds
    root    hash of block_digest and salt: a chain begins there
    hash    SHA-256 of the previous block's hash (at first, the root) and of the block's token ids

A hash stands for all tokens from the first, not only for its block's: whoever finds a hash may use the block, and the
blocks before it have the hashes before. The `block_digest` says all that the latents depend on besides tokens. The salt
keeps apart whoever must not find each other's blocks; it is a hash itself (`gateway/tenants/keys.py`).

Worked example: a prompt of 150 tokens has two hashes, of its tokens 0 to 63 and of 0 to 127. Its last 22 have none.

It does not say where a block lies (`pages.py` does), and it reads no URI, no model's name and no wire version: latents
do not depend on them.

Model: vLLM's block hashes (github.com/vllm-project/vllm vllm/v1/core/kv_cache_utils.py).
"""

import hashlib
from collections.abc import Sequence

import msgspec

from runtime.launch import UnitLaunch
from runtime.protocol.block_chain import chain_blocks
from runtime.protocol.messages import TENANT_DIGITS

__all__ = ["BlockIdentity", "block_digest", "block_hashes", "block_identity", "root_hash", "tenant_hash"]

FORMAT = 1  # version of the chain (`protocol/block_chain.py`) and of a block's content; raise it if either changes
TENANT_BYTES = 8


class BlockIdentity(msgspec.Struct, frozen=True):
    """What a block's latents depend on besides its tokens.

    `weights` is the digest of the weights that a unit's ranks have read. `kernels` names the kernels that determine the
    last bits of a latent; None in a unit that is not deterministic. A unit that is not deterministic also shares blocks
    of answers, although their latents differ from prefill's in the last bits.
    """

    format: int
    config_digest: str | None
    weights: str
    num_layers: int
    dtype: str
    precision: str
    computed_by: str
    kernels: list[str] | None


def block_identity(launch: UnitLaunch, weights: str, num_layers: int, kernels: list[str]) -> BlockIdentity:
    """Return the identity of the blocks that a unit's requests share: prompts and, unless deterministic, answers."""
    return BlockIdentity(
        format=FORMAT,
        config_digest=launch.checkpoint.config_digest,
        weights=weights,
        num_layers=num_layers,
        dtype=launch.kv_cache.dtype,
        precision=launch.precision,
        computed_by="prefill" if launch.deterministic else "prefill or decode",
        kernels=kernels if launch.deterministic else None,
    )


def block_digest(identity: BlockIdentity) -> bytes:
    """Return the hash of a block identity."""
    return hashlib.sha256(msgspec.json.encode(identity, order="sorted")).digest()


def root_hash(digest: bytes, salt: str) -> bytes:
    """Return the root of a chain of block hashes.

    `digest` has a fixed length, so that no salt can imitate another digest.
    """
    return hashlib.sha256(digest + salt.encode()).digest()


def tenant_hash(salt: str) -> bytes:
    """Return the hash of the tenant that has this `salt`. A tenant's blocks count towards its share of the cache.

    All salts of a tenant give the same hash.
    """
    return hashlib.sha256(salt[:TENANT_DIGITS].encode()).digest()[:TENANT_BYTES]


def block_hashes(root: bytes, token_ids: Sequence[int]) -> list[bytes]:
    """Return the hash of each whole block of `token_ids`; the chain begins at `root`."""
    return chain_blocks(root, token_ids)
