"""Names of blocks of latent KV, so that equal prefixes of prompts are computed once.

    block   PAGE_TOKENS tokens of one request in every layer: what a page holds
    root    hash of block_digest and salt: a chain begins there
    name    hash of the name before, or of the root, and of the block's token ids

A name stands for all tokens from the first, not for its block's alone: whoever finds a name may use the block, and
those before it have the names before. The `block_digest` says all that the latents depend on besides tokens. The salt
keeps apart whoever must not find each other's blocks; it is a hash itself (`gateway/tenants/keys.py`).

Worked example: a prompt of 150 tokens has two names, of its tokens 0 to 63 and of 0 to 127. Its last 22 have none.

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

__all__ = ["BlockIdentity", "block_digest", "block_identity", "block_names", "root_name", "tenant_name"]

FORMAT = 1  # of the chain (`protocol/block_chain.py`) and of what a block holds; whatever changes either raises it
TENANT_BYTES = 8


class BlockIdentity(msgspec.Struct, frozen=True):
    """What a block's latents depend on besides its tokens.

    `weights` names what a unit's ranks have read. `kernels` are those that decide a latent's last bits; None where
    nobody asks for the same bits. There blocks of answers are shared too, whose latents have others than prefill's.
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
    """Return the identity of the blocks that a unit's prompts and, unless it is deterministic, answers share."""
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
    """Return the identity's hash."""
    return hashlib.sha256(msgspec.json.encode(identity, order="sorted")).digest()


def root_name(digest: bytes, salt: str) -> bytes:
    """Return what a chain begins with. `digest` has a fixed length, so no salt reaches into it."""
    return hashlib.sha256(digest + salt.encode()).digest()


def tenant_name(salt: str) -> bytes:
    """Return whose room a chain's blocks take: one name for all salts of a tenant."""
    return hashlib.sha256(salt[:TENANT_DIGITS].encode()).digest()[:TENANT_BYTES]


def block_names(root: bytes, token_ids: Sequence[int]) -> list[bytes]:
    """Return the name of each whole block of these tokens."""
    return chain_blocks(root, token_ids)
