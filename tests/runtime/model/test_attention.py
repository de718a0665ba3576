"""Prefill (expanded keys and values) and decode (absorbed, over the latents) compute the same attention."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.model.forward_batch import Chunk
from runtime.model.rope import Yarn
from runtime.protocol.counting import PAGE_TOKENS
from tests.runtime.on_cpu import new_cache

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}  # FP32 sums in another order

shapes = st.fixed_dictionaries(
    {
        "num_attention_heads": st.integers(1, 4),
        "q_lora_rank": st.none() | st.integers(2, 12),
        "kv_lora_rank": st.integers(2, 12),
        "qk_nope_head_dim": st.integers(1, 8),
        "qk_rope_head_dim": st.sampled_from([2, 4, 6]),
        "v_head_dim": st.integers(1, 8),
        "yarn": st.none() | st.just(Yarn(factor=4.0, original_max_position_embeddings=8)),
    }
)
prompt = st.lists(st.integers(0, 49), min_size=1, max_size=12)


@torch.inference_mode()
def decode(model, cache, tables, tokens, positions):
    """Return hidden states [B, D] of one step of every request."""
    chunks = [Chunk([token], *where) for token, *where in zip(tokens, positions, tables, strict=True)]
    for chunk in chunks:
        cache.allocate(chunk.table, chunk.end)
    return model([], chunks, cache)


@torch.inference_mode()
def prefill(model, prompts):
    """Return hidden states [T, D] of whole prompts in one step, and each one's latents [num_layers, T, C]."""
    cache = new_cache(model.config, len(prompts) * PAGE_TOKENS, torch.float32)
    chunks = [Chunk(prompt, 0, cache_table(cache, len(prompt))) for prompt in prompts]
    return model(chunks, [], cache), [cache.copy_to_host(chunk.table, chunk.end) for chunk in chunks]


def cache_table(cache, num_tokens, latents=None):
    """Return a table with its own pages, which hold `latents`."""
    table = []
    cache.allocate(table, num_tokens)
    if latents is not None:
        cache.swap_in(table, latents)
    return table


@settings(max_examples=25, deadline=None)
@given(shapes=shapes, tokens=prompt, seed=st.integers(0, 1000))
def test_decoding_token_by_token_equals_prefill(small_config, random_model, shapes, tokens, seed):
    """Both forms give the same hidden states and latents, for any head sizes, with and without YaRN."""
    config = replace(small_config, **shapes)
    model = random_model(config, seed)
    cache, table = new_cache(config, len(tokens), torch.float32), []
    decoded = torch.cat([decode(model, cache, [table], [token], [n]) for n, token in enumerate(tokens)])
    hidden, (latents,) = prefill(model, [tokens])
    cached = cache.copy_to_host(table, len(tokens))

    torch.testing.assert_close(decoded, hidden, **TOLERANCE)
    torch.testing.assert_close(cached, latents, **TOLERANCE)


@settings(max_examples=25, deadline=None)
@given(prompts=st.lists(prompt, min_size=1, max_size=5), seed=st.integers(0, 1000))
def test_prompts_together_equal_each_alone(small_config, random_model, prompts, seed):
    """Prompts of one prefill step do not see each other."""
    model = random_model(small_config, seed)
    alone = [prefill(model, [tokens]) for tokens in prompts]
    hidden, latents = prefill(model, prompts)

    torch.testing.assert_close(hidden, torch.cat([part for part, _ in alone]), **TOLERANCE)
    torch.testing.assert_close(torch.cat(latents, 1), torch.cat([part for _, (part,) in alone], 1), **TOLERANCE)


@settings(max_examples=25, deadline=None)
@given(prompts=st.lists(prompt, min_size=2, max_size=5), seed=st.integers(0, 1000))
def test_a_request_decodes_the_same_in_any_company(small_config, random_model, prompts, seed):
    """A request's hidden state does not depend on the other requests in the batch."""
    model = random_model(small_config, seed)
    cache = new_cache(small_config, len(prompts) * PAGE_TOKENS, torch.float32)
    tables = [cache_table(cache, len(tokens) + 1, prefill(model, [tokens])[1][0]) for tokens in prompts]
    requests = [(table, tokens[-1], len(tokens)) for table, tokens in zip(tables, prompts, strict=True)]
    together = decode(model, cache, *zip(*requests, strict=True))
    alone = [decode(model, cache, [table], [token], [position]) for table, token, position in requests]

    torch.testing.assert_close(together, torch.cat(alone), **TOLERANCE)


def test_what_a_reused_page_held_before_does_not_matter(small_config, random_model):
    """A short request in a longer one's former page decodes as in a new cache."""
    model = random_model(small_config)
    (latents,) = prefill(model, [[1, 2]])[1]
    used, fresh = (new_cache(small_config, PAGE_TOKENS, torch.float32) for _ in range(2))
    table = cache_table(used, 16, torch.full((small_config.num_hidden_layers, 16, small_config.latent_dim), 1e3))
    used.free(table)
    one, other = (decode(model, cache, [cache_table(cache, 3, latents)], [3], [2]) for cache in (used, fresh))

    assert torch.equal(one, other)


def test_a_token_does_not_see_what_follows_it(small_config, random_model):
    """Attention is causal: a longer prompt begins with the hidden states of a shorter one."""
    model = random_model(small_config)

    torch.testing.assert_close(prefill(model, [[4, 5, 6, 7, 8]])[0][:3], prefill(model, [[4, 5, 6]])[0], **TOLERANCE)


def test_a_token_sees_the_order_of_what_came_before(small_config, random_model):
    """Positions count: the same earlier tokens in another order give another hidden state."""
    model = random_model(small_config)
    one, other = (prefill(model, [tokens])[0][-1] for tokens in ([4, 5, 6], [5, 4, 6]))

    assert (one - other).abs().max() > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_without_requests_are_empty(small_config, random_model, dtype):
    """A rank with nothing to do still steps, and gets no rows."""
    model = random_model(small_config, dtype=dtype)
    with torch.inference_mode():
        hidden = model([], [], new_cache(small_config, PAGE_TOKENS, dtype))
        logits = model.logits(hidden)

    assert hidden.shape == (0, small_config.hidden_size)
    assert logits.shape == (0, small_config.vocab_size)
