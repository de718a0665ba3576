"""The tower of Kimi-K2.5 and later: its text model is Kimi-K2's.

Source: transformers 5.23.0 models/kimi_k25/modeling_kimi_k25.py; published files have other names (`vt_...`).
"""

from pydantic import AliasChoices, Field

from planner.families.shapes import Count, Size, Tower, encoder_layer

__all__ = ["KimiTower"]


class KimiTower(Tower):
    """The keys of `vision_config`."""

    hidden_size: Size = Field(validation_alias=AliasChoices("vt_hidden_size", "hidden_size"))
    intermediate_size: Size = Field(validation_alias=AliasChoices("vt_intermediate_size", "intermediate_size"))
    num_hidden_layers: Count = Field(validation_alias=AliasChoices("vt_num_hidden_layers", "num_hidden_layers"))
    patch_size: Count
    pos_emb_height: Count = Field(validation_alias=AliasChoices("init_pos_emb_height", "pos_emb_height"))
    pos_emb_width: Count = Field(validation_alias=AliasChoices("init_pos_emb_width", "pos_emb_width"))
    merge_kernel_size: list[Count] = Field(min_length=2, max_length=2)

    def num_weights(self, text_hidden_size: int) -> int:
        """Return the parameters of patches, layers and the projection into the text model."""
        size, inner = self.hidden_size, self.intermediate_size
        patches = 3 * self.patch_size**2 * size + size + self.pos_emb_height * self.pos_emb_width * size
        merged = size * self.merge_kernel_size[0] * self.merge_kernel_size[1]
        projection = 2 * size + merged * merged + merged + merged * text_hidden_size + text_hidden_size
        return patches + self.num_hidden_layers * encoder_layer(size, inner) + 2 * size + projection
