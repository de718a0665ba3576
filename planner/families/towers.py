"""Towers, the encoders for images of multimodal models: the keys that give their numbers of parameters.

Sources: transformers 5.23.0 models/kimi_k25/modeling_kimi_k25.py (published files have other names, `vt_...`);
`MiniMaxM3VLVisionConfig` and modeling_minimax_m3_vl.py; `Qwen3_5MoeVisionConfig` and modeling_qwen3_5_moe.py;
models/qwen3_vl_moe/modeling_qwen3_vl_moe.py, Qwen3VLMoeVisionModel.
"""

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from planner.families.shapes import Count, Entry, PerLayer, Size


class Tower(BaseModel):
    """The keys of an encoder beside the text model, in `vision_config` or at the top of `config.json`."""

    model_config = ConfigDict(strict=True, extra="ignore", defer_build=True)

    def num_weights(self, text_hidden_size: int) -> int:
        """Return the number of parameters of the encoder and of the projection into the text model."""
        raise NotImplementedError


class KimiTower(Tower):
    """The keys of the encoder of Kimi-K2.5 and later."""

    hidden_size: Size = Field(validation_alias=AliasChoices("vt_hidden_size", "hidden_size"))
    intermediate_size: Size = Field(validation_alias=AliasChoices("vt_intermediate_size", "intermediate_size"))
    num_hidden_layers: Count = Field(validation_alias=AliasChoices("vt_num_hidden_layers", "num_hidden_layers"))
    patch_size: Count
    pos_emb_height: Count = Field(validation_alias=AliasChoices("init_pos_emb_height", "pos_emb_height"))
    pos_emb_width: Count = Field(validation_alias=AliasChoices("init_pos_emb_width", "pos_emb_width"))
    merge_kernel_size: list[Count] = Field(min_length=2, max_length=2)

    def num_weights(self, text_hidden_size: int) -> int:
        """Return the number of parameters of patches, layers and the projection into the text model."""
        size, inner = self.hidden_size, self.intermediate_size
        patches = 3 * self.patch_size**2 * size + size + self.pos_emb_height * self.pos_emb_width * size
        merged = size * self.merge_kernel_size[0] * self.merge_kernel_size[1]
        projection = 2 * size + merged * merged + merged + merged * text_hidden_size + text_hidden_size
        return patches + self.num_hidden_layers * _encoder_layer(size, inner) + 2 * size + projection


class MiniMaxM3Tower(Tower):
    """The keys of MiniMax-M3's encoder."""

    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Count
    num_channels: Count = 3
    patch_size: Count
    temporal_patch_size: Count = 2
    spatial_merge_size: Count = 2
    projector_hidden_size: Size  # a key at the top of the file

    def num_weights(self, text_hidden_size: int) -> int:
        """Return the number of parameters of patches, layers and two projections of two matrices each."""
        size, inner, text, wide = self.hidden_size, self.intermediate_size, text_hidden_size, self.projector_hidden_size
        patches = self.num_channels * self.temporal_patch_size * self.patch_size**2 * size
        merged = text * self.spatial_merge_size**2
        projections = (size + merged) * wide + 2 * wide * text + 2 * (wide + text)
        return patches + 2 * size + self.num_hidden_layers * _encoder_layer(size, inner) + projections


class Qwen35Tower(Tower):
    """The keys of Qwen3.5's encoder."""

    depth: Count
    hidden_size: Size
    intermediate_size: Size
    in_channels: Count = 3
    patch_size: Count
    temporal_patch_size: Count = 2
    spatial_merge_size: Count = 2
    num_position_embeddings: Size
    out_hidden_size: Size

    def num_weights(self, text_hidden_size: int) -> int:
        """Return the number of parameters of patches, layers and the merger into the text model."""
        size, inner = self.hidden_size, self.intermediate_size
        patches = self.in_channels * self.temporal_patch_size * self.patch_size**2 * size + size
        merged = size * self.spatial_merge_size**2
        merger = 2 * size + merged * merged + merged + merged * self.out_hidden_size + self.out_hidden_size
        return patches + self.num_position_embeddings * size + self.depth * _encoder_layer(size, inner) + merger


class Qwen3VlTower(Qwen35Tower):
    """The keys of Qwen3-VL's encoder: Qwen3.5's, but some inner layers feed the text model too."""

    deepstack_visual_indexes: PerLayer[Entry]

    def num_weights(self, text_hidden_size: int) -> int:
        """Return the number of parameters of `Qwen35Tower`, and of a merger for each layer that feeds the text."""
        merged = self.hidden_size * self.spatial_merge_size**2
        merger = 2 * merged + merged * merged + merged + merged * self.out_hidden_size + self.out_hidden_size
        return super().num_weights(text_hidden_size) + len(self.deepstack_visual_indexes) * merger


def _encoder_layer(size: int, inner: int) -> int:
    """Return the number of parameters of an encoder's layer: attention, two matrices and two norms, all with biases."""
    return 4 * (size * size + size) + 2 * size * inner + inner + size + 4 * size
