"""How a layer mixes tokens, one file a kind: its matrices, the KV that one request keeps there, its working values.

Every kind answers the questions of `kind.py`, so that layouts need not know which kinds there are.
"""

from planner.facts.attention.compressed import CompressedAttention
from planner.facts.attention.grouped import BlockIndexer, GroupedAttention
from planner.facts.attention.kind import Attention, LayerKv, Matrix, Part, Role
from planner.facts.attention.latent import Indexer, LatentAttention
from planner.facts.attention.linear import LinearAttention

__all__ = [
    "Attention",
    "BlockIndexer",
    "CompressedAttention",
    "GroupedAttention",
    "Indexer",
    "LatentAttention",
    "LayerKv",
    "LinearAttention",
    "Matrix",
    "Part",
    "Role",
]
