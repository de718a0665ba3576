"""The mixture of experts of one layer: gate, choice of replica, dispatch, local experts, combine, shared expert.

    logical expert    one of the experts that the gate chooses among, 0..E-1
    physical slot     the place of one copy of an expert's weights; redundant experts have several
    replica table     logical expert -> its slots. The split rule says which of them tokens take in turn: all (`equal`),
                      or the nearest (`local_first`), which are those on the token's rank, else on its node, else all

Worked example: 32 logical experts + 4 redundant = 36 slots; EP4 holds 9 slots a rank. Expert 7 lies in slots 3 and 20,
on ranks 0 and 2; under the split "equal" its tokens alternate between the two.

Sources: DeepSeek-V3 (arXiv 2412.19437) section 2.1.2; `inference/model.py`, classes Gate and MoE; DeepSeek-V2
(arXiv 2405.04434) section 2.2.2, device-limited routing.
"""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor, nn

from runtime.expert_parallel.dispatcher import ContiguousRows, ExpertRows, TokenDispatcher, WeightsApplied
from runtime.expert_parallel.expert_load import ExpertLoad
from runtime.expert_parallel.overlap import Flow, Pause
from runtime.kernels.backend import Backend
from runtime.kernels.fp8 import E4M3
from runtime.kernels.ops import GateRule, Ops
from runtime.model.config import ModelConfig
from runtime.model.fp8 import Fp8Experts
from runtime.model.layers import GatedMlp
from runtime.trace import span

__all__ = ["Gate", "LocalExperts", "MixtureOfExperts", "ReplicaTable"]


class Gate(nn.Module):
    """Chooses each token's experts and their weights. Only the experts of the token's best groups are eligible.

    V3 scores by sigmoid (`noaux_tc`). A bias, balanced in training, is added to the scores to choose experts, but not
    to weigh them. V2 scores by softmax (`group_limited_greedy`, or `greedy`, which has one group).
    """

    def __init__(self, config: ModelConfig, backend: Backend) -> None:
        super().__init__()
        self.config, self.ops = config, backend.ops
        shape, device = (config.n_routed_experts, config.hidden_size), backend.device
        self.weight = nn.Parameter(torch.empty(shape, dtype=backend.unquantized_dtype, device=device))
        if config.topk_method == "noaux_tc":
            bias_E = torch.empty(config.n_routed_experts, dtype=torch.float32, device=device)
            self.e_score_correction_bias = nn.Parameter(bias_E)

    def forward(self, x_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Return each token's logical experts [T, K], and their weights [T, K] in FP32."""
        return self.ops.choose_and_weigh(self.ops.gate_logits(x_TD, self.weight), self._bias_E, self._rule)

    @property
    def _bias_E(self) -> Tensor | None:  # noqa: N802 - a tensor's name ends with its dimensions
        return self.e_score_correction_bias if self.config.topk_method == "noaux_tc" else None

    @property
    def _rule(self) -> GateRule:
        config = self.config
        return GateRule(
            is_softmax=config.scoring_func == "softmax",
            num_groups=config.n_group,
            num_best=2 if config.topk_method == "noaux_tc" else 1,
            topk_group=config.topk_group,
            top_k=config.num_experts_per_tok,
            is_normalised=config.norm_topk_prob,
            factor=config.routed_scaling_factor,
        )


class ReplicaTable:
    """The slots that a rank's tokens may use for each logical expert of one layer, and whose turn is next.

    All slots are in one list, in which an expert's lie side by side. So any map over as many slots fits into the same
    memory. `update` writes there, and a recorded step reads it at each replay.
    """

    def __init__(
        self,
        physical_to_logical: list[int],
        num_logical_experts: int,
        rank: int,
        ops: Ops,
        nodes: Sequence[str] | None = None,
    ) -> None:
        """Make the table for tokens of `rank`.

        `nodes` is each rank's node, for the split `local_first`; None for `equal`.
        """
        self.rank, self._nodes, self._ops = rank, nodes, ops
        self._slots_S = torch.zeros(len(physical_to_logical), dtype=torch.long, device=ops.device)
        self._first_E, self._num_replicas_E = torch.zeros(2, num_logical_experts, dtype=torch.long, device=ops.device)
        self._turn = torch.full((), rank, device=ops.device)
        self.update(physical_to_logical)

    def update(self, physical_to_logical: list[int]) -> None:
        """Let tokens follow another map over as many slots. The new map must hold every expert too."""
        slots: list[list[int]] = [[] for _ in self._first_E]
        for slot, expert in enumerate(physical_to_logical):
            slots[expert].append(slot)
        if self._nodes is not None:
            slots_per_rank = len(physical_to_logical) // len(self._nodes)
            slots = [_nearest_replicas(replicas, self.rank, self._nodes, slots_per_rank) for replicas in slots]
        ends = list(accumulate(map(len, slots)))
        self._slots_S[: ends[-1]] = torch.tensor([slot for replicas in slots for slot in replicas])
        self._first_E.copy_(torch.tensor([0, *ends[:-1]]))
        self._num_replicas_E.copy_(torch.tensor(list(map(len, slots))))

    def choose(self, experts_TK: Tensor) -> Tensor:
        """Return the slot of each choice, [T, K].

        Tokens take an expert's replicas in turn; each rank starts at a different replica. If there are as many slots as
        experts, no map that holds every expert has replicas, so there are no turns.
        """
        if len(self._slots_S) == len(self._first_E):
            return self._slots_S.take(experts_TK)
        table = self._slots_S, self._first_E, self._num_replicas_E
        slots_TK = self._ops.replicas_in_turn(experts_TK, *table, self._turn)
        self._turn += len(experts_TK)
        return slots_TK


def _nearest_replicas(replicas: list[int], rank: int, nodes: Sequence[str], slots_per_rank: int) -> list[int]:
    """Return the `replicas` (slots of one expert) that are nearest to a rank.

    They are those on the rank itself. If it has none, they are those on its node, and if the node has none, all.
    """
    own = [slot for slot in replicas if slot // slots_per_rank == rank]
    near = [slot for slot in replicas if nodes[slot // slots_per_rank] == nodes[rank]]
    return own or near or replicas


class LocalExperts(nn.Module):
    """The experts in this rank's slots, as stacked matrices: gate and up [slots, 2 I, D], down [slots, D, I]."""

    def __init__(self, num_slots: int, config: ModelConfig, backend: Backend) -> None:
        super().__init__()
        self.ops, self.batching = backend.ops, backend.batching
        hidden, intermediate = config.hidden_size, config.moe_intermediate_size
        dtype, device = backend.dtype, backend.device
        self.gate_up = nn.Parameter(torch.empty(num_slots, 2 * intermediate, hidden, dtype=dtype, device=device))
        self.down = nn.Parameter(torch.empty(num_slots, hidden, intermediate, dtype=dtype, device=device))

    def forward(self, rows: ExpertRows) -> Tensor:
        """Return the experts' results: [R, D] in the memory of the rows, or [M, Z, D] for masked rows."""
        if isinstance(rows, ContiguousRows):
            assert isinstance(rows.rows_RD, Tensor)
            return self.batching.experts(self.ops, rows.rows_RD, rows.counts, self.gate_up, self.down)
        assert isinstance(rows.rows_MZD, Tensor)
        return self.batching.masked_experts(self.ops, rows.rows_MZD, rows.counts_M, self.gate_up, self.down)

    def expert(self, slot: int, rows_RD: Tensor) -> Tensor:
        """Return the results of the expert in local slot `slot` for rows [R, D]. `check_machine` calls this."""
        return self.ops.expert(rows_RD, self.gate_up[slot], self.down[slot])

    def tensors(self, slot: int) -> dict[str, Tensor]:
        """Return published name -> memory of each tensor of the expert in `slot`."""
        gate, up = self.gate_up.data[slot].chunk(2)
        return {"gate_proj.weight": gate, "up_proj.weight": up, "down_proj.weight": self.down.data[slot]}


class MixtureOfExperts(nn.Module):
    """One MoE layer on one rank. It depends on the declared properties of its dispatcher, not on its class."""

    def __init__(
        self,
        config: ModelConfig,
        backend: Backend,
        moe_layer: int,
        replicas: ReplicaTable,
        dispatcher: TokenDispatcher,
        load: ExpertLoad,
    ) -> None:
        super().__init__()
        self.batching = backend.batching
        experts = Fp8Experts if backend.dtype == E4M3 else LocalExperts
        shared_size = config.moe_intermediate_size * config.n_shared_experts
        self.gate = Gate(config, backend)
        self.experts = experts(load.rows.shape[1], config, backend)
        self.shared_experts = GatedMlp(config.hidden_size, shared_size, backend.dtype, backend.ops)
        self.moe_layer, self.replicas, self.dispatcher, self.load = moe_layer, replicas, dispatcher, load
        self.span = partial(span, layer=moe_layer + config.first_k_dense_replace)

    def forward(self, x_TD: Tensor) -> Flow[Tensor]:
        """Map [T, D] -> [T, D]; a collective of the unit, so T may be 0."""
        with self.span("gate"):
            experts_TK, weights_TK = self.batching.rows(self.gate, x_TD)
            slots_TK = self.replicas.choose(experts_TK)
        yield Pause.GATED
        with self.span("dispatch issue"):
            dispatching = self.dispatcher.dispatch(x_TD, slots_TK, weights_TK)
        with self.span("shared expert"):
            shared_TD = self.batching.rows(self.shared_experts, x_TD)
        yield Pause.DISPATCHING
        with self.span("dispatch wait"):
            dispatched = dispatching.wait()
            del dispatching  # it holds the sent rows, and a flow's memory stays while the other computes
        rows, sent = dispatched.rows, dispatched.drop_rows()
        del dispatched
        with self.span("experts"):
            results = self._run_experts(rows)
        self.load.add(self.moe_layer, rows.counts_M, sent.sent_W)
        del rows
        with self.span("combine issue"):
            combining = self.dispatcher.combine(results, sent)
            del results, sent
        yield Pause.COMBINING
        with self.span("combine wait"):
            combined = combining.wait()
            del combining
        yield Pause.COMBINED
        with self.span("sum"):
            return combined.sum().add_(shared_TD)

    def expert_tensors(self, slot: int) -> dict[str, Tensor]:
        """Return published name -> memory of each tensor of the expert in local slot `slot`."""
        return self.experts.tensors(slot)

    def follow(self, physical_to_logical: list[int]) -> None:
        """Route tokens by another expert map, and count rows by it. The slots must already hold that map's experts."""
        self.replicas.update(physical_to_logical)
        first = self.replicas.rank * self.load.rows.shape[1]
        self.load.assign(self.moe_layer, physical_to_logical[first : first + self.load.rows.shape[1]])

    def _run_experts(self, rows: ExpertRows) -> Tensor:
        """Return the experts' results, multiplied by the gate's weights unless combine does that.

        The results are [R, D], or [M, Z, D] for masked rows.
        """
        results = self.experts(rows)
        return results if self.dispatcher.weights_applied is WeightsApplied.BY_COMBINE else rows.weigh(results)
