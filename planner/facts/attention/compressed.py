"""DeepSeek-V4's attention: one key-value vector for all heads. The last tokens have one each, older ones share entries.

Source of the matrices: transformers 5.23.0 models/deepseek_v4/modeling_deepseek_v4.py. What stays in BF16 or FP32:
sglang 0.5.23 layers/attention/dsv4/compressor.py and indexer.py. KV: sglang 0.5.23 mem_cache/deepseek_v4_memory_pool.py
and, for states, model_executor/pool_configurator.py; pages kernels/ops/attention/dsv4/kv_layout.py.
"""

from dataclasses import dataclass, replace

from planner.facts.attention.kind import LayerKv, Matrix
from planner.facts.attention.latent import Indexer
from planner.facts.terms import KvPrecision

SCALE_VALUES = 64  # KV values that share a one-byte scale; a slot has a multiple of 8 scales
PAGE_TOKENS = 256
PAGE_BYTES = 576  # a page is padded to a multiple of this
STATE_VALUE_BYTES = 4
OVERLAP = 2  # windows of `ratio` tokens that one entry is made from, in layers with an indexer


@dataclass(frozen=True)
class CompressedAttention:
    """Attention over a window of the last tokens, and over one entry for every `ratio` tokens before (0: no entries).

    An indexer, if there is one, picks the entries that a query reads.
    """

    num_heads: int
    head_dim: int
    rope_head_dim: int  # the part of `head_dim` that is rotated
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int  # of one group of the output projection
    window: int
    ratio: int
    indexer: Indexer | None = None
    num_picked: int | None = None  # entries that the indexer picks for each query

    @property
    def num_kv_heads(self) -> int:
        """Return `num_heads`, because KV is not split by heads."""
        return self.num_heads

    @property
    def only_kv(self) -> KvPrecision:
        """Return FP8, the only precision in which kernels store this attention's KV.

        Source: sglang 0.5.23 arg_groups/overrides.py, _deepseek_v4_kv_cache_dtype.
        """
        return "fp8"

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        """Return the matrices of queries (two steps), the key, the output (two steps) and compressors."""
        heads, rank = self.num_heads * self.head_dim, self.q_lora_rank
        return (
            Matrix("attention", hidden_size * rank, "attention", "self_attn.q_a_proj"),
            Matrix("attention", rank * heads, "attention", "self_attn.q_b_proj"),
            Matrix("attention", hidden_size * self.head_dim, "attention", "self_attn.kv_proj"),
            Matrix("attention", self.o_lora_rank * heads, "output", "self_attn.o_a_proj"),
            Matrix("attention", self.o_lora_rank * self.o_groups * hidden_size, "output", "self_attn.o_b_proj"),
            Matrix("attention", self.num_heads, "fp32"),  # attention sinks
            Matrix("norms", self.q_lora_rank + self.head_dim, "wide"),
            *(self._compressor(hidden_size, self.head_dim) if self.ratio else ()),
            *(self._indexer(self.indexer, hidden_size) if self.indexer else ()),
        )

    def kv(self, bytes_per_value: int) -> LayerKv:
        """Return a request's KV in this layer; `bytes_per_value` is ignored, because entries have a fixed format.

        An entry has 448 values in FP8, 64 in BF16 and 8 scales, 584 B. With its page's padding an entry takes 585 B, or
        864 B in a page of two entries. The indexer's key adds to that.
        """
        index = self.indexer.kv_bytes_per_token if self.indexer else 0
        entry = self._slot_bytes(PAGE_TOKENS // self.ratio) + index if self.ratio else 0
        return LayerKv(entry, self.ratio or 1, self.window, self._slot_bytes(PAGE_TOKENS), self._state_bytes())

    def num_activations(self, tokens: int, context: int, *, absorbs: bool) -> int:
        """Return the number of values in queries, results, the output's middle step, and keys of window and entries."""
        entries = context // self.ratio if self.ratio else 0
        keys = (tokens + min(context, self.window) + entries) * self.head_dim
        return tokens * (2 * self.num_heads * self.head_dim + self.o_groups * self.o_lora_rank) + keys

    def one_of(self, num_gpus: int) -> "CompressedAttention":
        """Return the attention with one GPU's part of the heads and of their groups of the output.

        Each GPU holds the key that all heads read. Source: sglang 0.5.23 models/deepseek_v4.py: wq_b, wo_a and wo_b are
        split, wq_a, wkv and compressors are not.
        """
        groups = max(1, self.o_groups // num_gpus)
        return replace(self, num_heads=self.num_heads // num_gpus, o_groups=groups)

    @property
    def entry_bytes(self) -> int:
        """Return the bytes of an entry, without its page's padding and the indexer's key: 584 B."""
        plain = self.head_dim - self.rope_head_dim
        return plain + 2 * self.rope_head_dim + -(-plain // SCALE_VALUES // 8) * 8

    def _slot_bytes(self, slots_per_page: int) -> int:
        return -(-slots_per_page * self.entry_bytes // PAGE_BYTES) * PAGE_BYTES // slots_per_page

    @property
    def _num_windows(self) -> int:
        """Return how many windows of tokens a compressor reads for one entry."""
        return OVERLAP if self.indexer else 1

    def _compressor(self, hidden_size: int, head_dim: int) -> tuple[Matrix, ...]:
        values = self._num_windows * head_dim
        return (
            Matrix("attention", 2 * values * hidden_size, "wide"),  # keys and their gates
            Matrix("attention", self.ratio * values, "fp32"),  # a bias for each place in the window
            Matrix("norms", head_dim, "wide"),
        )

    def _indexer(self, indexer: Indexer, hidden_size: int) -> tuple[Matrix, ...]:
        queries = self.q_lora_rank * indexer.num_heads * indexer.head_dim
        return (
            Matrix("attention", queries, "attention", "self_attn.indexer.wq_b"),
            Matrix("attention", hidden_size * indexer.num_heads, "wide"),
            *self._compressor(hidden_size, indexer.head_dim),
        )

    def _state_bytes(self) -> int:
        """Return the bytes kept for tokens that no entry includes yet: a key and a gate for each, in FP32."""
        values = self.head_dim + (self.indexer.head_dim if self.indexer else 0)
        return self._num_windows * self.ratio * 2 * self._num_windows * values * STATE_VALUE_BYTES
