"""The working memory that SGLang reserves on a GPU, which may exceed the plan's own activations and CUDA graphs.

SGLang sizes its KV before it captures graphs and before DeepEP allocates buffers, so it must leave room for them.
`--mem-fraction-static` is the share for weights and KV, of the memory that is free before weights are loaded. By
default SGLang leaves free, in MiB:

    512 + 1.5 x tokens of a step (2,048 at least)                activations, and attention's buffers
    + 2 x requests of a captured step, + 1,536 for prompts       CUDA graphs
    + 1,024 for each 8 GPUs that share attention
    at least 10,240 on a GPU with more than 60 GiB

Worked example, DeepSeek-V3 on H800: 10 GiB in decode, and 26 GiB in prefill with steps of 16,384 tokens. With DeepEP's
buffers that leaves a share of 0.84 in decode, and KV of 124,000 tokens in prefill. The published deployment has 0.8,
and a limit of 131,072 tokens.

SGLang's own default counts the tokens, requests and GPUs of the whole server. For a server of more than about ten GPUs
that exceeds a GPU's memory. The planner counts those of one attention group, which is `assumed`. DeepEP's buffers are
planned separately (`working_memory.py`).

Sources: sglang 0.5.23 arg_groups/memory_hook.py (handle_gpu_memory_settings, reserve_for_graph_mb),
mem_cache/kv_cache_configurator.py (_profile_available_bytes); published: github.com/sgl-project/sglang issues 7998 and
6017.
"""

from planner.facts.terms import Phase
from planner.layout.dispatch import step_tokens
from planner.spec.phase import PhaseSpec

MIB = 2**20
LARGE_GPU_BYTES, LEAST_OF_LARGE = 60 * 2**30, 10 * 2**30
HEADROOM_SOURCE = "assumed: as if a group were a server; sglang 0.5.23 arg_groups/memory_hook.py"


def sglang_working_bytes(phase: Phase, section: PhaseSpec, gpu_bytes: int) -> int:
    """Return the bytes that SGLang keeps free on a GPU of `gpu_bytes` for activations and CUDA graphs."""
    tokens = step_tokens(section) if phase == "decode" else section.max_batch_tokens
    activations = 512 * MIB + 3 * max(tokens, 2048) * MIB // 2
    graphs = (0 if phase == "prefill" else 2 * section.max_requests) + (0 if phase == "decode" else 1536)
    wanted = activations + graphs * MIB + section.attention_tp * 1024 * MIB // 8
    return max(wanted, LEAST_OF_LARGE) if gpu_bytes > LARGE_GPU_BYTES else wanted
