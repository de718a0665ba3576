"""The spec's `schedule.start` section: what a start of units takes, stage by stage.

Sources of the defaults:
    pods             assumed: images are on the nodes, and processes import and initialise their GPU
    storage          assumed: ten storage nodes of 40 GB/s, as the 180 of 3FS read 6.6 TiB/s together
                     (github.com/deepseek-ai/3FS 11901ca7 README.md, peak throughput)
    peer_share       assumed: a serving unit keeps most of its NICs for dispatch and combine
    join             assumed: rendezvous, communicators and buffers of a group of 144
    maps             assumed: an expert map is read and checked with the launch file
    graphs           github.com/vllm-project/vllm issue 19824: CUDA graphs of a 70B model on 8 GPUs in about 60 s
    ready            the period of a readiness probe is 10 s unless given (kubernetes.io, configure probes)
    notice           assumed: a training job writes a checkpoint and ends

How fast one node reads weights is `kubernetes.load_rate`.
"""

from typing import Annotated, Literal

from pydantic import Field

from planner.facts.quantities import quantity
from planner.spec.section import Section, quantity_field

__all__ = ["StartSpec"]

Seconds = Annotated[float, *quantity("time", least="1ms", most="6h")]
GbPerS = Annotated[float, *quantity("link")]


class StartSpec(Section):
    """What a start of units takes: stage by stage, and the bandwidth at which all that start read weights."""

    pods: Seconds = quantity_field("30s", "Time until pods are placed and their processes run.")
    weights_from: Literal["storage", "peers"] = Field(
        default="storage",
        description="Whether weights are read from the storage, or over NICs from units of the phase that serve.",
        examples=["peers"],
    )
    storage: GbPerS = quantity_field(
        "400GB/s", "Bandwidth of the storage, shared by all nodes that read weights at once."
    )
    peer_share: float = Field(
        default=0.25,
        ge=0.01,
        le=1,
        description="Share of a serving unit's NICs that sends weights to those that start, with weights_from: peers.",
        examples=[0.25],
    )
    join: Seconds = quantity_field("30s", "Time until all ranks of a unit have joined.")
    maps: Seconds = quantity_field("5s", "Time until ranks have the expert map and its buffers.")
    graphs: Seconds = quantity_field("60s", "Time until graphs are captured.")
    ready: Seconds = quantity_field("10s", "Time until a unit that could serve is known to be ready.")
    notice: Seconds = quantity_field("5min", "Time before that at which whoever uses the nodes is told to leave them.")
