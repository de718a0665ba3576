"""Look up the class that reads a family, by the `model_type` of a `config.json`.

A spec names one model, so a family's file is imported on first use. `facts/engine_models.py` says which engines run a
family.
"""

from importlib import import_module
from typing import Any

from planner.families.shapes import Shapes
from planner.families.towers import Tower

# model_type -> file and class
FAMILIES = {
    "deepseek_v2": "latent.LatentShapes",
    "deepseek_v3": "latent.LatentShapes",
    "deepseek_v32": "latent.IndexedShapes",
    "deepseek_v4": "deepseek_v4.DeepseekV4Shapes",
    "kimi_k2": "latent.LatentShapes",
    "glm4_moe": "grouped.Glm4MoeShapes",
    "glm4_moe_lite": "latent.Glm4MoeLiteShapes",
    "glm_moe_dsa": "latent.GlmMoeDsaShapes",
    "mimo_v2_flash": "mimo_v2_flash.MiMoV2FlashShapes",
    "minimax_m2": "grouped.MiniMaxM2Shapes",
    "minimax_m3": "minimax_m3.MiniMaxM3Shapes",
    "minimax_m3_vl_text": "minimax_m3.MiniMaxM3Shapes",
    "qwen2_moe": "grouped.Qwen2MoeShapes",
    "qwen3_moe": "grouped.Qwen3MoeShapes",
    "qwen3_vl_moe_text": "grouped.Qwen3MoeShapes",
    "qwen3_next": "qwen3_next.Qwen3NextShapes",
    "qwen3_5_moe_text": "qwen3_next.Qwen3NextShapes",
    "gpt_oss": "grouped.GptOssShapes",
    "mixtral": "grouped.MixtralShapes",
}

# model_type of a multimodal model -> file and class of its encoder (tower), and possible families of its text model,
# the usual one first: a text model without a model_type is of that family
TOWERS = {
    "kimi_k25": ("towers.KimiTower", ("kimi_k2", "deepseek_v3")),
    "minimax_m3_vl": ("towers.MiniMaxM3Tower", ("minimax_m3", "minimax_m3_vl_text")),
    "qwen3_vl_moe": ("towers.Qwen3VlTower", ("qwen3_vl_moe_text",)),
    "qwen3_5_moe": ("towers.Qwen35Tower", ("qwen3_5_moe_text",)),
}


# model_types whose checkpoints have code for their tokenizer. Without it an engine silently takes another tokenizer.
# Source: github.com/zhy0216/pigo docs/reference/pi-mono-main/packages/pods/docs/kimi-k2.md, a copy of the makers'
# guide, where each command has --trust-remote-code.
BRING_CODE = ("kimi_k2", "kimi_k25")


def shapes_of(family: str) -> type[Shapes]:
    """Return the class that reads the shapes of `family`, one of `FAMILIES`."""
    found: type[Shapes] = _class_named(FAMILIES[family])
    return found


def tower_of(model_type: str) -> type[Tower]:
    """Return the class that reads the encoder (tower) of a multimodal `model_type`, one of `TOWERS`."""
    found: type[Tower] = _class_named(TOWERS[model_type][0])
    return found


def _class_named(name: str) -> Any:
    file, _, its_class = name.partition(".")
    return getattr(import_module(f"planner.families.{file}"), its_class)
