"""The mixture of experts of one layer: gate, choice of replica, dispatch, local experts, combine, shared expert.

    logical expert    what the gate chooses among, 0..E-1
    physical slot     where a copy of an expert's weights lies; redundant experts have several
    replica table     logical expert -> its slots; the split rule says which of them a token uses: `equal`, all in turn,
                      or `local_first`, those on its own rank if there are any, else those on its node, else all

Worked example: 32 logical experts + 4 redundant = 36 slots; EP4 holds 9 slots a rank. Expert 7 lies in slots 3 and 20,
on ranks 0 and 2; under the split "equal" its tokens alternate between the two.

Sources: DeepSeek-V3 (arXiv 2412.19437) section 2.1.2; `inference/model.py`, classes Gate and MoE; DeepSeek-V2
(arXiv 2405.04434) section 2.2.2, device-limited routing.
"""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runtime.expert_parallel.dispatcher import Combined, TokenDispatcher
from runtime.expert_parallel.expert_load import ExpertLoad
from runtime.expert_parallel.overlap import Flow, Pause
from runtime.kernels.batch_invariant import Batching
from runtime.kernels.cpu import kernels as cpu_kernels
from runtime.kernels.precision import unquantized_dtype
from runtime.model.config import ModelConfig
from runtime.model.fp8 import E4M3, Fp8Experts
from runtime.model.layers import GatedMlp, silu_product
from runtime.trace import span

__all__ = ["Gate", "LocalExperts", "MixtureOfExperts", "ReplicaTable", "choose_experts"]

ROWS_STEP = 16  # rows of an expert are filled up to a multiple of it: 8 too many on average


class Gate(nn.Module):
    """Which experts a token goes to, and their weights; only the experts of its best groups are eligible.

    V3 scores by sigmoid, and a bias (balanced in training) takes part in choosing, never in weighing: `noaux_tc`. V2
    scores by softmax: `group_limited_greedy`, or `greedy`, which has one group.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.n_routed_experts, config.hidden_size, dtype=dtype))
        if config.topk_method == "noaux_tc":
            self.e_score_correction_bias = nn.Parameter(torch.empty(config.n_routed_experts, dtype=torch.float32))

    def forward(self, x_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Each token's logical experts [T, K], and their weights [T, K] in FP32."""
        logits_TE = self._logits(x_TD)
        scores_TE = logits_TE.softmax(-1) if self.config.scoring_func == "softmax" else logits_TE.sigmoid()
        is_biased = self.config.topk_method == "noaux_tc"
        eligible = scores_TE + self.e_score_correction_bias if is_biased else scores_TE
        choose = cpu_kernels.choose_experts if cpu_kernels.suits(x_TD) else choose_experts
        experts_TK = choose(
            eligible,
            self.config.n_group,
            2 if is_biased else 1,
            self.config.topk_group,
            self.config.num_experts_per_tok,
        )
        weights_TK = scores_TE.gather(1, experts_TK)
        if self.config.norm_topk_prob:
            weights_TK = weights_TK / (weights_TK.sum(-1, keepdim=True) + 1e-20)
        return experts_TK, weights_TK * self.config.routed_scaling_factor

    def _logits(self, x_TD: Tensor) -> Tensor:
        """[T, E] in FP32."""
        if cpu_kernels.matmul_wins(x_TD):
            return cpu_kernels.linear(x_TD, self.weight, torch.float32)
        if cpu_kernels.wide_linear_wins(x_TD):
            return cpu_kernels.wide_linear(x_TD, self.weight)
        return F.linear(x_TD.float(), self.weight.float())


def choose_experts(scores_TE: Tensor, num_groups: int, num_best: int, topk_group: int, top_k: int) -> Tensor:
    """Each token's best `top_k` experts in its best `topk_group` groups, [T, K].

    A group's worth is its best expert's score or, under `noaux_tc`, the sum of its two best: `num_best`.
    """
    grouped_TGE = scores_TE.unflatten(1, (num_groups, -1))
    worth_TG = grouped_TGE.topk(num_best, -1).values.sum(-1)
    eligible_TG = torch.zeros_like(worth_TG, dtype=torch.bool)
    eligible_TG.scatter_(1, worth_TG.topk(topk_group, -1).indices, True)
    eligible_TE = grouped_TGE.masked_fill(~eligible_TG[..., None], -torch.inf).flatten(1)
    return eligible_TE.topk(top_k, -1).indices


class ReplicaTable:
    """Which slots of one layer the tokens of a rank may use for each logical expert, and in what turn."""

    def __init__(
        self,
        physical_to_logical: list[int],
        num_logical_experts: int,
        rank: int,
        nodes: Sequence[str] | None = None,
    ) -> None:
        """`rank`: whose tokens. `nodes`: of each rank of the unit, for the split `local_first`; None for `equal`."""
        slots: list[list[int]] = [[] for _ in range(num_logical_experts)]
        for slot, expert in enumerate(physical_to_logical):
            slots[expert].append(slot)
        if nodes is not None:
            slots = [_nearest(replicas, rank, nodes, len(physical_to_logical) // len(nodes)) for replicas in slots]
        most = max(map(len, slots))
        self._num_replicas_E = torch.tensor([len(replicas) for replicas in slots])
        self._slots_ER = torch.tensor([replicas + replicas[:1] * (most - len(replicas)) for replicas in slots])
        self._turn = rank

    def choose(self, experts_TK: Tensor) -> Tensor:
        """The slot of each choice, [T, K]: tokens take an expert's replicas in turn, each rank starting at another."""
        if self._slots_ER.shape[1] == 1:
            return self._slots_ER.take(experts_TK)
        turns_T1 = torch.arange(len(experts_TK))[:, None] + self._turn
        self._turn += len(experts_TK)
        return self._slots_ER[experts_TK, turns_T1 % self._num_replicas_E[experts_TK]]


def _nearest(replicas: list[int], rank: int, nodes: Sequence[str], slots_per_rank: int) -> list[int]:
    """Those on the rank if there are any, else those on its node, else all."""
    own = [slot for slot in replicas if slot // slots_per_rank == rank]
    near = [slot for slot in replicas if nodes[slot // slots_per_rank] == nodes[rank]]
    return own or near or replicas


class LocalExperts(nn.Module):
    """The experts in this rank's slots, as stacked matrices: gate and up [slots, 2 I, D], down [slots, D, I]."""

    def __init__(self, num_slots: int, config: ModelConfig, dtype: torch.dtype, batching: Batching) -> None:
        super().__init__()
        self.batching = batching
        hidden, intermediate = config.hidden_size, config.moe_intermediate_size
        self.gate_up = nn.Parameter(torch.empty(num_slots, 2 * intermediate, hidden, dtype=dtype))
        self.down = nn.Parameter(torch.empty(num_slots, hidden, intermediate, dtype=dtype))

    def forward(self, rows_RD: Tensor, counts: list[int]) -> Tensor:
        """Rows lie slot after slot, `counts` of each; the results take their places."""
        if self.batching.is_batched and cpu_kernels.matmul_wins(rows_RD, sum(map(bool, counts))):
            cpu_kernels.experts_mlp(rows_RD, counts, self.gate_up, self.down)
            return rows_RD
        ends = accumulate(counts)
        for slot, (count, end) in enumerate(zip(counts, ends, strict=True)):
            if count and self.batching.is_batched:
                self._with_next_rows(slot, rows_RD, end - count, end)
            elif count:
                rows = rows_RD[end - count : end]
                rows.copy_(self.batching.rows(partial(self.expert, slot), rows))
        return rows_RD

    def _with_next_rows(self, slot: int, rows_RD: Tensor, start: int, end: int) -> None:
        """The rows of `slot` in place, computed with the first of the next slots, which are put back afterwards.

        oneDNN makes a kernel for every number of rows, which takes as long as 500 rows take; so it is to meet few.
        """
        rows = rows_RD[start : end + -(end - start) % ROWS_STEP]
        next_rows = rows[end - start :].clone()
        self.expert(slot, rows, out=rows)
        rows[end - start :] = next_rows

    def expert(self, slot: int, rows_RD: Tensor, out: Tensor | None = None) -> Tensor:
        """[R, D] -> [R, D] by the expert in local slot `slot`; `out` may be the rows themselves."""
        gate_RI, up_RI = F.linear(rows_RD, self.gate_up[slot]).chunk(2, -1)
        return torch.mm(silu_product(gate_RI, up_RI), self.down[slot].mT, out=out)

    def tensors(self, slot: int) -> dict[str, Tensor]:
        """The memory of each tensor of the expert in `slot`, by its published name."""
        gate, up = self.gate_up.data[slot].chunk(2)
        return {"gate_proj.weight": gate, "up_proj.weight": up, "down_proj.weight": self.down.data[slot]}


class MixtureOfExperts(nn.Module):
    """One MoE layer on one rank."""

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        moe_layer: int,
        replicas: ReplicaTable,
        dispatcher: TokenDispatcher,
        load: ExpertLoad,
        batching: Batching,
    ) -> None:
        super().__init__()
        self.batching = batching
        num_slots = load.rows.shape[1]
        self.gate = Gate(config, unquantized_dtype(dtype))
        self.experts = (
            Fp8Experts(num_slots, config, batching)
            if dtype == E4M3
            else LocalExperts(num_slots, config, dtype, batching)
        )
        self.shared_experts = GatedMlp(
            config.hidden_size, config.moe_intermediate_size * config.n_shared_experts, dtype
        )
        self.moe_layer, self.replicas, self.dispatcher, self.load = moe_layer, replicas, dispatcher, load
        self.span = partial(span, layer=moe_layer + config.first_k_dense_replace)

    def forward(self, x_TD: Tensor) -> Flow[Tensor]:
        """[T, D] -> [T, D]; a collective of the unit, so T may be 0."""
        with self.span("gate"):
            experts_TK, weights_TK = self.batching.rows(self.gate, x_TD)
            slots_TK = self.replicas.choose(experts_TK)
        yield Pause.GATED
        with self.span("dispatch issue"):
            dispatching = self.dispatcher.dispatch(x_TD, slots_TK)
        with self.span("shared expert"):
            shared_TD = self.batching.rows(self.shared_experts, x_TD)
        yield Pause.DISPATCHING
        with self.span("dispatch wait"):
            dispatched = dispatching.wait()
        with self.span("experts"):
            rows_RD = self.experts(dispatched.rows_RD, dispatched.counts)
        self.load.add(self.moe_layer, dispatched.counts, dispatched.sent)
        with self.span("combine issue"):
            combining = self.dispatcher.combine(rows_RD, dispatched)
        yield Pause.COMBINING
        with self.span("combine wait"):
            combined = combining.wait()
        yield Pause.COMBINED
        with self.span("sum"):
            return self._weighted_sum(combined, weights_TK).add_(shared_TD)

    def _weighted_sum(self, combined: Combined, weights_TK: Tensor) -> Tensor:
        """[T, D]: a token's choices, added in their order; rows are read where they lie."""
        rows_RD, places_TK = combined.rows_RD, combined.places.view(weights_TK.shape)
        if self.batching.is_batched and cpu_kernels.are_few_tokens(weights_TK) and cpu_kernels.suits(rows_RD):
            return cpu_kernels.weighted_sum(rows_RD, places_TK, weights_TK)
        return F.embedding_bag(places_TK, rows_RD, per_sample_weights=weights_TK.to(rows_RD.dtype), mode="sum")
