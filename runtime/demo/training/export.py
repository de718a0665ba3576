"""The trained network as a Hugging Face folder, in the published DeepSeek-V3 names.

Why it exists: everything that reads the folder (transformers, Tidemill's loader, its tests) expects one tensor an
expert, bfloat16 weights and a float32 correction bias, as DeepSeek's own checkpoint has them.
It does not write `config.json`: that file is the source of every shape and is kept by hand.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from runtime.demo.training.corpus import ASSISTANT, BOS, EOS, PAD, USER
from runtime.demo.training.network import MoE, Network

__all__ = ["adopt", "export", "published_tensors"]

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] }}"
    "{% elif message['role'] == 'user' %}{{ '" + USER + "' + message['content'] }}"
    "{% elif message['role'] == 'assistant' %}{{ '" + ASSISTANT + "' + message['content'] + eos_token }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '" + ASSISTANT + "' }}{% endif %}"
)


def export(network: Network, tokenizer: Tokenizer, folder: Path) -> None:
    """Write weights, tokenizer and generation settings into `folder`."""
    save_file(published_tensors(network), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=False), encoding="utf-8")
    write_json(
        folder / "tokenizer_config.json",
        {
            "add_bos_token": True,
            "add_eos_token": False,
            "bos_token": BOS,
            "eos_token": EOS,
            "pad_token": PAD,
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "model_max_length": network.config["max_position_embeddings"],
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )
    ids = {f"{name}_token_id": network.config[f"{name}_token_id"] for name in ("bos", "eos", "pad")}
    write_json(folder / "generation_config.json", {**ids, "do_sample": True, "temperature": 0.6, "top_p": 0.95})


def published_tensors(network: Network) -> dict[str, torch.Tensor]:
    """Return published name -> tensor: matrices and norms in bfloat16, correction biases in float32.

    A network trained in FP8 is published rounded to the FP8 values that it was trained with.
    """
    tensors = {}
    for name, tensor in tensors_by_published_name(network).items():
        if name.endswith("e_score_correction_bias"):
            tensors[name] = tensor.detach().float().clone()
        else:
            value = network.rounding.matrix(tensor.detach()) if is_projection(name) else tensor.detach()
            tensors[name] = value.bfloat16().contiguous()
    return tensors


@torch.no_grad()
def adopt(network: Network, folder: Path) -> None:
    """Load the weights that `folder` publishes into `network`."""
    stored = load_file(folder / "model.safetensors")
    for name, tensor in tensors_by_published_name(network).items():
        tensor.copy_(stored[name])


def is_projection(name: str) -> bool:
    """Return whether DeepSeek stores the matrix in FP8. kv_b_proj is a part of core attention, which is BF16."""
    return "_proj" in name and "kv_b_proj" not in name


def tensors_by_published_name(network: Network) -> dict[str, torch.Tensor]:
    """Return published name -> the network's tensor itself, not a copy."""
    tensors = {
        "model.embed_tokens.weight": network.embed,
        "model.norm.weight": network.norm,
        "lm_head.weight": network.head,
    }
    for index, layer in enumerate(network.layers):
        attention = layer.attention
        parts = {
            "input_layernorm.weight": layer.input_norm,
            "post_attention_layernorm.weight": layer.post_norm,
            "self_attn.q_a_proj.weight": attention.q_a,
            "self_attn.q_a_layernorm.weight": attention.q_norm,
            "self_attn.q_b_proj.weight": attention.q_b,
            "self_attn.kv_a_proj_with_mqa.weight": attention.kv_a,
            "self_attn.kv_a_layernorm.weight": attention.kv_norm,
            "self_attn.kv_b_proj.weight": attention.kv_b,
            "self_attn.o_proj.weight": attention.out,
            **(
                moe_parts(layer.mlp)
                if isinstance(layer.mlp, MoE)
                else mlp_parts("mlp", layer.mlp.gate, layer.mlp.up, layer.mlp.down)
            ),
        }
        tensors |= {f"model.layers.{index}.{name}": tensor for name, tensor in parts.items()}
    return tensors


def moe_parts(moe: MoE) -> dict[str, torch.Tensor]:
    parts = {"mlp.gate.weight": moe.router, "mlp.gate.e_score_correction_bias": moe.bias}
    parts |= mlp_parts("mlp.shared_experts", moe.shared.gate, moe.shared.up, moe.shared.down)
    for expert, (gate_up, down) in enumerate(zip(moe.gate_up, moe.down, strict=True)):
        gate, up = gate_up.chunk(2)
        parts |= mlp_parts(f"mlp.experts.{expert}", gate, up, down)
    return parts


def mlp_parts(prefix: str, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> dict[str, torch.Tensor]:
    return {f"{prefix}.gate_proj.weight": gate, f"{prefix}.up_proj.weight": up, f"{prefix}.down_proj.weight": down}


def write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
