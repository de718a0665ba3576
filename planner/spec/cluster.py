"""The spec's `cluster` section: the nodes, and their GPU model, from the catalog or described by the user."""

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from planner.facts.catalog import GPUS
from planner.facts.quantities import quantity
from planner.spec.section import ONE_LINE, Section, find_tag, one_of
from planner.spec.undecided import AUTO, OR_AUTO

MAX_NODES = 20_000
MAX_TFLOPS = 1_000_000
OF_OWN_GPUS = "nvidia.com/gpu"  # resource of GPUs that the spec describes, unless kubernetes.gpu_resource has another

A_GPU = next(name for name in GPUS if name != "cpu")  # for examples


class GpuSpec(Section):
    """The figures of a GPU that the catalog does not have."""

    name: str = Field(
        min_length=1,
        max_length=63,
        pattern=ONE_LINE,
        description="Name of the GPU in plans, in one line.",
        examples=["a-gpu-96"],
    )
    memory: Annotated[int, *quantity("bytes")] = Field(
        description="Memory that a process can allocate, as the driver reports it. Makers often write GB for GiB:"
        " 79.1GiB are sold as 80 GB.",
        examples=["94GiB"],
    )
    nvlink: Annotated[float, *quantity("link")] | None = Field(
        default=None,
        description="One-way bandwidth from a GPU to all others of its domain together, over NVLink or a similar link.",
        examples=["450GB/s"],
    )
    nvlink_domain: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="Number of GPUs that NVLink connects with each other, by default those of a node.",
        examples=[8],
    )
    nic: Annotated[float, *quantity("link")] | None = Field(
        default=None, description="One-way bandwidth of each NIC.", examples=["400Gbps"]
    )
    gpus_per_nic: int = Field(default=1, ge=1, le=64, description="Number of GPUs that share a NIC.", examples=[1])
    fp8_tflops: float | None = Field(
        default=None,
        ge=1,
        le=MAX_TFLOPS,
        description="Rate of dense FP8 matmuls, in TFLOPS; without rates no speed is predicted.",
        examples=[1979],
    )
    bf16_tflops: float | None = Field(
        default=None, ge=1, le=MAX_TFLOPS, description="Rate of dense BF16 matmuls, in TFLOPS.", examples=[989]
    )
    memory_bandwidth: Annotated[float, *quantity("link")] | None = Field(
        default=None, description="Bandwidth of the GPU's memory.", examples=["3350GB/s"]
    )


def _number_or_list(value: Any) -> str:
    return "<list>" if isinstance(value, list) else "<number>"


class NodeSpec(Section):
    """One node, if the cluster's nodes are listed."""

    name: str = Field(min_length=1, max_length=253, description="Name of the node in Kubernetes.", examples=["gpu-a01"])
    rack: str | None = Field(
        default=None, min_length=1, pattern=ONE_LINE, description="Rack of the node, in one line.", examples=["a"]
    )
    leaf: str | None = Field(
        default=None,
        min_length=1,
        pattern=ONE_LINE,
        description="Leaf switch of the node's NICs, in one line.",
        examples=["leaf-1"],
    )
    gpu: Annotated[str, one_of(GPUS, or_text=True)] | None = Field(
        default=None,
        min_length=1,
        description="GPU model of the node, by default the cluster's. Nodes with a GPU that no phase uses stay free.",
        examples=[A_GPU],
    )
    gpus: int | None = Field(
        default=None, ge=0, le=64, description="Number of the node's GPUs, by default gpus_per_node.", examples=[8]
    )
    taints: list[str] = Field(
        default=[],
        description="Taints of the node. Those with NoSchedule or NoExecute repel units that do not tolerate them.",
        examples=[["team=research:NoSchedule"]],
    )
    cordoned: bool = Field(
        default=False, description="Whether the node is cordoned, so that it takes no new pods.", examples=[False]
    )


class ClusterSpec(Section):
    """The nodes that the units are placed on."""

    gpu: Annotated[
        Annotated[str, one_of(GPUS), Tag("<name>")] | Annotated[GpuSpec, Tag("<own>")], Discriminator(find_tag)
    ] = Field(
        description="A GPU of the catalog or one of your own; `cpu` runs each rank as a CPU process.",
        examples=[A_GPU, {"name": "a-gpu-96", "memory": "94GiB"}],
    )
    nodes: Annotated[
        Annotated[int, Field(ge=1, le=MAX_NODES), Tag("<number>")]
        | Annotated[list[NodeSpec], Field(min_length=1, max_length=MAX_NODES), Tag("<list>")],
        Discriminator(_number_or_list),
        *OR_AUTO,
    ] = Field(
        description="Number of nodes (named node-0 and so on), or a list of nodes. With auto, as many as the units"
        " need or, if units are auto too, as many as the traffic's peak hour needs.",
        examples=[22, [{"name": "gpu-a01"}], AUTO],
    )
    gpus_per_node: int = Field(
        ge=1, le=64, description="Number of GPUs on each node, of which each runs one rank.", examples=[8]
    )
    spares: list[Annotated[str, Field(min_length=1, max_length=253)]] = Field(
        default=[],
        max_length=MAX_NODES,
        description="Names of nodes that stay free of units, so that a unit that loses a node can move there.",
        examples=[["node-21"]],
    )
    rack_size: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="Number of consecutive nodes in a rack. Units are placed so that few racks are in use at a time.",
        examples=[4],
    )
    leaf_size: int | None = Field(
        default=None, ge=1, le=20_000, description="Number of consecutive nodes at a leaf switch.", examples=[32]
    )

    @property
    def gpu_name(self) -> str:
        """Return the GPU's name in plans."""
        return self.gpu if isinstance(self.gpu, str) else self.gpu.name
