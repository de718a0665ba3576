"""The demo model's network, written for training on a small CPU; DeepSeek-V3's arithmetic, nothing more.

Why it exists: the published classes run experts one by one through Python and keep everything in one precision. Here
the weights are float32, the matrix products bfloat16, and an expert's tokens are one contiguous block.
It does not serve (no cache, no sampling): transformers and Tidemill's runtime do that from the exported folder.

Shapes: B sequences of T tokens, N = B * T, D hidden, H heads, E routed experts, K experts a token.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.functional import embedding, pad, scaled_dot_product_attention, silu
from torch.nn.functional import linear as full_linear

from runtime.demo.training.rounding import EXACT, FP8, Rounding

__all__ = ["NO_TARGET", "MoE", "Network"]

NO_TARGET = -1  # stands where a target would: nothing is learned from this position
TILE_ROWS = 64
LOAD_MEMORY = 0.05  # weight of the newest step in the running load

Config = dict[str, Any]


class Network(nn.Module):
    """The whole network, from tokens to loss.

    `config` is the published `config.json` as a dict. With `fp8`, what the runtime has in FP8 is rounded to e4m3.
    """

    def __init__(self, config: Config, fp8: bool = False) -> None:
        super().__init__()
        self.config, self.rounding = config, FP8 if fp8 else EXACT
        self.embed = nn.Parameter(torch.randn(config["vocab_size"], config["hidden_size"]) * 0.5)
        self.layers = nn.ModuleList(Layer(config, i, self.rounding) for i in range(config["num_hidden_layers"]))
        self.norm = nn.Parameter(torch.ones(config["hidden_size"]))
        self.head = nn.Parameter(torch.zeros(config["vocab_size"], config["hidden_size"]))
        self.register_buffer("rotation", rotations(config), persistent=False)

    def forward(self, tokens_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
        """Return the mean cross entropy in nats, of the targets that are not `NO_TARGET`."""
        x_BTD = embedding(tokens_BT, self.embed)
        rotation = self.rotation[: tokens_BT.shape[1]]
        for layer in self.layers:
            x_BTD = layer(x_BTD, rotation)
        x_ND = rms_norm(x_BTD, self.norm).flatten(0, 1)
        return HeadLoss.apply(x_ND, self.head, targets_BT.flatten())


class Layer(nn.Module):
    """One transformer layer: dense below `first_k_dense_replace`, a mixture of experts from there on."""

    def __init__(self, config: Config, index: int, rounding: Rounding) -> None:
        super().__init__()
        self.input_norm = nn.Parameter(torch.ones(config["hidden_size"]))
        self.post_norm = nn.Parameter(torch.ones(config["hidden_size"]))
        self.attention = LatentAttention(config, rounding)
        dense = index < config["first_k_dense_replace"]
        self.mlp = (
            GatedMlp(config["hidden_size"], config["intermediate_size"], rounding) if dense else MoE(config, rounding)
        )

    def forward(self, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(rms_norm(x, self.input_norm), rotation)
        return x + self.mlp(rms_norm(x, self.post_norm))


class LatentAttention(nn.Module):
    """MLA in its expanded form: keys and values are unfolded from the latent, as prefill does."""

    def __init__(self, c: Config, rounding: Rounding) -> None:
        super().__init__()
        self.rounding = rounding
        self.heads, self.latent = c["num_attention_heads"], c["kv_lora_rank"]
        self.nope, self.rope, self.value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        self.q_a = random_matrix(c["q_lora_rank"], c["hidden_size"])
        self.q_norm = nn.Parameter(torch.ones(c["q_lora_rank"]))
        self.q_b = random_matrix(self.heads * (self.nope + self.rope), c["q_lora_rank"])
        self.kv_a = random_matrix(self.latent + self.rope, c["hidden_size"])
        self.kv_norm = nn.Parameter(torch.ones(self.latent))
        self.kv_b = random_matrix(self.heads * (self.nope + self.value), self.latent)
        self.out = nn.Parameter(torch.zeros(c["hidden_size"], self.heads * self.value))

    def forward(self, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        B, T, _ = x.shape
        rows, matrix = self.rounding.rows, self.rounding.matrix
        x = rows(x)
        q_latent = rms_norm(linear(x, matrix(self.q_a)), self.q_norm)
        q = linear(rows(q_latent), matrix(self.q_b)).view(B, T, self.heads, -1)
        q_nope, q_rope = q.split([self.nope, self.rope], dim=-1)
        latent, k_rope = linear(x, matrix(self.kv_a)).split([self.latent, self.rope], dim=-1)
        kv = linear(rms_norm(latent, self.kv_norm), self.kv_b).view(B, T, self.heads, -1)
        k_nope, v = kv.split([self.nope, self.value], dim=-1)
        k_rope = rotate(k_rope.unsqueeze(2), rotation).expand(-1, -1, self.heads, -1)
        q = torch.cat([q_nope, rotate(q_rope, rotation)], dim=-1).transpose(1, 2)
        k = torch.cat([k_nope, k_rope], dim=-1).transpose(1, 2)
        # One head size for q, k and v, or the fused kernel is not taken.
        v = pad(v, (0, self.rope + self.nope - self.value)).transpose(1, 2)
        y = scaled_dot_product_attention(q, k, v, is_causal=True)[..., : self.value]
        return linear(rows(y.transpose(1, 2).reshape(B, T, -1)), matrix(self.out))


class GatedMlp(nn.Module):
    """Computes SwiGLU: down(silu(gate x) * up x)."""

    def __init__(self, hidden: int, inner: int, rounding: Rounding) -> None:
        super().__init__()
        self.rounding = rounding
        self.gate, self.up = random_matrix(inner, hidden), random_matrix(inner, hidden)
        self.down = nn.Parameter(torch.zeros(hidden, inner))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, matrix = self.rounding.rows, self.rounding.matrix
        x = rows(x)
        inner = silu(linear(x, matrix(self.gate))) * linear(x, matrix(self.up))
        return linear(rows(inner), matrix(self.down))


class MoE(nn.Module):
    """Sigmoid gate, group-limited top-k on biased scores, weights from unbiased scores; a shared expert beside."""

    def __init__(self, c: Config, rounding: Rounding) -> None:
        super().__init__()
        self.config, self.rounding = c, rounding
        E, D, inner = c["n_routed_experts"], c["hidden_size"], c["moe_intermediate_size"]
        self.router = nn.Parameter(torch.randn(E, D) * D**-0.5)
        self.register_buffer("bias", torch.zeros(E))
        self.register_buffer("load", torch.ones(E))  # running load of each expert over the layer's mean load
        self.gate_up = nn.Parameter(torch.randn(E, 2 * inner, D) * D**-0.5)
        self.down = nn.Parameter(torch.zeros(E, D, inner))
        self.shared = GatedMlp(D, inner * c["n_shared_experts"], rounding)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Return the routed plus the shared experts' output, and store this call's tokens per expert in `counts`."""
        x_ND = x_BTD.flatten(0, 1)
        weights_NK, experts_NK = self.route(x_ND)
        counts = torch.bincount(experts_NK.flatten(), minlength=len(self.bias))
        self.counts = counts
        if self.training:
            self.load.lerp_(counts / counts.float().mean(), LOAD_MEMORY)
        slot, block_sizes = padded_slots(experts_NK.flatten(), counts)
        K, num_slots = experts_NK.shape[1], sum(block_sizes)
        token = torch.zeros(num_slots, dtype=torch.long).index_copy_(0, slot, torch.arange(len(slot)) // K)
        weight = torch.zeros(num_slots).index_copy(0, slot, weights_NK.flatten())
        rows, matrix = self.rounding.rows, self.rounding.matrix
        gate_up = matrix(self.gate_up.unflatten(1, (2, -1))).flatten(1, 2)  # two matrices an expert, stored as one
        gate, up = GroupedLinear.apply(rows(x_ND).index_select(0, token), gate_up, block_sizes).chunk(2, dim=-1)
        # Rounding does not see the gate's weight: each row has scales of its own.
        inner = rows(silu(gate) * up * weight.unsqueeze(1).to(gate.dtype))
        y = GroupedLinear.apply(inner, matrix(self.down), block_sizes)
        routed_ND = y.index_select(0, slot).view(-1, K, y.shape[-1]).sum(1)
        return routed_ND.view(x_BTD.shape) + self.shared(x_BTD)

    def route(self, x_ND: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (weights, experts), both [N, K]; gradients flow through the weights only."""
        c = self.config
        scores = full_linear(x_ND.float(), self.router).sigmoid()
        with torch.no_grad():
            groups = (scores + self.bias).unflatten(-1, (c["n_group"], -1))
            best = groups.topk(2, dim=-1)[0].sum(-1).topk(c["topk_group"], dim=-1)[1]
            allowed = torch.zeros(groups.shape[:2], dtype=torch.bool).scatter_(1, best, True)
            chosen = (
                groups.masked_fill(~allowed.unsqueeze(-1), -torch.inf)
                .flatten(1)
                .topk(c["num_experts_per_tok"], dim=-1)[1]
            )
        weights = scores.gather(1, chosen)
        return weights / weights.sum(-1, keepdim=True) * c["routed_scaling_factor"], chosen

    @torch.no_grad()
    def rebalance(self, step: float, low: float, high: float) -> None:
        """Raise the bias of each expert with less than `low` times its layer's mean load; lower it over `high` times.

        Biases change by `step`. Experts are thus balanced without an auxiliary loss, and only those far from the mean
        change.
        """
        self.bias += step * ((self.load < low).float() - (self.load > high).float())


def padded_slots(expert: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """Return (slot of each assignment, slots per expert).

    The experts' slots lie in a row, and each expert's number is rounded up to whole tiles. That keeps the number of
    different matrix shapes small: the CPU library compiles a kernel for each shape.
    """
    sizes = (counts + TILE_ROWS - 1) // TILE_ROWS * TILE_ROWS
    order = expert.argsort(stable=True)
    padding_before = (sizes - counts).cumsum(0) - (sizes - counts)
    slot_in_order = torch.arange(len(order)) + padding_before[expert[order]]
    return torch.empty_like(order).scatter_(0, order, slot_in_order), sizes.tolist()


class GroupedLinear(torch.autograd.Function):
    """Computes y[block e] = x[block e] @ weight[e].T for consecutive blocks of rows; block e has `sizes[e]` rows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        """Multiply x [slots, in] by weight [E, out, in] -> [slots, out]."""
        w = weight.to(x.dtype)
        ctx.save_for_backward(x, w)
        ctx.sizes = sizes
        y = x.new_empty(len(x), w.shape[1])
        for xe, ye, we in zip(x.split(sizes), y.split(sizes), w, strict=True):
            torch.mm(xe, we.T, out=ye)
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Return the gradients of x and weight."""
        x, w = ctx.saved_tensors
        dx, dw = torch.empty_like(x), torch.empty_like(w)
        dy = dy.contiguous()
        for dye, xe, dxe, we, dwe in zip(
            dy.split(ctx.sizes), x.split(ctx.sizes), dx.split(ctx.sizes), w, dw, strict=True
        ):
            torch.mm(dye, we, out=dxe)
            torch.mm(dye.T, xe, out=dwe)
        return dx, dw.float(), None


class HeadLoss(torch.autograd.Function):
    """Output head and cross entropy, chunk by chunk, so that a step's logits never all exist at once."""

    CHUNK = 256

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, head: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of the targets, in nats.

        Gradients are computed on the way, while each chunk's logits exist.
        """
        w = head.to(x.dtype)
        dx, dw, loss = torch.empty_like(x), torch.zeros_like(head), 0.0
        for xc, tc, dxc in zip(
            x.split(HeadLoss.CHUNK), targets.split(HeadLoss.CHUNK), dx.split(HeadLoss.CHUNK), strict=True
        ):
            logp = (xc @ w.T).float().log_softmax(-1)
            is_target = (tc != NO_TARGET).unsqueeze(1)
            tc = tc.clamp(min=0)
            loss -= (logp.gather(1, tc.unsqueeze(1)) * is_target).sum()
            dlogits = logp.exp_()
            dlogits[torch.arange(len(tc)), tc] -= 1
            dlogits = (dlogits * is_target).to(x.dtype)
            torch.mm(dlogits, w, out=dxc)
            dw += dlogits.T @ xc
        ctx.save_for_backward(dx, dw)
        ctx.num_targets = (targets != NO_TARGET).sum()
        return loss / ctx.num_targets

    @staticmethod
    def backward(ctx: Any, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Return the gradients that the forward pass has computed, times `scale`."""
        dx, dw = ctx.saved_tensors
        return dx * (scale / ctx.num_targets), dw * (scale / ctx.num_targets), None


def random_matrix(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns) * columns**-0.5)


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return full_linear(x, weight.to(x.dtype))


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return x / rms(x) * weight, with the mean in float32, as bfloat16, because a matrix product always follows."""
    x = x.float()
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight).bfloat16()


def rotations(config: Config) -> torch.Tensor:
    """Return [max positions, rope dim / 2, 2]: cosine and sine of each position's angle for each interleaved pair."""
    dim = config["qk_rope_head_dim"]
    frequency = config["rope_theta"] ** -(torch.arange(0, dim, 2) / dim)
    angle = torch.arange(config["max_position_embeddings"])[:, None] * frequency
    return torch.stack([angle.cos(), angle.sin()], dim=-1)


def rotate(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Return x [B, T, heads, rope dim], turned pair by pair: (x0, x1), (x2, x3), ..."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = rotation[:, None].unbind(-1)
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2).to(x.dtype)
