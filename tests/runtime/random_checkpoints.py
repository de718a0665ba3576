"""Small checkpoints of every model variant with random weights, in DeepSeek's names and layout."""

import json
import shutil

import torch
from safetensors.torch import load_file, save_file

from runtime.kernels.fp8 import quantise_matrix

SHAPE = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "rope_scaling": None,
    "attention_bias": False,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
V3 = SHAPE | {
    "model_type": "deepseek_v3",
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
}
V2 = SHAPE | {
    "model_type": "deepseek_v2",
    "scoring_func": "softmax",
    "topk_method": "group_limited_greedy",
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": False,
    "routed_scaling_factor": 16.0,
    "n_shared_experts": 2,
}
V2_LITE = V2 | {
    "topk_method": "greedy",
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
    "q_lora_rank": None,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "patch_size": 4,
    "pos_emb_height": 4,
    "pos_emb_width": 4,
    "merge_kernel_size": [2, 2],
}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


def write_checkpoint(folder, config, seed=0, num_shards=1):
    """Write `config.json` and safetensors, in one file or in shards with an index; `seed` draws every value.

    A config with `quantization_config` has its projections in FP8, each with its scales.
    """
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = draw(config, seed)
    if "quantization_config" in config:
        tensors = quantise_projections(tensors)
    if num_shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    names = [f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors" for shard in range(num_shards)]
    for shard, name in enumerate(names):
        save_file(dict(list(tensors.items())[shard::num_shards]), folder / name)
    weight_map = {tensor: names[number % num_shards] for number, tensor in enumerate(tensors)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def nest_beside_tower(folder, nested):
    """Write the checkpoint in `folder` to `nested` as Kimi-K2.5 publishes its own, and return `nested`.

    The config is its `text_config`, tensors begin with `language_model.`, and a tower has tensors too.
    """
    shutil.copytree(folder, nested, ignore=shutil.ignore_patterns("*.safetensors", "tidemill-checkpoint.json"))
    text = json.loads((folder / "config.json").read_text())
    outside = {"model_type": "kimi_k25", "tie_word_embeddings": text["tie_word_embeddings"]}
    text |= {"model_type": "kimi_k2", "tie_word_embeddings": False}
    (nested / "config.json").write_text(json.dumps(outside | {"text_config": text, "vision_config": VISION}))
    tensors = {f"language_model.{name}": values for name, values in load_file(folder / "model.safetensors").items()}
    save_file(tensors | {"vision_tower.patch_embed.proj.bias": torch.ones(32)}, nested / "model.safetensors")
    return nested


def quantise_projections(tensors):
    """Return the tensors as DeepSeek publishes them: projections in e4m3, the rest unchanged."""
    found = {}
    for name, values in tensors.items():
        if "_proj" not in name:
            found[name] = values
            continue
        quantised = quantise_matrix(values)
        found |= {name: quantised.codes, f"{name}_scale_inv": quantised.scales}
    return found


def draw(config, seed):
    """Draw values: matrices keep their inputs' size, norms stay near 1, and the gate's biases sometimes decide."""
    generator = torch.Generator().manual_seed(seed)

    def values(name, shape):
        drawn = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            return 1 + 0.1 * drawn
        return 0.2 * drawn if name.endswith("bias") else drawn / (1 if "embed" in name else shape[-1] ** 0.5)

    return {name: values(name, shape) for name, shape in shapes(config).items()}


def shapes(config):
    """Return name -> shape of every tensor."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    found = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    num_layers, num_mtp = config["num_hidden_layers"], config.get("num_nextn_predict_layers", 0)
    for layer in range(num_layers + num_mtp):
        is_dense = layer < config["first_k_dense_replace"]
        parts = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            **_attention(config),
            **(_mlp("mlp", hidden, config["intermediate_size"]) if is_dense else _mixture(config)),
            **(_mtp(hidden) if layer >= num_layers else {}),
        }
        found |= {f"model.layers.{layer}.{name}": shape for name, shape in parts.items()}
    return found if config["tie_word_embeddings"] else found | {"lm_head.weight": (vocab, hidden)}


def _mtp(hidden):
    norms = ("enorm", "hnorm", "shared_head.norm")
    return {f"{name}.weight": (hidden,) for name in norms} | {"eh_proj.weight": (hidden, 2 * hidden)}


def _attention(config):
    hidden, heads, query, latent = (
        config[key] for key in ("hidden_size", "num_attention_heads", "q_lora_rank", "kv_lora_rank")
    )
    nope, rope, value = (config[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    compressed = {"q_a_proj.weight": (query, hidden), "q_a_layernorm.weight": (query,)}
    compressed |= {"q_b_proj.weight": (heads * (nope + rope), query)}
    parts = {
        **({"q_proj.weight": (heads * (nope + rope), hidden)} if query is None else compressed),
        "kv_a_proj_with_mqa.weight": (latent + rope, hidden),
        "kv_a_layernorm.weight": (latent,),
        "kv_b_proj.weight": (heads * (nope + value), latent),
        "o_proj.weight": (hidden, heads * value),
    }
    return {f"self_attn.{name}": shape for name, shape in parts.items()}


def _mixture(config):
    hidden, size, experts = (config[key] for key in ("hidden_size", "moe_intermediate_size", "n_routed_experts"))
    parts = {"mlp.gate.weight": (experts, hidden)} | _mlp(
        "mlp.shared_experts", hidden, size * config["n_shared_experts"]
    )
    if config["model_type"] != "deepseek_v2":
        parts["mlp.gate.e_score_correction_bias"] = (experts,)
    for expert in range(experts):
        parts |= _mlp(f"mlp.experts.{expert}", hidden, size)
    return parts


def _mlp(prefix, hidden, size):
    return {
        f"{prefix}.gate_proj.weight": (size, hidden),
        f"{prefix}.up_proj.weight": (size, hidden),
        f"{prefix}.down_proj.weight": (hidden, size),
    }
