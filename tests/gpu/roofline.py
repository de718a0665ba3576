"""The least time that each stage of a step takes on one GPU: what it must read, write and multiply, at measured rates.

    least = max(bytes / copy rate, FLOP in FP8 / rate of FP8 + FLOP in BF16 / rate of BF16)

The rates are the best that this GPU reaches in the same run: a copy of 1 GiB, counting both ways, and matmuls of 8,192
in each direction. A stage's bytes are its weights once, the rows that it gets, and the rows that it gives; what it
keeps between its own kernels counts nothing. Micro-batches that read weights twice are no excuse, nor are copies of a
prompt's latents. A causal mask leaves half of a square. In the last layer only tokens that are answered go on.

    attention 1      projections to queries and latents; in decode also the queries' way into the space of the latents
    attention core   scores and values, in BF16: FP8 has no part in it
    attention 2      a prompt's latents to keys and values, or decode's contexts to values; the output projection
    permutation      prefill's rows into the order of slots, and a token's rows added up; its exchange is not in it
    KV out, KV in    latents to the host's memory, and from it
"""

from dataclasses import asdict, dataclass

import torch

from runtime.kernels.fp8 import E4M3, Quantised, num_blocks
from runtime.kernels.gpu.quantise import empty_scales
from runtime.protocol.counting import attention_pairs
from tests.gpu.played_peers import ONE, arriving

__all__ = ["Rates", "Work", "measured_rates", "work_of_step"]

BF16, FP32 = 2, 4  # bytes
COPIED, SIZE, TRIES = 2**30, 8192, 5


@dataclass(frozen=True)
class Rates:
    """Bytes and FLOP a second."""

    copy_bytes_per_s: float
    bf16_flop_per_s: float
    fp8_flop_per_s: float
    fp8_by: str
    to_host_bytes_per_s: float
    from_host_bytes_per_s: float


@dataclass(frozen=True)
class Work:
    """Bytes of the device's memory, FLOP of each kind, and bytes that cross to the host or from it."""

    num_bytes: float = 0.0
    fp8_flop: float = 0.0
    bf16_flop: float = 0.0
    to_host_bytes: float = 0.0
    from_host_bytes: float = 0.0

    def __add__(self, other):
        return Work(*(mine + its for mine, its in zip(asdict(self).values(), asdict(other).values(), strict=True)))

    def times(self, number):
        """Return the work of so many."""
        return Work(*(number * each for each in asdict(self).values()))

    def bounds(self, rates):
        """Return the seconds that each kind takes: moving, multiplying, crossing."""
        return {
            "memory": self.num_bytes / rates.copy_bytes_per_s,
            "matmul": self.fp8_flop / rates.fp8_flop_per_s + self.bf16_flop / rates.bf16_flop_per_s,
            "link": self.to_host_bytes / rates.to_host_bytes_per_s + self.from_host_bytes / rates.from_host_bytes_per_s,
        }


def work_of_step(config, num_ranks, slots, prefilling, decoding):
    """Return the work of each stage, of all of the model's layers."""
    layers, moe_layers = config.num_hidden_layers, config.num_moe_layers
    tokens = sum(len(chunk.token_ids) for chunk in (*prefilling, *decoding))
    answered = len(prefilling) + len(decoding)
    rows, moe_rows = (tokens * (number - 1) + answered for number in (layers, moe_layers))
    attention = _attention(config, rows, layers, tokens, prefilling, decoding)
    expert, dense = (3 * config.hidden_size * size for size in (config.moe_intermediate_size, config.intermediate_size))
    shared = expert * config.n_shared_experts
    in_and_out = 2 * BF16 * config.hidden_size
    gate = config.n_routed_experts * config.hidden_size
    pairs = moe_rows * config.num_experts_per_tok
    head = config.vocab_size * config.hidden_size
    return attention | {
        "gate": Work(gate * BF16 * moe_layers + moe_rows * config.hidden_size * BF16, bf16_flop=2 * moe_rows * gate),
        "shared expert": Work(shared * moe_layers + moe_rows * in_and_out, 2 * moe_rows * shared),
        "experts": Work(slots * expert * moe_layers + pairs * config.hidden_size * (1 + BF16), 2 * pairs * expert),
        "permutation": _permutation(config, num_ranks, slots, moe_rows) if prefilling else Work(),
        "sum": Work(3 * moe_rows * config.hidden_size * BF16),
        "mlp": Work(dense + tokens * in_and_out, 2 * tokens * dense).times(layers - moe_layers),
        "head": Work(head * BF16 + answered * config.vocab_size * FP32, bf16_flop=2 * answered * head),
        "sampling": Work(answered * config.vocab_size * FP32),
    }


def _attention(config, rows, layers, tokens, prefilling, decoding):
    """Return the work of attention's stages; `rows` are those that have queries, of all layers."""
    hidden, heads, lora = config.hidden_size, config.num_attention_heads, config.kv_lora_rank
    nope, rope, value = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
    query = hidden * config.q_lora_rank + config.q_lora_rank * heads * (nope + rope)
    latent, output = hidden * config.latent_dim, heads * value * hidden
    up = heads * (nope + value) * lora
    share = len(decoding) / max(tokens, 1)  # of the rows
    absorbed, expanded = rows * share, rows * (1 - share)
    seen = sum(chunk.end for chunk in decoding) * layers
    expanded_from = sum(chunk.end for chunk in prefilling) * layers
    pairs = sum(attention_pairs(chunk.start, chunk.end) for chunk in prefilling) * (layers - 1)
    pairs += sum(chunk.end for chunk in prefilling)  # the last layer answers each chunk's last token
    written = tokens * layers * config.latent_dim * BF16
    return {
        "attention 1": Work(
            (query + latent) * layers
            + (absorbed > 0) * heads * nope * lora * BF16 * layers
            + tokens * layers * hidden * BF16
            + written
            + BF16 * heads * (absorbed * (lora + rope) + expanded * (nope + rope)),
            fp8_flop=2 * (rows * query + tokens * layers * latent),
            bf16_flop=2 * absorbed * heads * nope * lora,
        ),
        "attention core": Work(
            BF16 * heads * absorbed * (2 * lora + rope)
            + BF16 * seen * config.latent_dim
            + BF16 * heads * (expanded * (nope + rope + value) + expanded_from * (nope + value)),
            bf16_flop=2 * heads * (seen * (2 * lora + rope) + pairs * (nope + rope + value)),
        ),
        "attention 2": Work(
            output * layers
            + (absorbed > 0) * heads * value * lora * BF16 * layers
            + (expanded > 0) * up * BF16 * layers
            + BF16 * (absorbed * heads * lora + expanded * heads * value + rows * hidden)
            + BF16 * expanded_from * (config.latent_dim + heads * (nope + value)),
            fp8_flop=2 * rows * output,
            bf16_flop=2 * (absorbed * heads * value * lora + expanded_from * up),
        ),
        "KV out": Work(to_host_bytes=written * (1 - share)),
    }


def _permutation(config, num_ranks, slots, moe_rows):
    """Return the work of rows made FP8, put in the order of slots, and added up by token."""
    came, _, pairs_M = arriving(moe_rows, config.num_experts_per_tok, num_ranks, slots)
    pairs = sum(pairs_M)
    return Work(config.hidden_size * (moe_rows * (BF16 + 1) + (came + pairs) + BF16 * (pairs + came)))


def measured_rates(ops, clock, size=SIZE, copied=COPIED):
    """Measure what this device reaches; before the model takes its memory."""
    device = ops.device
    source = torch.empty(copied, dtype=torch.uint8, device=device)
    target, host = torch.empty_like(source), ops.link.empty((copied,), torch.uint8)
    flop = 2 * size**3

    def best(function):
        return min(clock.seconds(function) for _ in range(TRIES))

    a, b = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    fp8_s = {name: best(multiply) for name, multiply in _fp8_matmuls(ops, size)}
    fp8_by = min(fp8_s, key=fp8_s.get)
    return Rates(
        copy_bytes_per_s=2 * copied / best(lambda: target.copy_(source)),
        bf16_flop_per_s=flop / best(lambda: a @ b),
        fp8_flop_per_s=flop / fp8_s[fp8_by],
        fp8_by=fp8_by,
        to_host_bytes_per_s=copied / best(lambda: host.copy_(source, non_blocking=True)),
        from_host_bytes_per_s=copied / best(lambda: source.copy_(host, non_blocking=True)),
    )


def _fp8_matmuls(ops, size):
    """Return matmuls in FP8 by name: as the product takes them, and torch's with one scale for a matrix."""
    a, b = (torch.empty(size, size, dtype=torch.uint8, device=ops.device).random_(0, ONE).view(E4M3) for _ in range(2))
    blocks = num_blocks(size)
    row_scales = empty_scales((size,), blocks, True, ops.device).fill_(1)
    x, w = Quantised(a, row_scales), Quantised(b, torch.ones(blocks, blocks, device=ops.device))
    one = torch.ones((), device=ops.device)
    yield "the product's fp8_matmul", lambda: ops.fp8_matmul(x, w, torch.bfloat16)
    if ops.device.type == "cuda":
        yield "torch._scaled_mm", lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16)
