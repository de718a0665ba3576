"""How the tokens of a phase travel to their experts: by which kind of dispatch, in how many bytes, and past which gate.

DeepEP has two kinds. Normal dispatch, which prefill takes, sends a token once to each NVLink domain that has one of its
experts. Low latency, which decode takes, sends it once for each expert, to the GPU that has it.

So groups of experts are kept on nodes only where that saves something: with normal dispatch, with a gate that lets a
token into fewer groups than there are, and where NVLink ends with the node.

Worked example: 7,168 channels in FP8 with a scale for each 128 are 7,392 B to dispatch, and 14,336 B in BF16 to
combine.

Sources: github.com/deepseek-ai/DeepEP dd758caf README; open-infra-index 56d86855, day 6 (FP8 dispatch, BF16 combine);
sglang 0.5.23 layers/moe/token_dispatcher/deepep.py and vllm 0.33.0 model_executor/layers/fused_moe/all2all_utils.py
(tokens that a GPU has room for).
"""

from planner.facts.catalog import Gpu
from planner.facts.engines import OURS
from planner.facts.gate import Gate
from planner.facts.model import Model
from planner.facts.terms import EngineName, Phase, Precision, SplitRule
from planner.layout.layout import PhaseLayout
from planner.spec.phase import PhaseSpec
from planner.spec.precision import wide_bytes
from planner.spec.schema import Spec

__all__ = [
    *("SCALE_CHANNELS", "dispatched_tokens", "gate_of", "groups_on_nodes", "is_normal", "limiting_groups"),
    *("message_bytes", "split_of", "step_tokens"),
]

SCALE_CHANNELS = 128
SCALE_BYTES = 4


def is_normal(phase: Phase) -> bool:
    """Whether `phase` dispatches the normal way; mixed units do, since most of their tokens are of prompts."""
    return phase != "decode"


def step_tokens(phase: PhaseSpec) -> int:
    """Return the most tokens of a decode step of a group: one of each request, and its drafts."""
    return phase.max_requests * (1 + phase.draft_tokens)


def dispatched_tokens(phase: PhaseSpec, engine: EngineName) -> int:
    """Return the tokens of a decode step that each GPU's low-latency buffer has room for.

    GPUs that share attention share its tokens too, but vLLM's buffer has room for all of its group. The bundled runtime
    makes room for one half of an overlapped step: the halves take turns.
    """
    tokens = step_tokens(phase)
    if engine == OURS and phase.overlap != "none":
        tokens = -(-tokens // 2)
    return tokens if engine == "vllm" else -(-tokens // phase.attention_tp)


def gate_of(model: Model, precision: Precision) -> Gate:
    """Return the gate of `model`, with the bytes of one token that it sends to another node."""
    dispatch, _ = message_bytes(model.hidden_size, precision)
    return Gate(model.num_experts_per_token, model.num_groups_per_token, dispatch)


def limiting_groups(model: Model) -> int:
    """Return the groups of experts of which the gate lets a token into some only; 1 where it may go to all."""
    return model.num_expert_groups if model.num_groups_per_token < model.num_expert_groups else 1


def groups_on_nodes(model: Model, gpu: Gpu, gpus_per_node: int, layout: PhaseLayout) -> int:
    """Return the groups of experts that a map of a phase had better keep on nodes; 1 where it need not mind them.

    A unit that is one attention group dispatches nothing, so its map need not.
    """
    links_leave_node = gpu.nvlink_leaves_node and (gpu.nvlink_domain or 0) > gpus_per_node
    saves_bytes = is_normal(layout.phase) and layout.dp_size > 1 and not links_leave_node
    return limiting_groups(model) if saves_bytes else 1


def split_of(spec: Spec, layout: PhaseLayout) -> SplitRule:
    """Return which replica of an expert a token of a phase goes to.

    A unit of SGLang's that is one attention group dispatches nothing: its GPUs have the same tokens, and use an
    expert's replicas by turns. Source: github.com/sgl-project/sglang 0.5.23
    python/sglang/srt/eplb/expert_location_dispatch.py, rank_invariant.
    """
    rule = spec.split_rule
    return "equal" if rule == "first_on_node" and layout.dp_size == 1 else rule


def message_bytes(hidden_size: int, precision: Precision) -> tuple[int, int]:
    """Return the bytes of one token, to dispatch and to combine."""
    if precision == "fp8":
        return hidden_size + SCALE_BYTES * (hidden_size // SCALE_CHANNELS), 2 * hidden_size
    return wide_bytes(precision) * hidden_size, wide_bytes(precision) * hidden_size
