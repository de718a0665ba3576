"""How the tokens of a phase reach their experts: the kind of dispatch, its bytes, and the gate's limits.

DeepEP has two kinds of dispatch. Normal dispatch, for prefill, sends a token once to each NVLink domain with one of its
experts. Low-latency dispatch, for decode, sends it once for each expert, to the expert's GPU.

Keeping each group of experts on one node saves bytes only under three conditions: dispatch is normal, the gate limits a
token to some groups, and NVLink does not cross nodes.

Worked example: 7,168 channels in FP8 with a scale for each 128 are 7,392 B to dispatch, and 14,336 B in BF16 to
combine.

Sources: github.com/deepseek-ai/DeepEP dd758caf README; open-infra-index 56d86855, day 6 (FP8 dispatch, BF16 combine);
sglang 0.5.23 layers/moe/token_dispatcher/deepep.py and vllm 0.33.0 model_executor/layers/fused_moe/all2all_utils.py
(room for tokens on a GPU).
"""

from planner.facts.catalog import Gpu
from planner.facts.engines import OURS
from planner.facts.gate import Gate
from planner.facts.model import Model
from planner.facts.quantisation import wide_bytes
from planner.facts.terms import EngineName, Phase, Precision, SplitRule
from planner.layout.layout import PhaseLayout
from planner.spec.phase import PhaseSpec
from planner.spec.schema import Spec

SCALE_CHANNELS = 128
SCALE_BYTES = 4


def is_normal(phase: Phase) -> bool:
    """Return whether `phase` uses normal dispatch. Mixed units do, because most of their tokens are prompt tokens."""
    return phase != "decode"


def decode_step_tokens(phase: PhaseSpec) -> int:
    """Return the most tokens in a decode step of one attention group: each request's token and its drafts."""
    return phase.max_requests * (1 + phase.draft_tokens)


def dispatched_tokens(phase: PhaseSpec, engine: EngineName) -> int:
    """Return how many tokens of a decode step each GPU's low-latency dispatch buffer has room for.

    GPUs that share attention divide the group's tokens, but vLLM's buffer has room for all tokens of the group. The
    bundled runtime's buffer has room for one half of an overlapped step, because the halves take turns.
    """
    tokens = decode_step_tokens(phase)
    if engine == OURS and phase.overlap != "none":
        tokens = -(-tokens // 2)
    return tokens if engine == "vllm" else -(-tokens // phase.attention_tp)


def gate_of(model: Model, precision: Precision) -> Gate:
    """Return how many experts and groups the gate of `model` chooses, and the bytes that dispatch sends per token."""
    dispatch, _ = message_bytes(model.hidden_size, precision)
    return Gate(model.num_experts_per_token, model.num_groups_per_token, dispatch)


def limiting_groups(model: Model) -> int:
    """Return the number of expert groups if the gate limits a token to some of the groups, else 1."""
    return model.num_expert_groups if model.num_groups_per_token < model.num_expert_groups else 1


def groups_on_nodes(model: Model, gpu: Gpu, gpus_per_node: int, layout: PhaseLayout) -> int:
    """Return how many expert groups an expert map should keep whole on nodes; 1 if that saves no dispatch bytes.

    A unit that is one attention group dispatches nothing, so it saves no bytes.
    """
    links_leave_node = gpu.nvlink_leaves_node and (gpu.nvlink_domain or 0) > gpus_per_node
    saves_bytes = is_normal(layout.phase) and layout.dp_size > 1 and not links_leave_node
    return limiting_groups(model) if saves_bytes else 1


def split_of(spec: Spec, layout: PhaseLayout) -> SplitRule:
    """Return the rule by which a phase's tokens choose among the replicas of an expert.

    An SGLang unit that is one attention group dispatches nothing. All its GPUs have the same tokens and take an
    expert's replicas in turn, so the rule is then `equal`. Source: github.com/sgl-project/sglang 0.5.23
    python/sglang/srt/eplb/expert_location_dispatch.py, rank_invariant.
    """
    rule = spec.split_rule
    return "equal" if rule == "first_on_node" and layout.dp_size == 1 else rule


def message_bytes(hidden_size: int, precision: Precision) -> tuple[int, int]:
    """Return the bytes of one token in dispatch, with its scales, and in combine."""
    if precision == "fp8":
        return hidden_size + SCALE_BYTES * (hidden_size // SCALE_CHANNELS), 2 * hidden_size
    return wide_bytes(precision) * hidden_size, wide_bytes(precision) * hidden_size
