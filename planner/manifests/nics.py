"""Variables that name a node's network interfaces, so that no library guesses and all use the same ones.

    NCCL_IB_HCA                         NCCL [1]: `=` before the list compares whole names, else mlx5_1 is mlx5_10 too
    NVSHMEM_HCA_LIST                    NVSHMEM, for DeepEP [2]: the list of NICs
    NVSHMEM_ENABLE_NIC_PE_MAPPING       NVSHMEM: a node's ranks in one NVSHMEM world use the list's NICs in turn.
                                        Without it each uses the NIC nearest to its GPU.
    ..._SOCKET_IFNAME                   NCCL, NVSHMEM and Gloo [3], to find each other

With DeepEP's normal kernels each local index has its own world. There every rank is the first of its node, and the
mapping would give the list's first NIC to all of them, so it is left out.

[1] github.com/NVIDIA/nccl 48bb7fec src/transport/net_ib.cc
[2] github.com/NVIDIA/nvshmem 08f33f28 src/host/transport/transport.cpp, nvshmemi_setup_connections
[3] github.com/llm-d/llm-d 34716a27 guides/wide-ep-lws/modelserver/gpu/vllm-deepseek-r1-0528/disaggregatedset/
    disaggregatedset.yaml

NVSHMEM_IB_ENABLE_IBGDA is missing because DeepEP sets it if it needs it (github.com/deepseek-ai/DeepEP
dd758caf deep_ep/buffers/legacy.py).
"""

from planner.spec.pods import NicsSpec


def nic_variables(nics: NicsSpec, *, is_one_world: bool) -> dict[str, str]:
    """Return the environment variables that name `nics`, the network interfaces of a node.

    `is_one_world` says whether all ranks of a unit are in one NVSHMEM world.
    """
    variables = {}
    if nics.hca:
        with_ports = [hca if ":" in hca else f"{hca}:1" for hca in nics.hca]
        variables["NCCL_IB_HCA"] = f"={','.join(nics.hca)}"
        variables["NVSHMEM_HCA_LIST"] = ",".join(with_ports)
        if is_one_world:
            variables["NVSHMEM_ENABLE_NIC_PE_MAPPING"] = "1"
    if nics.socket is not None:
        names = ("NCCL_SOCKET_IFNAME", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "GLOO_SOCKET_IFNAME")
        variables |= dict.fromkeys(names, nics.socket)
    return variables
