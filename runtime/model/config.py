"""The fields of a DeepSeek `config.json` that the computation reads, checked.

It reads V3, R1 and V3.1 (`deepseek_v3`); Kimi-K2 (`kimi_k2`), which has V3's architecture; V2 and V2-Lite
(`deepseek_v2`); and the text model of Kimi-K2.5, which is of one of these types (`checkpoint/text_model.py` finds it).
They differ in the gate, in whether the query is compressed (`q_lora_rank`), and in YaRN (`rope.py`). A config that this
runtime cannot compute is refused with the key's name, never approximated.

Source of the names: deepseek-ai/DeepSeek-V3 and DeepSeek-V2 `config.json`; transformers `DeepseekV3Config`,
`DeepseekV2Config`, whose files omit keys that follow from their model type.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from runtime.checkpoint import read_text_model
from runtime.errors import CheckpointError
from runtime.model.rope import Yarn, read_rope

__all__ = ["ModelConfig", "read_model_config"]

TopkMethod = Literal["noaux_tc", "greedy", "group_limited_greedy"]

# Key -> the supported values; the first is the default of a file without the key.
COMMON_VALUES: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "moe_layer_freq": (1,),
    "tie_word_embeddings": (False, True),
}
# For FP8 only. The tensors themselves show which are in FP8, so `modules_to_not_convert` is not read.
QUANTISATION: dict[str, tuple[Any, ...]] = {
    "quant_method": ("fp8",),
    "fmt": ("e4m3",),
    "weight_block_size": ([128, 128],),
    "activation_scheme": ("dynamic",),
    "scale_fmt": (None, "ue8m0"),
}
V3: dict[str, tuple[Any, ...]] = {
    "scoring_func": ("sigmoid",),
    "topk_method": ("noaux_tc",),
    "norm_topk_prob": (True, False),
    "rope_interleave": (True, False),
}
MODEL_TYPE_VALUES: dict[str, dict[str, tuple[Any, ...]]] = {
    "deepseek_v3": V3,
    "kimi_k2": V3,
    # V2 normalises nowhere, and its two codes disagree on what that would mean: DeepSeek's then drops the scaling
    # factor, transformers ignores the key. Both turn neighbours, whatever the file says.
    "deepseek_v2": {
        "scoring_func": ("softmax",),
        "topk_method": ("greedy", "group_limited_greedy"),
        "norm_topk_prob": (False,),
        "rope_interleave": (True,),
    },
}
CHOSEN = ("scoring_func", "topk_method", "norm_topk_prob", "rope_interleave", "tie_word_embeddings")
LAYERS = ("num_hidden_layers", "first_k_dense_replace")
MAX_LAYERS = 10_000  # assumed, like the next: more than any model has, and few enough to list
MAX_COUNT = 2**31 - 1
COUNTS = (
    *("vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers"),
    *("first_k_dense_replace", "num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"),
    *("v_head_dim", "n_routed_experts", "n_shared_experts", "num_experts_per_tok", "max_position_embeddings"),
)


@dataclass(frozen=True)
class ModelConfig:
    """The fields of the config, under their published names.

    With `greedy` routing there is one group of experts, always eligible.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    first_k_dense_replace: int
    num_attention_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    scoring_func: Literal["sigmoid", "softmax"]
    topk_method: TopkMethod
    n_group: int
    topk_group: int
    norm_topk_prob: bool
    routed_scaling_factor: float
    rope_theta: float
    yarn: Yarn | None
    rms_norm_eps: float
    max_position_embeddings: int
    rope_interleave: bool = True  # a pair of a rotary position is two neighbours, not one number of each half
    tie_word_embeddings: bool = False  # the head's matrix is the embedding's
    power_of_two_scales: bool = False  # of FP8 activations: V3.1's `scale_fmt`

    @property
    def latent_dim(self) -> int:
        """The number of values in the KV cache for one token and layer: the compressed KV and the shared rotary key."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def num_moe_layers(self) -> int:
        """The number of MoE layers, which follow the dense ones."""
        return self.num_hidden_layers - self.first_k_dense_replace


def read_model_config(folder: Path) -> ModelConfig:
    """Read `config.json`. Raises CheckpointError if a key is missing, or if this runtime cannot compute a value."""
    path = folder / "config.json"
    document = read_text_model(folder).config
    choices = _choices(document, path)
    groups = ("n_group", "topk_group")
    is_grouped = choices["topk_method"] != "greedy"
    theta, yarn = read_rope(document, path)
    counts: dict[str, Any] = {key: _count(document, key, path) for key in COUNTS}
    counts |= {key: _count(document, key, path) if is_grouped else 1 for key in groups}
    config = ModelConfig(
        **counts,
        **{key: _number(document, key, path) for key in ("routed_scaling_factor", "rms_norm_eps")},
        **{key: choices[key] for key in CHOSEN},
        q_lora_rank=None if document.get("q_lora_rank", 0) is None else _count(document, "q_lora_rank", path),
        rope_theta=theta,
        yarn=yarn,
        power_of_two_scales=_quantisation(document, path).get("scale_fmt") == "ue8m0",
    )
    _check_groups(config, path)
    return config


def _choices(document: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return key -> value for the keys of which this runtime supports only some values.

    Raises CheckpointError for another value.
    """
    model_type = document.get("model_type")
    if not isinstance(model_type, str) or model_type not in MODEL_TYPE_VALUES:
        raise _unsupported_value(path, "model_type", model_type, tuple(MODEL_TYPE_VALUES))
    chosen = {}
    for key, values in (COMMON_VALUES | MODEL_TYPE_VALUES[model_type]).items():
        chosen[key] = document.get(key, values[0])
        if chosen[key] not in values:
            raise _unsupported_value(path, key, chosen[key], values)
    return chosen


def _quantisation(document: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return `quantization_config`; empty if there is none.

    Raises CheckpointError for a quantisation other than DeepSeek's.
    """
    quantisation = document.get("quantization_config")
    if quantisation is None:
        return {}
    if not isinstance(quantisation, dict):
        raise CheckpointError(f"{path}: quantization_config is {quantisation!r}, an object is needed")
    for key, values in QUANTISATION.items():
        if quantisation.get(key, values[0]) not in values:
            raise _unsupported_value(path, f"quantization_config.{key}", quantisation[key], values)
    return quantisation


def _unsupported_value(path: Path, key: str, value: Any, values: tuple[Any, ...]) -> CheckpointError:
    return CheckpointError(f"{path}: {key} is {value!r}, this runtime computes only {' and '.join(map(repr, values))}")


def _number(document: dict[str, Any], key: str, path: Path) -> Any:
    value = document.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CheckpointError(f"{path}: {key} is {value!r}, a number is needed")
    return value


def _count(document: dict[str, Any], key: str, path: Path) -> int:
    value, least = _number(document, key, path), 0 if key == "first_k_dense_replace" else 1
    if not isinstance(value, int) or value < least:
        raise CheckpointError(f"{path}: {key} is {value!r}, a whole number of at least {least} is needed")
    most = MAX_LAYERS if key in LAYERS else MAX_COUNT
    if value > most:
        raise CheckpointError(f"{path}: {key} is {value:,}, a whole number of at most {most:,} is needed")
    return value


def _check_groups(config: ModelConfig, path: Path) -> None:
    experts, groups = config.n_routed_experts, config.n_group
    if experts % groups:
        raise CheckpointError(f"{path}: n_group ({groups}) does not divide n_routed_experts ({experts})")
    if config.topk_group > groups:
        raise CheckpointError(f"{path}: topk_group ({config.topk_group}) is more than n_group ({groups})")
    eligible = config.topk_group * experts // groups
    if config.topk_method == "noaux_tc" and experts // groups < 2:
        raise CheckpointError(f"{path}: n_group ({groups}) leaves less than two of {experts} experts in a group")
    if config.num_experts_per_tok > eligible:
        chosen = config.num_experts_per_tok
        raise CheckpointError(f"{path}: num_experts_per_tok ({chosen}) is more than the {eligible} eligible experts")
