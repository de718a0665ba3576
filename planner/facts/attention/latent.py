"""Latent attention (MLA), with or without an indexer: DeepSeek-V2 to V3.2, Kimi-K2, GLM-5."""

from dataclasses import dataclass, replace

from planner.facts.attention.kind import LayerKv, Matrix

KV_SCALE_VALUES = 128  # values that share a scale in sparse attention's FP8 KV


@dataclass(frozen=True)
class Indexer:
    """The small attention that picks the tokens that the main attention reads (DeepSeek sparse attention).

    Source: github.com/deepseek-ai/DeepSeek-V3.2-Exp 3b99a535 inference/model.py, class Indexer.
    """

    num_heads: int
    head_dim: int

    @property
    def kv_bytes_per_token(self) -> int:
        """Return the bytes that the indexer keeps per token and layer: an FP8 key and an FP32 scale."""
        return self.head_dim + 4

    def matrices(self, query_rank: int, hidden_size: int) -> tuple[Matrix, ...]:
        """Return the matrices of queries, keys, heads' weights (never quantised) and the norm of keys with its bias."""
        queries = query_rank * self.num_heads * self.head_dim
        keys = hidden_size * self.head_dim
        return (
            Matrix("attention", queries, "attention", "self_attn.indexer.wq_b"),
            Matrix("attention", keys, "attention", "self_attn.indexer.wk"),
            Matrix("attention", hidden_size * self.num_heads, "wide"),
            Matrix("norms", 2 * self.head_dim, "wide"),
        )


@dataclass(frozen=True)
class LatentAttention:
    """Attention whose KV is one latent vector per token, for keys and values of all heads, and one rotated key."""

    num_heads: int
    q_lora_rank: int | None  # None: queries are computed in one step
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    indexer: Indexer | None = None  # this layer's own indexer
    num_picked: int | None = None  # tokens that an indexer, this layer's or an earlier one's, picks for each query

    @property
    def num_kv_heads(self) -> int:
        """Return `num_heads`, because KV is not split by heads."""
        return self.num_heads

    @property
    def is_sparse(self) -> bool:
        """Return whether attention reads only tokens that an indexer picked."""
        return self.num_picked is not None

    @property
    def only_kv(self) -> None:
        """Return None: kernels can store KV in any precision, so no single precision is required."""

    @property
    def expansion(self) -> int:
        """Return the number of weights that expand latents to keys and values (kv_b), 16.8 M for DeepSeek-V3."""
        return self.kv_lora_rank * self.num_heads * (self.qk_nope_head_dim + self.v_head_dim)

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        """Return the matrices, 187.1 M weights for DeepSeek-V3. Core attention absorbs kv_b, which is unquantised."""
        query_dim = self.num_heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        rank = self.q_lora_rank
        latent = hidden_size * (self.kv_lora_rank + self.qk_rope_head_dim)
        return (
            *(
                (Matrix("attention", hidden_size * query_dim, "attention", "self_attn.q_proj"),)
                if rank is None
                else (
                    Matrix("attention", hidden_size * rank, "attention", "self_attn.q_a_proj"),
                    Matrix("attention", rank * query_dim, "attention", "self_attn.q_b_proj"),
                )
            ),
            Matrix("attention", latent, "attention", "self_attn.kv_a_proj_with_mqa"),
            Matrix("attention", self.num_heads * self.v_head_dim * hidden_size, "output", "self_attn.o_proj"),
            Matrix("attention", self.expansion, "wide"),
            Matrix("norms", (rank or 0) + self.kv_lora_rank, "wide"),
            *(self.indexer.matrices(rank or hidden_size, hidden_size) if self.indexer else ()),
        )

    def kv(self, bytes_per_value: int) -> LayerKv:
        """Return a request's KV in one layer: 576 values a token, 1,152 B in BF16 or 576 B in FP8.

        The 576 B have one scale for the whole cache. Sparse attention's FP8 has an FP32 scale for each 128 values of
        the latent vector, and the rotated key in BF16: 512 + 16 + 128 = 656 B. Source: github.com/deepseek-ai/FlashMLA
        066b5ba6 README.md. A layer with an indexer of its own keeps the indexer's key as well.
        """
        token = (self.kv_lora_rank + self.qk_rope_head_dim) * bytes_per_value
        if self.is_sparse and bytes_per_value == 1:
            token = self.kv_lora_rank + 4 * -(-self.kv_lora_rank // KV_SCALE_VALUES) + 2 * self.qk_rope_head_dim
        return LayerKv(token + (self.indexer.kv_bytes_per_token if self.indexer else 0))

    def num_activations(self, tokens: int, context: int, *, absorbs: bool) -> int:
        """Return the number of values in queries and results, and in latents and their expansion if they are expanded.

        Sparse attention reads few tokens, so its prompts are computed with absorbed latents, too.
        """
        query = self.qk_nope_head_dim + self.qk_rope_head_dim
        if absorbs or self.is_sparse:  # queries go into the latent space, and results come out of it
            return tokens * self.num_heads * (query + 2 * self.kv_lora_rank + self.v_head_dim)
        # Latents are expanded, and their keys put together with the rotary key that all heads share.
        latent = self.kv_lora_rank + self.qk_rope_head_dim
        expanded = self.qk_nope_head_dim + self.v_head_dim + query
        return context * (latent + self.num_heads * expanded) + tokens * self.num_heads * (query + self.v_head_dim)

    def one_of(self, num_gpus: int) -> "LatentAttention":
        """Return the attention with one GPU's part of the heads.

        All heads read one latent vector, so each GPU holds it. Source: github.com/deepseek-ai/DeepSeek-V3 9b4e9788
        inference/model.py, class MLA: wq_b, wkv_b and wo are split by heads, wq_a and wkv_a are not, and each rank
        caches the latent vector.
        """
        return replace(self, num_heads=self.num_heads // num_gpus)
