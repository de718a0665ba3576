"""Model families: from a checkpoint's `config.json` to the shapes that the planner reads."""

from planner.families.published import MODELS, find_spelling
from planner.families.read import ModelConfig, model_of, read_model_config

__all__ = ["MODELS", "ModelConfig", "find_spelling", "model_of", "read_model_config"]
