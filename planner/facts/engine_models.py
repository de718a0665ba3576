"""The models that each version of an engine runs, and what the engine supports for each model's experts and KV.

An engine has one class per architecture, registered under the name in a checkpoint's config.json. The class decides
what the engine can do: one makes slots for replicas, another ignores them; one exchanges rows by DeepEP, another
raises.

SGLang 0.5.23 (python/sglang/srt); a test compares this table with the sources:
    architecture   `EntryClass` of models/FILE
    replicas       the experts are built with `ep_num_redundant_experts`
    overlaps       batch_overlap/operations_strategy.py, init_new_tbo, knows the layer; DeepSeek-V4's only in prefill
    page_tokens    arg_groups/model_overrides: DeepSeek-V4 and, on Blackwell, MiniMax-M3 take no other
    keeps_states   configs/qwen3_next.py, mamba2_cache_params
    cannot         models/gpt_oss.py: its forward for DeepEP raises; layers/quantization/mxfp4.py, for Hopper GPUs
vLLM 0.33.0 (vllm); a test compares the first two and MOVED_FORMS with the sources:
    architecture   model_executor/models/registry.py
    replicas       the class, or the model inside it, is a `MixtureOfExperts`, whose experts EPLB moves
    overlaps       v1/worker/ubatching.py, around the whole model
    page_tokens    github.com/ai-dynamo/dynamo, recipes page of DeepSeek-V4-Pro: blocks of 256
    keeps_states   distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py, which requires one layout of them

    MOVED_FORMS    model_executor/layers/fused_moe/routed_experts.py reads `supports_eplb` of the class that the
                   `get_quant_method` of layers/quantization chooses; it is False unless overridden

So vLLM moves no experts in ModelOpt's FP8 or MXFP8. With compressed-tensors it depends on the kernel. For INT4 vLLM
prefers Marlin to Triton, and only Triton supports moves. NVFP4 uses Marlin too, unless activations are quantised and
the GPU is a Blackwell with FlashInfer; MXFP4 depends on activations as well. Plans do not state the format of
activations, so both count as not moved.

All of them hand their KV from prefill to decode, whatever kinds of it they keep. SGLang sends each kind as a component
of its own (disaggregation/utils.py, setup_state_kv_args). Of MiniMax-M3's index it sends keys only, and the published
one has no values. vLLM's connector keeps the groups of layers apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.facts.quantisation import METHODS
from planner.facts.terms import PHASES, EngineName, Phase, Precision


@dataclass(frozen=True)
class EngineModel:
    """What one version of an engine supports for one architecture."""

    architecture: str
    file: str
    replicas: bool = True  # whether an expert may have several slots
    overlaps: tuple[Phase, ...] = ()  # phases with two-batch overlap
    page_tokens: int = 64  # tokens per page of KV
    keeps_states: bool = False  # whether some layers have a state per request in place of KV
    cannot: str | None = None  # why no plan can run the model on this engine; None if plans can


def _same_in_all(*rows: tuple[str, EngineModel]) -> dict[str, EngineModel]:
    """Return vLLM's models from `rows`, each with overlap in all phases, since vLLM's overlap works with any model."""
    return {model_type: replace(model, overlaps=PHASES) for model_type, model in rows}


_SGLANG_V3 = EngineModel("DeepseekV3ForCausalLM", "deepseek_v2.py", overlaps=PHASES)
_SGLANG_M3 = EngineModel("MiniMaxM3SparseForCausalLM", "minimax_m3.py", page_tokens=128)
_SGLANG_0_5_23 = {
    "deepseek_v2": replace(_SGLANG_V3, architecture="DeepseekV2ForCausalLM"),
    "deepseek_v3": _SGLANG_V3,
    "deepseek_v32": replace(_SGLANG_V3, architecture="DeepseekV32ForCausalLM"),
    "deepseek_v4": EngineModel("DeepseekV4ForCausalLM", "deepseek_v4.py", overlaps=("prefill",), page_tokens=256),
    "glm4_moe": EngineModel("Glm4MoeForCausalLM", "glm4_moe.py", replicas=False),
    "glm4_moe_lite": EngineModel("Glm4MoeLiteForCausalLM", "glm4_moe_lite.py"),
    "glm_moe_dsa": EngineModel("GlmMoeDsaForCausalLM", "glm4_moe.py", overlaps=PHASES),
    "gpt_oss": EngineModel(
        "GptOssForCausalLM",
        "gpt_oss.py",
        cannot="it cannot exchange rows between its experts, and converts MXFP4 experts to BF16 when GPUs share them",
    ),
    "kimi_k2": _SGLANG_V3,
    "kimi_k25": EngineModel("KimiK25ForConditionalGeneration", "kimi_k25.py", overlaps=PHASES),
    "mimo_v2_flash": EngineModel("MiMoV2FlashForCausalLM", "mimo_v2.py", overlaps=PHASES),
    "minimax_m2": EngineModel("MiniMaxM2ForCausalLM", "minimax_m2.py"),
    "minimax_m3": _SGLANG_M3,
    "minimax_m3_vl": EngineModel("MiniMaxM3SparseForConditionalGeneration", "minimax_m3_vl.py", page_tokens=128),
    "minimax_m3_vl_text": _SGLANG_M3,
    "qwen2_moe": EngineModel("Qwen2MoeForCausalLM", "qwen2_moe.py"),
    "qwen3_moe": EngineModel("Qwen3MoeForCausalLM", "qwen3_moe.py", overlaps=PHASES),
    "qwen3_vl_moe": EngineModel("Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe.py", overlaps=PHASES),
    "qwen3_next": EngineModel("Qwen3NextForCausalLM", "qwen3_next.py", keeps_states=True),
    "qwen3_5_moe": EngineModel("Qwen3_5MoeForConditionalGeneration", "qwen3_5.py", keeps_states=True),
    "qwen3_5_moe_text": EngineModel("Qwen3_5MoeForCausalLM", "qwen3_5_text.py", keeps_states=True),
}

_VLLM_V3 = EngineModel("DeepseekV3ForCausalLM", "deepseek_v2.py")
_VLLM_M3 = EngineModel("MiniMaxM3SparseForCausalLM", "vllm.models.minimax_m3", replicas=False)
_VLLM_0_33_0 = _same_in_all(
    ("deepseek_v2", replace(_VLLM_V3, architecture="DeepseekV2ForCausalLM")),
    ("deepseek_v3", _VLLM_V3),
    ("deepseek_v32", EngineModel("DeepseekV32ForCausalLM", "vllm.models.deepseek_v32")),
    ("deepseek_v4", EngineModel("DeepseekV4ForCausalLM", "vllm.models.deepseek_v4", page_tokens=256)),
    ("glm4_moe", EngineModel("Glm4MoeForCausalLM", "glm4_moe.py")),
    ("glm4_moe_lite", EngineModel("Glm4MoeLiteForCausalLM", "glm4_moe_lite.py")),
    ("glm_moe_dsa", EngineModel("GlmMoeDsaForCausalLM", "vllm.models.deepseek_v32")),
    ("gpt_oss", EngineModel("GptOssForCausalLM", "gpt_oss.py", replicas=False)),
    ("kimi_k2", _VLLM_V3),
    ("kimi_k25", EngineModel("KimiK25ForConditionalGeneration", "kimi_k25.py")),
    ("mimo_v2_flash", EngineModel("MiMoV2FlashForCausalLM", "mimo_v2.py")),
    ("minimax_m2", EngineModel("MiniMaxM2ForCausalLM", "minimax_m2.py", replicas=False)),
    ("minimax_m3", _VLLM_M3),
    ("minimax_m3_vl", replace(_VLLM_M3, architecture="MiniMaxM3SparseForConditionalGeneration")),
    ("minimax_m3_vl_text", _VLLM_M3),
    ("qwen2_moe", EngineModel("Qwen2MoeForCausalLM", "qwen2_moe.py", replicas=False)),
    ("qwen3_moe", EngineModel("Qwen3MoeForCausalLM", "qwen3_moe.py")),
    ("qwen3_vl_moe", EngineModel("Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe.py")),
    ("qwen3_next", EngineModel("Qwen3NextForCausalLM", "qwen3_next.py", keeps_states=True)),
    ("qwen3_5_moe", EngineModel("Qwen3_5MoeForConditionalGeneration", "qwen3_5.py", keeps_states=True)),
    ("qwen3_5_moe_text", EngineModel("Qwen3_5MoeForCausalLM", "qwen3_5.py", keeps_states=True)),
)

# [engine][version][model_type of a checkpoint's config.json]
ENGINE_MODELS: Mapping[EngineName, Mapping[str, Mapping[str, EngineModel]]] = {
    "sglang": {"0.5.23": _SGLANG_0_5_23},
    "vllm": {"0.33.0": _VLLM_0_33_0},
}

# [engine][version][precision][quant_method of the checkpoint]: the engine's class for experts in that form. These are
# the forms whose experts the engine can move, and so replicate. An engine that is not listed replicates any form.
MOVED_FORMS: Mapping[EngineName, Mapping[str, Mapping[Precision, Mapping[str | None, str]]]] = {
    "vllm": {
        "0.33.0": {
            "bf16": {None: "UnquantizedFusedMoEMethod"},
            "fp8": {"fp8": "Fp8MoEMethod", "compressed-tensors": "CompressedTensorsW8A8Fp8MoEMethod"},
            "fp4": {"modelopt": "ModelOptNvFp4FusedMoE"},
            "fp8_fp4": {"modelopt": "ModelOptNvFp4FusedMoE", "fp8": "ModelOptNvFp4FusedMoE"},
            "mxfp4": {"mxfp4": "Mxfp4MoEMethod"},
            "fp8_mxfp4": {"fp8": "Mxfp4MoEMethod"},
        }
    },
}


def can_move_experts(engine: EngineName, version: str, precision: Precision, other_method: str | None) -> bool:
    """Return whether the engine can move experts whose weights are in `precision` from GPU to GPU.

    `other_method` is the checkpoint's quant_method if that is not the usual one of the precision.
    """
    forms = MOVED_FORMS.get(engine, {}).get(version)
    return forms is None or (other_method or METHODS.get(precision)) in forms.get(precision, {})
