"""Which models an engine runs, by its version, and what it can do with the experts of each.

An engine has one class an architecture, and registers it under the name that a checkpoint's config.json gives. What
the engine can do with experts depends on that class: one makes slots for replicas, another forgets them; one exchanges
rows by DeepEP, another computes all tokens on all GPUs.

Of SGLang 0.5.23 (python/sglang/srt), where a test holds this table against the sources:
    architecture   `EntryClass` of models/FILE
    replicas       the experts are built with `ep_num_redundant_experts`
    dispatches     the MoE block has a forward for DeepEP
    overlaps       batch_overlap/operations_strategy.py, init_new_tbo, knows the layer; DeepSeek-V4's only in prefill
Of vLLM 0.33.0 (vllm):
    architecture   model_executor/models/registry.py
    replicas       the class, or the model inside it, is a `MixtureOfExperts`, whose experts EPLB moves
    dispatches     model_executor/layers/fused_moe, for all alike
    overlaps       v1/worker/ubatching.py, around the whole model
    handover_env   distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py: linear layers' states in one layout only

All of them hand their KV from prefill to decode, whatever kinds of it they keep. SGLang sends each kind as a component
of its own (disaggregation/utils.py, setup_state_kv_args). Of MiniMax-M3's index it sends keys only, and the published
one has no values. vLLM's connector keeps the groups of layers apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from planner.facts.terms import PHASES, EngineName, Phase

__all__ = ["ENGINE_MODELS", "EngineModel"]


@dataclass(frozen=True)
class EngineModel:
    """What an engine does with one architecture."""

    architecture: str
    file: str
    replicas: bool = True  # whether an expert may have several slots
    dispatches: bool = True  # whether GPUs exchange rows of experts; otherwise all compute the same tokens
    overlaps: tuple[Phase, ...] = ()  # phases in which one micro-batch hides the other's exchange
    handover_env: Mapping[str, str] = field(default_factory=dict)  # without which KV does not go from prefill to decode


_SGLANG_V3 = EngineModel("DeepseekV3ForCausalLM", "deepseek_v2.py", overlaps=PHASES)
_SGLANG_0_5_23 = {
    "deepseek_v2": replace(_SGLANG_V3, architecture="DeepseekV2ForCausalLM"),
    "deepseek_v3": _SGLANG_V3,
    "deepseek_v32": replace(_SGLANG_V3, architecture="DeepseekV32ForCausalLM"),
    "deepseek_v4": EngineModel("DeepseekV4ForCausalLM", "deepseek_v4.py", overlaps=("prefill",)),
    "glm4_moe": EngineModel("Glm4MoeForCausalLM", "glm4_moe.py", replicas=False),
    "glm_moe_dsa": EngineModel("GlmMoeDsaForCausalLM", "glm4_moe.py", overlaps=PHASES),
    "gpt_oss": EngineModel("GptOssForCausalLM", "gpt_oss.py", dispatches=False),
    "kimi_k2": _SGLANG_V3,
    "kimi_k25": EngineModel("KimiK25ForConditionalGeneration", "kimi_k25.py", overlaps=PHASES),
    "minimax_m2": EngineModel("MiniMaxM2ForCausalLM", "minimax_m2.py"),
    "minimax_m3_vl": EngineModel("MiniMaxM3SparseForConditionalGeneration", "minimax_m3_vl.py"),
    "qwen3_moe": EngineModel("Qwen3MoeForCausalLM", "qwen3_moe.py", overlaps=PHASES),
    "qwen3_next": EngineModel("Qwen3NextForCausalLM", "qwen3_next.py"),
    "qwen3_5_moe": EngineModel("Qwen3_5MoeForConditionalGeneration", "qwen3_5.py"),
}

_LINEAR = {"VLLM_SSM_CONV_STATE_LAYOUT": "DS"}
_VLLM_V3 = EngineModel("DeepseekV3ForCausalLM", "deepseek_v2.py", overlaps=PHASES)
_VLLM_0_33_0 = {
    "deepseek_v2": replace(_VLLM_V3, architecture="DeepseekV2ForCausalLM"),
    "deepseek_v3": _VLLM_V3,
    "deepseek_v32": EngineModel("DeepseekV32ForCausalLM", "vllm.models.deepseek_v32", overlaps=PHASES),
    "deepseek_v4": EngineModel("DeepseekV4ForCausalLM", "vllm.models.deepseek_v4", overlaps=PHASES),
    "glm4_moe": EngineModel("Glm4MoeForCausalLM", "glm4_moe.py", overlaps=PHASES),
    "glm_moe_dsa": EngineModel("GlmMoeDsaForCausalLM", "vllm.models.deepseek_v32", overlaps=PHASES),
    "gpt_oss": EngineModel("GptOssForCausalLM", "gpt_oss.py", replicas=False, overlaps=PHASES),
    "kimi_k2": _VLLM_V3,
    "kimi_k25": EngineModel("KimiK25ForConditionalGeneration", "kimi_k25.py", overlaps=PHASES),
    "minimax_m2": EngineModel("MiniMaxM2ForCausalLM", "minimax_m2.py", replicas=False, overlaps=PHASES),
    "minimax_m3_vl": EngineModel(
        "MiniMaxM3SparseForConditionalGeneration", "vllm.models.minimax_m3", replicas=False, overlaps=PHASES
    ),
    "qwen3_moe": EngineModel("Qwen3MoeForCausalLM", "qwen3_moe.py", overlaps=PHASES),
    "qwen3_next": EngineModel("Qwen3NextForCausalLM", "qwen3_next.py", overlaps=PHASES, handover_env=_LINEAR),
    "qwen3_5_moe": EngineModel(
        "Qwen3_5MoeForConditionalGeneration", "qwen3_5.py", overlaps=PHASES, handover_env=_LINEAR
    ),
}

# [engine][version][model_type of a checkpoint's config.json]
ENGINE_MODELS: Mapping[EngineName, Mapping[str, Mapping[str, EngineModel]]] = {
    "sglang": {"0.5.23": _SGLANG_0_5_23},
    "vllm": {"0.33.0": _VLLM_0_33_0},
}
