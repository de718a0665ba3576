"""What the engine's benchmarks compute: a random checkpoint, and three workloads as steps of our engine.

    prefill      8 prompts of 512 tokens, in one step; other prompts in the next
    decode 1     the next token of 1 request with 512 tokens of KV
    decode 32    the next tokens of 32 such requests

The checkpoint has DeepSeek-V3's shape at a 14th of its width: hidden 512, 8 layers (one dense), 64 experts top-8 in 8
groups of which 4. Dense and expert sizes, ranks and vocabulary are V3's by the same factor, up to the next multiple of
32; heads are 8, each half V3's size. Values are random and BF16, as published.
"""

import json
import time
from itertools import count, repeat

import torch
from safetensors.torch import save_file

from runtime.model.engine import Engine, EngineConfig
from runtime.model.forward_batch import Chunk
from tests.runtime.random_checkpoints import V3, draw

CONFIG = V3 | {
    "vocab_size": 9248,
    "hidden_size": 512,
    "intermediate_size": 1344,
    "moe_intermediate_size": 160,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "q_lora_rank": 128,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "n_routed_experts": 64,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "max_position_embeddings": 1024,
}
NUM_MOE_LAYERS = CONFIG["num_hidden_layers"] - CONFIG["first_k_dense_replace"]
PROMPT_TOKENS = 512
NUM_PROMPTS = 8
TOKENS = {"prefill": NUM_PROMPTS * PROMPT_TOKENS, "decode 1": 1, "decode 32": 32}  # of one step


def write_checkpoint(folder):
    """Config and safetensors."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tensors = {name: value if name.endswith("bias") else value.bfloat16() for name, value in draw(CONFIG, 0).items()}
    save_file(tensors, folder / "model.safetensors")


def token_ids(*shape, seed=1):
    """The same ones for the same seed."""
    return torch.randint(CONFIG["vocab_size"], shape, generator=torch.Generator().manual_seed(seed))


def our_engine(folder, group, dtype, expert_map=None):
    """One slot for each expert; in order, if there is no map."""
    slots = expert_map or [list(range(CONFIG["n_routed_experts"]))] * NUM_MOE_LAYERS
    return Engine(EngineConfig(folder, slots, dtype), group)


def all_prompts(seed=1):
    """Of one step of prefill after another, [8, 512] each: always others, so that experts get other numbers of rows."""
    return (token_ids(NUM_PROMPTS, PROMPT_TOKENS, seed=each) for each in count(seed * 1000))


def our_step(engine, workload, seed=1):
    """A function that takes the workload's step once more, from the same state. A collective of the group."""
    if workload == "prefill":
        cache = engine.new_cache(TOKENS[workload])
        tables = [table_of(cache, PROMPT_TOKENS) for _ in range(NUM_PROMPTS)]
        prompts = all_prompts(seed)
        return lambda: engine.step(list(map(Chunk, next(prompts).tolist(), repeat(0), tables)), [], cache)
    cache = engine.new_cache(2 * PROMPT_TOKENS * TOKENS[workload])
    _, [latents] = engine.prefill(token_ids(1, PROMPT_TOKENS, seed=seed).tolist())
    tokens = []
    for token in token_ids(TOKENS[workload], seed=seed).tolist():
        tokens.append(Chunk([token], PROMPT_TOKENS, table_of(cache, PROMPT_TOKENS + 1)))
        cache.swap_in(tokens[-1].table, latents)
    return lambda: engine.step([], tokens, cache)


def table_of(cache, num_tokens):
    """Pages for a request."""
    table = []
    cache.allocate(table, num_tokens)
    return table


def seconds(step, clock=time.perf_counter):
    """That one call takes."""
    start = clock()
    step()
    return clock() - start


def cpu_seconds(step):
    """Of this process: on one thread, the time that the call takes when nobody else wants the core."""
    return seconds(step, time.process_time)
