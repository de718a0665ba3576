"""The kernels of other engines that compute core attention in FP8, and the options that choose them.

Core attention multiplies queries with keys, and their weights with values. It is in BF16 unless an engine's kernel
quantises queries too, which it does only where KV is in FP8. These kernels are of latent attention over all tokens:
sparse attention reads FP8 KV and computes in BF16. Prompts and generated tokens have kernels of their own.

Our runtime has no such kernel. On Hopper none computes prompts in FP8.

Sources: sglang 0.5.23 layers/attention/flashmla_backend.py and trtllm_mla_backend.py, and for defaults
arg_groups/model_overrides/deepseek_v2.py and arg_groups/model_override_base.py, get_default_attn_backend; vllm 0.33.0
platforms/cuda.py, _get_backend_priorities, v1/attention/backends/mla and config/attention.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from planner.facts.catalog import GPUS
from planner.facts.terms import EngineName, KvPrecision, Phase

Queries = Literal["prompts", "tokens"]
QUERIES: Mapping[Phase, tuple[Queries, ...]] = {
    "prefill": ("prompts",),
    "decode": ("tokens",),
    "mixed": ("prompts", "tokens"),
}


@dataclass(frozen=True)
class Fp8Kernel:
    """A kernel that computes core attention in FP8 if KV is in FP8."""

    option: tuple[str, str]
    is_default: bool  # whether the engine chooses it without the option


# [engine][whether the GPU is a Blackwell][queries]
_KERNELS: Mapping[EngineName, Mapping[bool, Mapping[Queries, Fp8Kernel]]] = {
    "sglang": {
        False: {"tokens": Fp8Kernel(("--decode-attention-backend", "flashmla"), is_default=False)},
        True: {
            "prompts": Fp8Kernel(("--prefill-attention-backend", "trtllm_mla"), is_default=True),
            "tokens": Fp8Kernel(("--decode-attention-backend", "trtllm_mla"), is_default=True),
        },
    },
    "vllm": {
        False: {"tokens": Fp8Kernel(("--attention-backend", "FLASHMLA"), is_default=True)},
        True: {
            "prompts": Fp8Kernel(("--attention-config", '{"use_prefill_query_quantization": true}'), is_default=False),
            "tokens": Fp8Kernel(("--attention-backend", "FLASHINFER_MLA"), is_default=True),
        },
    },
}


def least_heads(engine: EngineName, gpu: str, kv: KvPrecision | None) -> int:
    """Return how many heads `engine` computes at least in sparse attention's prompts on `gpu`.

    vLLM fills up the heads of its FlashMLA kernels with zeros, so more GPUs that share attention save less. Source:
    vllm 0.33.0 v1/attention/backends/mla/flashmla_sparse.py, prefill_padding. A Blackwell has FlashInfer's kernels for
    FP8 KV; that these fill up to 64 heads is assumed.
    """
    if engine != "vllm" or gpu not in GPUS:
        return 1
    return 128 if GPUS[gpu].fp4_tflops is not None and kv != "fp8" else 64


def fp8_kernels(engine: EngineName, phase: Phase, gpu: str) -> dict[Queries, Fp8Kernel]:
    """Return kind of query -> the engine's FP8 kernel for such queries in `phase` on `gpu`; empty without kernels."""
    figures = GPUS.get(gpu)
    if figures is None or figures.fp8_tflops is None or figures.is_rocm:
        return {}
    found = _KERNELS.get(engine, {}).get(figures.fp4_tflops is not None, {})
    return {each: found[each] for each in QUERIES[phase] if each in found}
