"""Grouped attention (GQA) over all tokens, a window, or blocks from an indexer: Qwen3, GLM-4, MiniMax, gpt-oss.

Source of the matrices: transformers 5.23.0, the modeling files of these families.
"""

from dataclasses import dataclass, replace

from planner.facts.attention.kind import LayerKv, Matrix


@dataclass(frozen=True)
class BlockIndexer:
    """MiniMax-M3's small attention that picks blocks of keys; its heads share one key per token."""

    num_heads: int
    head_dim: int
    num_blocks: int  # blocks that it picks for each query and KV head, the last blocks included
    block_tokens: int

    @property
    def num_picked(self) -> int:
        """Return how many tokens' keys a query reads: 16 blocks of 128 are 2,048."""
        return self.num_blocks * self.block_tokens

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        """Return the indexer's matrices: queries, the key, and a norm for each of the two."""
        return (
            Matrix("attention", self.num_heads * self.head_dim * hidden_size, "attention", "self_attn.index_q_proj"),
            Matrix("attention", self.head_dim * hidden_size, "attention", "self_attn.index_k_proj"),
            Matrix("norms", 2 * self.head_dim, "wide"),
        )


@dataclass(frozen=True)
class GroupedAttention:
    """Attention in which several query heads share one key head and one value head."""

    num_heads: int
    num_kv_heads: int
    head_dim: int  # of queries and keys
    value_dim: int | None = None  # of a head's value and result; None: `head_dim`
    window: int | None = None  # how many of the last tokens are read; None: all
    norms: str = "none"  # of queries and keys: `head` is one head wide, `heads` is as wide as all heads together
    biases: str = "none"  # projections with a bias: `none`, `qkv` or `all`
    has_gate: bool = False  # whether each query value has another that gates the output
    has_sinks: bool = False  # whether each head has an attention sink, a logit of no token
    indexer: BlockIndexer | None = None

    @property
    def only_kv(self) -> None:
        """Return None: kernels can store KV in any precision, so no single precision is required."""

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        """Return the matrices of queries, keys, values and the output, with biases, sinks and norms."""
        queries = self.num_heads * (2 if self.has_gate else 1) * self.head_dim
        projected = queries + self.num_kv_heads * self._kv_dim
        bias = {"none": 0, "qkv": projected, "all": projected + hidden_size}[self.biases]
        normed = {"none": 0, "head": 2, "heads": self.num_heads + self.num_kv_heads}[self.norms]
        return (
            Matrix("attention", queries * hidden_size, "attention", "self_attn.q_proj"),
            Matrix("attention", self.num_kv_heads * self.head_dim * hidden_size, "attention", "self_attn.k_proj"),
            Matrix("attention", self.num_kv_heads * self._value_dim * hidden_size, "attention", "self_attn.v_proj"),
            Matrix("attention", self.num_heads * self._value_dim * hidden_size, "output", "self_attn.o_proj"),
            Matrix("attention", bias + (self.num_heads if self.has_sinks else 0), "wide"),
            Matrix("norms", normed * self.head_dim, "wide"),
            *(self.indexer.matrices(hidden_size) if self.indexer else ()),
        )

    def kv(self, bytes_per_value: int) -> LayerKv:
        """Return the KV: a key and a value per KV head, for all tokens or for the window, and the indexer's key.

        The indexer's key has the KV's type: sglang 0.5.23 mem_cache/memory_pool.py, get_minimax_sparse_index_dtype.
        """
        token = self.num_kv_heads * self._kv_dim * bytes_per_value
        index = self.indexer.head_dim * bytes_per_value if self.indexer else 0
        if self.window is not None:
            return LayerKv(index, window=self.window, window_bytes=token)
        return LayerKv(token + index)

    def num_activations(self, tokens: int, context: int, *, absorbs: bool) -> int:
        """Return the number of values in queries and results, and in the context's keys and values."""
        gates = tokens * self.num_heads * self.head_dim if self.has_gate else 0
        return (tokens * self.num_heads + context * self.num_kv_heads) * self._kv_dim + gates

    def one_of(self, num_gpus: int) -> "GroupedAttention":
        """Return the attention with one GPU's part of the heads.

        With more GPUs than KV heads, several GPUs hold the same KV head. Source: github.com/vllm-project/vllm 0036d38d
        vllm/model_executor/layers/linear.py, QKVParallelLinear: KV heads are split, or held several times if fewer.
        """
        kv_heads = max(1, self.num_kv_heads // num_gpus)
        return replace(self, num_heads=self.num_heads // num_gpus, num_kv_heads=kv_heads)

    @property
    def _value_dim(self) -> int:
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def _kv_dim(self) -> int:
        """Return the number of values in one KV head's key and value together."""
        return self.head_dim + self._value_dim
