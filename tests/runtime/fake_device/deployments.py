"""Units of the shipped specs as fake ranks: their layouts, their largest steps, and the planner's ledgers."""

import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from planner.layout.layout import PhaseLayout, lay_out
from planner.layout.memory import MemoryPlan, split_memory
from planner.layout.working_memory import MAX_IMBALANCE
from planner.rules.check import check_spec
from planner.spec.resolved import ResolvedSpec
from runtime.model.config import ModelConfig
from runtime.model.forward_batch import Chunk
from runtime.model.rope import Yarn
from runtime.protocol.counting import PAGE_TOKENS
from tests.runtime.fake_device.ranks import FakeRank, FakeUnit

__all__ = ["Deployment", "plan_deployment"]

SPECS = Path(__file__).parents[3] / "stacks" / "specs"


@dataclass(frozen=True)
class Deployment:
    """One phase of a spec: its rank's parts, and the planner's figures of it."""

    config: ModelConfig
    unit: FakeUnit
    ledger: MemoryPlan
    limits: object  # the phase of the spec
    spec: ResolvedSpec
    layout: PhaseLayout

    def rank(self, ops, num_dense, num_moe):
        """Return rank 0 with `layers` of each kind."""
        layers = {"num_hidden_layers": num_dense + num_moe, "first_k_dense_replace": num_dense}
        return FakeRank(replace(self.config, **layers), ops, self.unit, self.ledger.kv_tokens)

    def largest_step(self):
        """Return (prefilling, decoding) of the largest step: a longest prompt's end, and requests that fill the KV."""
        kv_pages, prefilling, decoding = self.ledger.kv_tokens // PAGE_TOKENS, [], []
        if self.ledger.phase != "decode":
            end, size = self.limits.max_request_tokens, self.limits.max_batch_tokens
            table = list(range(end // PAGE_TOKENS))
            prefilling = [Chunk([7] * size, end - size, table)]
        if self.ledger.phase != "prefill":
            pages = min(kv_pages // self.limits.max_requests, self.limits.max_request_tokens // PAGE_TOKENS)
            tables = [list(range(first * pages, (first + 1) * pages)) for first in range(self.limits.max_requests)]
            decoding = [Chunk([7], pages * PAGE_TOKENS - 1, table) for table in tables]
        return prefilling, decoding


def plan_deployment(spec_file, phase, gpu=None, **changes):
    """Return a phase of a shipped spec, on another `gpu`, with `changes` of that phase's fields."""
    checked = _check_spec(SPECS / spec_file, gpu)
    limits = checked.phase(phase).model_copy(update=changes)
    checked = replace(checked, written=checked.written.model_copy(update={phase: limits}))
    layout = lay_out(checked, phase)
    unit = FakeUnit(
        layout.ep_size,
        layout.ranks_per_node,
        layout.num_physical_experts,
        layout.overlap,
        limits.max_requests if phase == "decode" else None,
        MAX_IMBALANCE,
    )
    config = replace(published_config(checked.model), power_of_two_scales=gpu == "b200")  # else DeepGEMM would cut them
    return Deployment(config, unit, split_memory(checked, layout), limits, checked, layout)


def _check_spec(path, gpu):
    if gpu is None:
        return check_spec(path)
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / path.name
        other.write_text(re.sub(r"^  gpu: \w+", f"  gpu: {gpu}", path.read_text(), flags=re.MULTILINE))
        return check_spec(other)


def published_config(model):
    """Return DeepSeek-V3's config with the sizes of the planner's catalog."""
    (attention,) = model.attentions  # all layers have the same
    return ModelConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.dense_intermediate_size,
        moe_intermediate_size=model.experts.intermediate_size,
        num_hidden_layers=model.num_layers,
        first_k_dense_replace=model.num_dense_layers,
        num_attention_heads=attention.num_heads,
        q_lora_rank=attention.q_lora_rank,
        kv_lora_rank=attention.kv_lora_rank,
        qk_nope_head_dim=attention.qk_nope_head_dim,
        qk_rope_head_dim=attention.qk_rope_head_dim,
        v_head_dim=attention.v_head_dim,
        n_routed_experts=model.num_routed_experts,
        n_shared_experts=model.num_shared_experts,
        num_experts_per_tok=model.num_experts_per_token,
        scoring_func="sigmoid",
        topk_method="noaux_tc",
        n_group=model.num_expert_groups,
        topk_group=4,
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
        rope_theta=10000.0,
        yarn=Yarn(40.0, 4096, 32.0, 1.0, 1.0, 1.0),
        rms_norm_eps=1e-6,
        max_position_embeddings=model.max_position_embeddings,
    )
