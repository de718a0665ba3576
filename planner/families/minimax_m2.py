"""MiniMax-M2: grouped attention, experts in every layer, none shared.

Source of the keys: transformers `MiniMaxM2Config`. Published files add that no layer has linear attention.
"""

from typing import ClassVar

from pydantic import Field

from planner.facts.attention.grouped import GroupedAttention
from planner.facts.model import MAX_LAYERS, Experts
from planner.families.shapes import Count, Entry, GroupedShapes, PerLayer, Size

__all__ = ["MiniMaxM2Shapes"]


class MiniMaxM2Shapes(GroupedShapes):
    """The keys that the family reads."""

    intermediate_size: Size  # of an expert
    num_local_experts: Count
    head_dim: Size
    shared_intermediate_size: int = Field(default=0, ge=0, le=0)
    attn_type_list: PerLayer[Entry] | None = None
    num_mtp_modules: int = Field(default=0, ge=0, le=MAX_LAYERS)

    counts_experts: ClassVar[str] = "num_local_experts"

    def unplanned(self) -> str | None:
        """Return what the planner cannot plan, such as layers with linear attention."""
        is_linear = 0 in (self.attn_type_list or [])
        return "attn_type_list says that layers have linear attention" if is_linear else super().unplanned()

    def experts(self) -> Experts:
        """Return the experts of each layer."""
        return Experts(self.num_local_experts, self.num_experts_per_tok, self.intermediate_size)

    def attention(self, index: int) -> GroupedAttention:
        """Return the attention of each layer, with one norm over all heads."""
        return GroupedAttention(self.num_attention_heads, self.num_key_value_heads, self.head_dim, norms="heads")

    @property
    def num_mtp_layers(self) -> int:
        """Return the number of MTP modules."""
        return self.num_mtp_modules
