"""The spec's `schedule.start` section: the times of a unit's start, stage by stage.

Sources of the defaults:
    pods             assumed: images are on the nodes, and processes import and initialise their GPU
    storage          assumed: ten storage nodes of 40 GB/s, as the 180 of 3FS read 6.6 TiB/s together
                     (github.com/deepseek-ai/3FS 11901ca7 README.md, peak throughput)
    join             assumed: rendezvous, communicators and buffers of a group of 144
    graphs           github.com/vllm-project/vllm issue 19824: CUDA graphs of a 70B model on 8 GPUs in about 60 s
    notice           assumed: a training job writes a checkpoint and ends

`kubernetes.load_rate` is the rate at which one node reads weights.
"""

from typing import Annotated

from planner.facts.quantities import quantity
from planner.spec.section import Section, quantity_field

Seconds = Annotated[float, *quantity("time", least="1ms", most="6h")]
GbPerS = Annotated[float, *quantity("link")]


class StartSpec(Section):
    """The times of a start of units, stage by stage, and the bandwidth at which all starting units read weights."""

    pods: Seconds = quantity_field("30s", "Time until pods are placed and their processes run.")
    storage: GbPerS = quantity_field(
        "400GB/s", "Bandwidth of the storage, shared by all nodes that read weights at once."
    )
    join: Seconds = quantity_field("30s", "Time until all ranks of a unit have joined each other.")
    graphs: Seconds = quantity_field("60s", "Time to capture CUDA graphs.")
    notice: Seconds = quantity_field("5min", "Notice before a start, for other work to leave the nodes.")
