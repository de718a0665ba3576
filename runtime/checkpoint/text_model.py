"""The text model of a checkpoint, which may also have encoders for images: its config and its tensors' names.

    {"model_type": "kimi_k25", "text_config": {...}, "vision_config": {...}}
    language_model.model.embed_tokens.weight    vision_tower.encoder...    mm_projector...

Only the text model is read. The code that computes it gets the config here, and knows nothing of the rest.

Source of the keys: transformers 5.23.0 `Kimi_K25Config`. Source of the prefix: its conversion_mapping.py, `kimi_k25`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.checkpoint.folder import read_json
from runtime.errors import CheckpointError

__all__ = ["TextModel", "read_text_model"]

PREFIXES = {"kimi_k25": "language_model."}  # model_type of the whole checkpoint -> prefix of its text model's tensors
USUAL_TYPE = "deepseek_v3"  # the default of a text_config without a type
OUTSIDE = ("tie_word_embeddings", "eos_token_id", "quantization_config")  # keys of the whole that override the text's


@dataclass(frozen=True)
class TextModel:
    """The text model's config, and the prefix of its tensors' names.

    The prefix is empty for a checkpoint without encoders.
    """

    config: dict[str, Any]
    prefix: str


def read_text_model(folder: Path) -> TextModel:
    """Return the text model's config from `config.json`, and the prefix of its tensors' names.

    For a multimodal model the config is `text_config`, with the keys beside it.

    Raises CheckpointError if the model is multimodal and has no text model.
    """
    path = folder / "config.json"
    whole = read_json(path)
    model_type = whole.get("model_type")
    if not isinstance(model_type, str) or model_type not in PREFIXES:
        return TextModel(whole, "")
    text = whole.get("text_config")
    if not isinstance(text, dict):
        raise CheckpointError(f"{path}: text_config is {text!r}, an object is needed where model_type is {model_type}")
    outside = {key: whole[key] for key in OUTSIDE if whole.get(key) is not None}
    return TextModel({"model_type": USUAL_TYPE} | text | outside, PREFIXES[model_type])
