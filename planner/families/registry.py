"""Which file reads which family, by the `model_type` of its `config.json`."""

from planner.families.deepseek import IndexedShapes, LatentShapes
from planner.families.qwen3_moe import Qwen3MoeShapes
from planner.families.shapes import Shapes

__all__ = ["FAMILIES"]

FAMILIES: dict[str, type[Shapes]] = {
    "deepseek_v3": LatentShapes,
    "deepseek_v32": IndexedShapes,
    "deepseek_v2": LatentShapes,
    "kimi_k2": LatentShapes,
    "qwen3_moe": Qwen3MoeShapes,
}
