"""Read a checkpoint's `config.json` as a model of its family."""

from planner.families.published import MODELS, find_spelling
from planner.families.read import ModelConfig, model_of, read_model_config

__all__ = ["MODELS", "ModelConfig", "find_spelling", "model_of", "read_model_config"]
