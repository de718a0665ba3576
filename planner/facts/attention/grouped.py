"""Grouped attention (GQA), over all tokens, a window or blocks that an indexer picks: Qwen3, GLM-4, MiniMax, gpt-oss.

Source of the matrices: transformers 5.23.0, the modeling files of these families.
"""

from dataclasses import dataclass, replace

from planner.facts.attention.kind import LayerKv, Matrix

__all__ = ["BlockIndexer", "GroupedAttention"]


@dataclass(frozen=True)
class BlockIndexer:
    """MiniMax-M3's small attention, which picks blocks of keys; all its heads read one key a token."""

    num_heads: int
    head_dim: int

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        """Queries, the key, and a norm of each."""
        return (
            Matrix("attention", (self.num_heads + 1) * self.head_dim * hidden_size, "attention"),
            Matrix("norms", 2 * self.head_dim, "wide"),
        )


@dataclass(frozen=True)
class GroupedAttention:
    """Several query heads share one key head and one value head."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None  # the last tokens that are read
    norms: str = "none"  # of queries and keys: `head`, one for all heads, or `heads`, over all of them together
    biases: str = "none"  # `qkv`, or `all` projections
    has_gate: bool = False  # queries come with as many values that gate the output
    has_sinks: bool = False  # a logit a head that no token answers for
    indexer: BlockIndexer | None = None

    @property
    def only_kv(self) -> None:
        """Any."""

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        """Queries, keys and values; the output."""
        heads = self.num_heads * (2 if self.has_gate else 1) + 2 * self.num_kv_heads
        bias = {"none": 0, "qkv": heads * self.head_dim, "all": heads * self.head_dim + hidden_size}[self.biases]
        normed = {"none": 0, "head": 2, "heads": self.num_heads + self.num_kv_heads}[self.norms]
        return (
            Matrix("attention", heads * self.head_dim * hidden_size, "attention"),
            Matrix("attention", self.num_heads * self.head_dim * hidden_size, "output"),
            Matrix("attention", bias + (self.num_heads if self.has_sinks else 0), "wide"),
            Matrix("norms", normed * self.head_dim, "wide"),
            *(self.indexer.matrices(hidden_size) if self.indexer else ()),
        )

    def kv(self, bytes_per_value: int) -> LayerKv:
        """A key and a value of each KV head, of all tokens or of the window; and the indexer's key.

        That key is of the KV's type: sglang 0.5.23 mem_cache/memory_pool.py, get_minimax_sparse_index_dtype.
        """
        token = 2 * self.num_kv_heads * self.head_dim * bytes_per_value
        index = self.indexer.head_dim * bytes_per_value if self.indexer else 0
        if self.window is not None:
            return LayerKv(index, window=self.window, window_bytes=token)
        return LayerKv(token + index)

    def values(self, tokens: int, context: int, *, absorbs: bool) -> int:
        """Queries and results, keys and values of the context; none are absorbed."""
        gates = tokens * self.num_heads * self.head_dim if self.has_gate else 0
        return 2 * (tokens * self.num_heads + context * self.num_kv_heads) * self.head_dim + gates

    def one_of(self, num_gpus: int) -> "GroupedAttention":
        """Beyond one GPU a KV head, these are held several times.

        Source: github.com/vllm-project/vllm 0036d38d vllm/model_executor/layers/linear.py, QKVParallelLinear: KV heads
        are split, or held several times if fewer.
        """
        kv_heads = max(1, self.num_kv_heads // num_gpus)
        return replace(self, num_heads=self.num_heads // num_gpus, num_kv_heads=kv_heads)
