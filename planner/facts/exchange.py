"""How each engine exchanges rows (tokens' hidden states) between ranks, and which unit sizes each exchange supports.

DeepEP has two kinds of kernels, and an engine chooses one or both for each phase:
    normal        for prompts. It is configured for some numbers of ranks, and asserts for others. Eight consecutive
                  ranks open each other's memory, so NVLink must connect them.
    low latency   for single tokens. It supports fewer than eight ranks or a multiple of eight, on any nodes. A rank's
                  buffer holds a step's tokens for each slot of the unit, and is smaller than 32 GiB.

A rank puts all messages of a step to one expert into one queue of its NIC, and the low-latency kernels do not check for
room. So DeepEP refuses to start unless a queue holds two entries for each token and two more:

    NVSHMEM_QP_DEPTH >= 2 (tokens + 1)

The default of 1,024 is enough for 511 tokens. SGLang 0.5.23 raises the variable itself; for vLLM 0.33 and the bundled
runtime the pod must set it.

A unit that is one attention group exchanges nothing. The bundled runtime is not in the table, because it uses another
exchange for units that DeepEP does not support. All code that chooses or suggests EP sizes calls `Exchange.takes`.

Sources: github.com/deepseek-ai/DeepEP dd758caf deep_ep/buffers/legacy.py (get_dispatch_config; low_latency_dispatch,
for tokens; __init__, for queues), csrc/legacy/buffer.hpp (the constructor's checks; sync, which opens the memory and
makes NVSHMEM's worlds), csrc/kernels/legacy/internode.cu (whose ranks write to other eights by their NICs only). For
queues also sglang 0.5.23 layers/moe/token_dispatcher/deepep.py (_set_nvshmem_qp_depth), and vllm 0.33.0
distributed/device_communicators/all2all.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from planner.facts.catalog import Gpu
from planner.facts.terms import EngineName, Phase

Kernels = Literal["normal", "low_latency"]

NORMAL_SIZES = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160)
NVLINK_PEERS = 8
MAX_DISPATCHED_TOKENS = 1024  # of one rank: in DeepEP's counter, 1,024 means that all tokens have come
DEFAULT_QUEUE_DEPTH = 1024


@dataclass(frozen=True)
class Exchange:
    """How one phase of an engine exchanges rows: by which DeepEP kernels, if any."""

    kernels: tuple[Kernels, ...]  # empty if every rank gathers all rows, which works for any unit
    opens_other_nodes: bool  # whether normal kernels may open memory of other nodes on the same NVLink

    @property
    def is_one_world(self) -> bool:
        """Return whether all ranks share one NVSHMEM world.

        With normal kernels alone, each local index has a world of its own.
        """
        return self.kernels != ("normal",)

    def num_without_nics(self, num_joined: int) -> int:
        """Return how many of `num_joined` ranks on NVLink exchange rows without NICs; at most 8 with normal kernels."""
        return min(num_joined, NVLINK_PEERS) if "normal" in self.kernels else num_joined

    def takes(self, num_ranks: int, gpus_per_node: int, gpu: Gpu) -> bool:
        """Return whether a unit of `num_ranks` can exchange rows, on nodes with `gpus_per_node` GPUs of type `gpu`."""
        if "low_latency" in self.kernels and num_ranks >= NVLINK_PEERS and num_ranks % NVLINK_PEERS:
            return False
        if "normal" not in self.kernels:
            return True
        return num_ranks in NORMAL_SIZES and self._joins_peers(num_ranks, gpus_per_node, gpu)

    def _joins_peers(self, num_ranks: int, gpus_per_node: int, gpu: Gpu) -> bool:
        """Return whether NVLink joins every eight consecutive ranks, whatever the order of pods on the nodes."""
        domain = gpu.domain_size(gpus_per_node)
        if num_ranks <= gpus_per_node:
            return True
        if domain > gpus_per_node and self.opens_other_nodes and num_ranks <= domain:
            return True
        return gpus_per_node % NVLINK_PEERS == 0 and domain >= NVLINK_PEERS


# [engine][version][phase]. Sources: sglang 0.5.23 layers/moe/token_dispatcher/deepep.py (get_deepep_buffer, which asks
# for fabric memory if the GPU has it; mode auto needs both kinds); vllm 0.33.0
# distributed/device_communicators/all2all.py (DeepEPHTAll2AllManager does not ask for it), and `ALL_TO_ALL` of
# `planner/engines/vllm.py`.
EXCHANGES: Mapping[EngineName, Mapping[str, Mapping[Phase, Exchange]]] = {
    "sglang": {
        "0.5.23": {
            "prefill": Exchange(("normal",), opens_other_nodes=True),
            "decode": Exchange(("low_latency",), opens_other_nodes=True),
            "mixed": Exchange(("normal", "low_latency"), opens_other_nodes=True),
        }
    },
    "vllm": {
        "0.33.0": {
            "prefill": Exchange(("normal",), opens_other_nodes=False),
            "decode": Exchange(("low_latency",), opens_other_nodes=False),
            "mixed": Exchange((), opens_other_nodes=False),
        }
    },
}


def queue_variables(num_tokens: int) -> dict[str, str]:
    """Return the environment variable that makes NIC queues hold `num_tokens`; empty if the default is enough."""
    depth = 2 * (num_tokens + 1)
    return {"NVSHMEM_QP_DEPTH": str(depth)} if depth > DEFAULT_QUEUE_DEPTH else {}
