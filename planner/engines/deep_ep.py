"""The queues that DeepEP's low-latency kernels ask for, of every engine that calls them.

A GPU puts all messages of a step to one expert into one queue of the NIC, and the kernels do not look whether there is
room. So DeepEP refuses to start unless a queue holds two entries for each token and two more:

    NVSHMEM_QP_DEPTH >= 2 (tokens + 1)

It takes 1,024 where the variable is not set, which is enough for 511 tokens. SGLang 0.5.23 raises the variable itself.
vLLM 0.33 and the bundled runtime leave it to whoever starts them.

Sources: github.com/deepseek-ai/DeepEP dd758caf deep_ep/buffers/legacy.py, __init__ (depth); sglang 0.5.23
layers/moe/token_dispatcher/deepep.py, _set_nvshmem_qp_depth; vllm 0.33.0
distributed/device_communicators/all2all.py.
"""

__all__ = ["queue_variables"]

DEFAULT_DEPTH = 1024


def queue_variables(num_tokens: int) -> dict[str, str]:
    """Return the variable that makes the queues hold `num_tokens` of a GPU; nothing where they do by default."""
    depth = 2 * (num_tokens + 1)
    return {"NVSHMEM_QP_DEPTH": str(depth)} if depth > DEFAULT_DEPTH else {}
