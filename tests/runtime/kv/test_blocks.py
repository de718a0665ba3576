"""Names of blocks: equal for equal prefixes of equal provenance, and for nothing else."""

import hashlib

import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.gateway.tenants.keys import make_salt
from runtime.kv.blocks import block_digest, block_hashes, block_identity, root_hash, tenant_hash
from runtime.launch import UnitLaunch, _convert
from runtime.protocol.counting import PAGE_TOKENS
from tests.runtime.launch_documents import UNIT, seal
from tests.runtime.on_cpu import backend

DIGEST = bytes(32)
ROOT = root_hash(DIGEST, "")
prompts = st.lists(st.integers(0, 3) | st.integers(0, 2**32 - 1), max_size=4 * PAGE_TOKENS)


def launched(**changes):
    return _convert(seal(UNIT, **changes), UnitLaunch, "launch.json")


def digest_of(weights="w", num_layers=4, kernels=("k",), **changes):
    return block_digest(block_identity(launched(**changes), weights, num_layers, list(kernels)))


@given(prompts, prompts)
def test_a_name_stands_for_the_whole_prefix(one, other):
    """Two prompts have as many names in common as whole blocks, and none after the first that differs."""
    common = 0
    while one[common : common + 1] == other[common : common + 1] != []:
        common += 1
    names, others = block_hashes(ROOT, one), block_hashes(ROOT, other)

    assert [name == each for name, each in zip(names, others, strict=False)] == [
        (number + 1) * PAGE_TOKENS <= common for number in range(min(len(names), len(others)))
    ]
    assert len(names) == len(one) // PAGE_TOKENS


def test_names_are_the_documented_hashes():
    """Whoever stores blocks finds them again: sha256 of the name before and of ids as 4 bytes, little-endian."""
    ids = list(range(2 * PAGE_TOKENS))
    names, name = [], ROOT
    for start in (0, PAGE_TOKENS):
        block = b"".join(each.to_bytes(4, "little") for each in ids[start : start + PAGE_TOKENS])
        name = hashlib.sha256(name + block).digest()
        names.append(name)

    assert block_hashes(ROOT, ids) == names


@given(st.text("ab", max_size=3), st.text("ab", max_size=3))
def test_another_salt_has_other_names(salt, other):
    """So no prompt of one tenant finds a block of another's."""
    assert (root_hash(DIGEST, salt) == root_hash(DIGEST, other)) == (salt == other)


def test_two_salts_of_one_key_take_one_tenants_room():
    """Whatever `cache_salt` calls have, and also without keys: so nobody has two shares of a disk."""
    salts = [make_salt(tenant, salt) for tenant in ("a", "b", None) for salt in (None, "x")]
    tenants = [tenant_hash(salt) for salt in salts]

    assert tenants[::2] == tenants[1::2]
    assert len(set(tenants)) == 3
    assert len({root_hash(DIGEST, salt) for salt in salts}) == 6
    assert tenant_hash("")  # of a gateway that says no salt


def test_what_decides_latents_decides_names():
    """Weights, config, layers, types and, in deterministic mode, kernels; not where weights came from or for whom."""
    others = [
        digest_of(weights="other"),
        digest_of(num_layers=5),
        digest_of(checkpoint__config_digest="sha256:" + "1" * 64),
        digest_of(kv_cache__dtype="bf16"),
        digest_of(precision="fp8"),
        digest_of(deterministic=True),
        digest_of(deterministic=True, kernels=["other"]),
    ]
    of_answers = [launched(deterministic=True), launched()]

    assert len({digest_of(), *others}) == len(others) + 1
    assert digest_of() == digest_of(checkpoint__uri="/elsewhere", model__name="another", kernels=["other"])
    assert digest_of() == digest_of(unit="demo-prefill-3", phase="prefill")
    assert [block_identity(each, "w", 4, ["k"]).computed_by for each in of_answers] == ["prefill", "prefill or decode"]


def test_this_machines_kernels_have_a_digest():
    """They are plain texts, whatever torch makes of its version."""
    kernels = backend(torch.float32).kernels

    assert len(digest_of(deterministic=True, kernels=kernels)) == 32
    assert all(type(each) is str and each for each in kernels[:4])
