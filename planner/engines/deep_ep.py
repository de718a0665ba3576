"""What DeepEP's low-latency kernels ask of every engine that calls them: few tokens at once, and queues that hold them.

A GPU puts all messages of a step to one expert into one queue of the NIC, and the kernels do not look whether there is
room. So DeepEP refuses to start unless a queue holds two entries for each token and two more:

    NVSHMEM_QP_DEPTH >= 2 (tokens + 1)

It takes 1,024 where the variable is not set, which is enough for 511 tokens. SGLang 0.5.23 raises the variable itself.
vLLM 0.33 and the bundled runtime leave it to whoever starts them.

Sources: github.com/deepseek-ai/DeepEP dd758caf deep_ep/buffers/legacy.py, low_latency_dispatch and __init__ (depth);
sglang 0.5.23 layers/moe/token_dispatcher/deepep.py, FINISHED_SUM_TAG and _set_nvshmem_qp_depth; vllm 0.33.0
distributed/device_communicators/all2all.py, model_executor/layers/fused_moe/all2all_utils.py (tokens of a whole group).
"""

from planner.spec.phase import PhaseSpec

__all__ = ["MAX_DISPATCHED_TOKENS", "dispatched_tokens", "queue_variables", "step_tokens"]

# A rank's tokens are counted in a word where 1,024 means that all have come.
MAX_DISPATCHED_TOKENS = 1024
DEFAULT_DEPTH = 1024


def dispatched_tokens(phase: PhaseSpec) -> int:
    """Return the most tokens of a decode step that one GPU dispatches: those of its group, shared by its GPUs."""
    return -(-step_tokens(phase) // phase.attention_tp)


def step_tokens(phase: PhaseSpec) -> int:
    """Return the most tokens of a decode step of a group: one of each request, and its drafts."""
    return phase.max_requests * (1 + phase.draft_tokens)


def queue_variables(num_tokens: int) -> dict[str, str]:
    """Return the variable that makes the queues hold `num_tokens` of a GPU; nothing where they do by default."""
    depth = 2 * (num_tokens + 1)
    return {"NVSHMEM_QP_DEPTH": str(depth)} if depth > DEFAULT_DEPTH else {}
