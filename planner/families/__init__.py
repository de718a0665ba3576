"""Model families, one file each: from a checkpoint's `config.json` to the shapes that the planner reads."""

from planner.families.published import ALIKE, ALIKE_IN, MODELS
from planner.families.read import Misnamed, ModelConfig, model_of, read_model_config

__all__ = ["ALIKE", "ALIKE_IN", "MODELS", "Misnamed", "ModelConfig", "model_of", "read_model_config"]
