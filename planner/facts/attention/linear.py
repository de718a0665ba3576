"""Linear attention with a gated delta rule (Qwen3-Next, Qwen3.5): a state of constant size in place of KV.

Source of the matrices: transformers 5.23.0 models/qwen3_next/modeling_qwen3_next.py. State: sglang 0.5.23
configs/mamba_utils.py: the state is FP32 by default, and the convolution's BF16.
"""

from dataclasses import dataclass, replace

from planner.facts.attention.kind import LayerKv, Matrix

CONV_VALUE_BYTES = 2


@dataclass(frozen=True)
class LinearAttention:
    """Attention that keeps `[key_head_dim, value_head_dim]` values per value head, and a convolution's last inputs."""

    num_key_heads: int
    key_head_dim: int
    num_value_heads: int
    value_head_dim: int
    conv_size: int  # tokens that the convolution reads
    state_value_bytes: int = 4

    @property
    def num_heads(self) -> int:
        """Return the number of key heads. GPUs that split key heads split the value heads in the same way."""
        return self.num_key_heads

    @property
    def num_kv_heads(self) -> int:
        """Return the number of key heads. GPUs that split key heads split the state in the same way."""
        return self.num_key_heads

    @property
    def only_kv(self) -> None:
        """Return None, because the state does not depend on the precision of KV."""

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        """Return the matrices of queries, keys, values, gates, value heads' decay and step, convolution and output."""
        values = self.num_value_heads * self.value_head_dim
        return (
            Matrix("attention", self.conv_channels * hidden_size, "attention", "linear_attn.in_proj_qkv"),
            Matrix("attention", values * hidden_size, "attention", "linear_attn.in_proj_z"),
            Matrix("attention", self.num_value_heads * hidden_size, "attention", "linear_attn.in_proj_b"),
            Matrix("attention", self.num_value_heads * hidden_size, "attention", "linear_attn.in_proj_a"),
            Matrix("attention", values * hidden_size, "output", "linear_attn.out_proj"),
            Matrix("attention", self.conv_channels * self.conv_size, "wide"),
            Matrix("attention", 2 * self.num_value_heads, "fp32"),  # decay and step
            Matrix("norms", self.value_head_dim, "wide"),
        )

    def kv(self, bytes_per_value: int) -> LayerKv:
        """Return the state of one request, which does not depend on `bytes_per_value`."""
        matrices = self.num_value_heads * self.key_head_dim * self.value_head_dim * self.state_value_bytes
        return LayerKv(state_bytes=matrices + self.conv_channels * (self.conv_size - 1) * CONV_VALUE_BYTES)

    def num_activations(self, tokens: int, context: int, *, absorbs: bool) -> int:
        """Return the number of values in projections, the convolution's inputs and outputs, and results."""
        return tokens * (2 * self.conv_channels + 2 * self.num_value_heads * self.value_head_dim)

    def one_of(self, num_gpus: int) -> "LinearAttention":
        """Return the attention with one GPU's part of the heads, and so of the state, if `num_gpus` share them.

        Source: sglang 0.5.23 configs/mamba_utils.py, Mamba2StateShape, which divides by the group's size.
        """
        heads = (max(1, each // num_gpus) for each in (self.num_key_heads, self.num_value_heads))
        key_heads, value_heads = heads
        return replace(self, num_key_heads=key_heads, num_value_heads=value_heads)

    @property
    def conv_channels(self) -> int:
        """Return the convolution's number of channels: queries, keys and values."""
        return 2 * self.num_key_heads * self.key_head_dim + self.num_value_heads * self.value_head_dim
