"""What libraries are told of the node's interfaces, so that none of them guesses, and all of them say the same.

    NCCL_IB_HCA                         NCCL [1]: `=` before the list compares whole names, else mlx5_1 is mlx5_10 too
    NVSHMEM_HCA_LIST, ..._NIC_PE_MAPPING  NVSHMEM, for DeepEP [2]: the list counts only beside the mapping, by which the
                                        GPUs of a node have its entries in turn
    ..._SOCKET_IFNAME                   NCCL, NVSHMEM and Gloo [3], to find each other

[1] github.com/NVIDIA/nccl 48bb7fec src/transport/net_ib.cc
[2] github.com/pytorch/pytorch 015f6f77 torch/csrc/distributed/c10d/symm_mem/NVSHMEMSymmetricMemory.cu
[3] github.com/llm-d/llm-d 34716a27 guides/wide-ep-lws/modelserver/gpu/vllm-deepseek-r1-0528/disaggregatedset/
    disaggregatedset.yaml

NVSHMEM_IB_ENABLE_IBGDA is not among them: DeepEP sets it itself where it needs it (github.com/deepseek-ai/DeepEP
dd758caf deep_ep/buffers/legacy.py).
"""

from planner.spec.pods import NicsSpec

__all__ = ["nic_variables"]


def nic_variables(nics: NicsSpec) -> dict[str, str]:
    """Return the variables that name `nics`."""
    variables = {}
    if nics.hca:
        with_ports = [hca if ":" in hca else f"{hca}:1" for hca in nics.hca]
        variables["NCCL_IB_HCA"] = f"={','.join(nics.hca)}"
        variables["NVSHMEM_HCA_LIST"] = ",".join(with_ports)
        variables["NVSHMEM_ENABLE_NIC_PE_MAPPING"] = "1"
    if nics.socket is not None:
        names = ("NCCL_SOCKET_IFNAME", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "GLOO_SOCKET_IFNAME")
        variables |= dict.fromkeys(names, nics.socket)
    return variables
