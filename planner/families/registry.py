"""Which file reads which family, by the `model_type` of its `config.json`, and what stands beside its text model."""

from planner.families.deepseek import IndexedShapes, LatentShapes
from planner.families.deepseek_v4 import DeepseekV4Shapes
from planner.families.glm4_moe import Glm4MoeShapes
from planner.families.glm_moe_dsa import GlmMoeDsaShapes
from planner.families.gpt_oss import GptOssShapes
from planner.families.kimi_k25 import KimiTower
from planner.families.minimax_m2 import MiniMaxM2Shapes
from planner.families.minimax_m3 import MiniMaxM3Shapes, MiniMaxM3Tower
from planner.families.mixtral import MixtralShapes
from planner.families.qwen3_moe import Qwen3MoeShapes
from planner.families.qwen3_next import Qwen3NextShapes, Qwen35Tower
from planner.families.shapes import Shapes, Tower

__all__ = ["FAMILIES", "TOWERS"]

FAMILIES: dict[str, type[Shapes]] = {
    "deepseek_v2": LatentShapes,
    "deepseek_v3": LatentShapes,
    "deepseek_v32": IndexedShapes,
    "deepseek_v4": DeepseekV4Shapes,
    "kimi_k2": LatentShapes,
    "glm4_moe": Glm4MoeShapes,
    "glm_moe_dsa": GlmMoeDsaShapes,
    "minimax_m2": MiniMaxM2Shapes,
    "minimax_m3": MiniMaxM3Shapes,
    "minimax_m3_vl_text": MiniMaxM3Shapes,
    "qwen3_moe": Qwen3MoeShapes,
    "qwen3_next": Qwen3NextShapes,
    "qwen3_5_moe_text": Qwen3NextShapes,
    "gpt_oss": GptOssShapes,
    "mixtral": MixtralShapes,
}

# model_type of the whole -> the tower's keys, and what families its text model may be of, the usual one first
TOWERS: dict[str, tuple[type[Tower], tuple[str, ...]]] = {
    "kimi_k25": (KimiTower, ("kimi_k2", "deepseek_v3")),
    "minimax_m3_vl": (MiniMaxM3Tower, ("minimax_m3", "minimax_m3_vl_text")),
    "qwen3_5_moe": (Qwen35Tower, ("qwen3_5_moe_text",)),
}
