"""Model families, one file each: from a checkpoint's `config.json` to the shapes that the planner reads."""

from planner.families.published import ALIKE, MODELS
from planner.families.read import ModelConfig, model_of, read_model_config

__all__ = ["ALIKE", "MODELS", "ModelConfig", "model_of", "read_model_config"]
